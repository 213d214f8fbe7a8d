"""The other side of a check that compares the output with something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_steps.job import Check

OTHER_SIDE = "audit:"
"""The inputs of a check are frozen with those of the job, under this word and the check's name."""


def other_side(check: Check) -> Mapping[str, Any] | None:
    """The input that a check compares the output with; None: it needs none."""
    match check.kind:
        case "relationships":
            return check.spec["to"]
        case "reconcile":
            return check.spec["with"]
    return None
