"""Compares what a simulated saga says with what its participants know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.machine.plan import is_read
from sagas.simulation.participants import Participants


def contradicted(ends: Mapping[str, Mapping[str, Any]], participants: Participants) -> list[dict[str, Any]]:
    """Effects that stay although a saga says COMPENSATED, or are missing although it says COMPLETED.

    ``ends`` are the stories of the saga and its nested ones by their path.
    """
    found: list[dict[str, Any]] = []
    for effect in participants.effects():
        end = ends[effect.path]
        if is_read(effect.step) or end["state"] not in ("COMPLETED", "COMPENSATED"):
            continue
        row = next((row for row in end["steps"] if row["id"] == effect.entry), None)
        wanted = row is not None and row["state"] in ("DONE", "CONFIRMED")
        left = effect.entry in end["not_done"]
        if effect.again or (effect.there and not wanted and not left):
            kind = "effect_stays"
        elif wanted and not effect.there:
            kind = "effect_missing"
        else:
            continue
        place = effect.step.do.connection or effect.step.do.uses
        step = effect.path + effect.entry
        found.append({"step": step, "kind": kind, "system": place, "key": effect.key, "command": None})
    return found
