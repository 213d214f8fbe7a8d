"""The other side of a check that compares the output with something else."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from saga_spark.job import Check


def other_side(check: Check) -> Mapping[str, Any] | None:
    """The input that a check compares the output with; None: it needs none."""
    match check.kind:
        case "relationships":
            return check.spec["to"]
        case "reconcile":
            return check.spec["with"]
    return None


def side_name(check: Check) -> str:
    """The name of that input: it is frozen together with the inputs of the job. No two checks share one, also where
    their names differ only in what a folder's name cannot hold."""
    readable = re.sub(r"\W+", "-", check.name)
    return f"audit-{readable}-{hashlib.sha256(check.name.encode()).hexdigest()[:8]}"
