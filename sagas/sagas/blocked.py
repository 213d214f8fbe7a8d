"""What a `saga show` document says of the nested sagas that block it; see :mod:`sagas.machine.parked`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def blocked_steps(story: Mapping[str, Any]) -> set[str]:
    """The ledger ids of the steps that wait for a nested saga in which something waits for a person."""
    return {child["step"] for child in story.get("children") or () if child.get("waits")}


def waits_for_a_person(story: Mapping[str, Any]) -> bool:
    """Nothing can run until a person decides, here or in a nested saga."""
    return story["state"] == "PARKED" or any(child.get("blocks") == "saga" for child in story.get("children") or ())
