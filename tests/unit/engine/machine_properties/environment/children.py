"""Nested sagas, whose outcome the environment chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sagas.protocol.messages import SagaEnded, StartSaga, UndoSaga
from tests.unit.engine.machine_properties.environment.effects import Effect
from tests.unit.engine.machine_properties.environment.environment import Environment

ChildFate = Literal[
    "completed", "rejected", "failed", "residue", "residue_committed", "terminated", "refused", "parked"
]
"""``parked``: it waits for an operator, and its parent with it, until :attr:`ChildFlight.parked` is cleared."""


@dataclass(slots=True)
class ChildFlight:
    """A nested saga, or the undo of one, that has not ended."""

    command: StartSaga | UndoSaga
    cancelled: bool = False
    parked: bool = False


def end_child(env: Environment, flight: ChildFlight, fate: ChildFate, generation: int, at: float) -> SagaEnded:
    """Let it end. What it did becomes one effect of the parent's entry."""
    command = flight.command
    if isinstance(command, UndoSaga):
        return _end_undo(env, command, fate, generation, at)
    story: dict[str, Any]
    if fate in ("completed", "residue_committed"):
        env.record(Effect(command.entry, generation, "do", "saga"))
    match fate:
        case "completed":
            return SagaEnded(command.id, "COMPLETED", at, {"output": {"id": command.saga_id}})
        case "terminated":
            return SagaEnded(command.id, "TERMINATED", at, None)
        case "refused":
            return SagaEnded(command.id, "REFUSED", at, None)
        case "residue" | "residue_committed":
            story = _story("RESIDUE", command.saga_id, "rejected", committed=fate == "residue_committed")
            story["residue"] = [_left(command.saga_id)]
            return SagaEnded(command.id, "RESIDUE", at, story)
        case _:
            kind = "parent" if flight.cancelled else "rejected" if fate == "rejected" else "failed"
            return SagaEnded(command.id, "COMPENSATED", at, _story("COMPENSATED", command.saga_id, kind, False))


def _end_undo(env: Environment, undo: UndoSaga, fate: ChildFate, generation: int, at: float) -> SagaEnded:
    if fate in ("terminated", "refused"):
        return SagaEnded(undo.id, "TERMINATED" if fate == "terminated" else "REFUSED", at, None)
    if env.log.net(undo.entry, generation) > 0:
        env.record(Effect(undo.entry, generation, "undo", "saga"))
    story = _story("COMPENSATED", undo.saga_id, "undone", False)
    if fate == "residue":
        story["residue"] = [_left(undo.saga_id)]
        return SagaEnded(undo.id, "RESIDUE", at, {**story, "state": "RESIDUE"})
    return SagaEnded(undo.id, "COMPENSATED", at, story)


def _left(saga_id: str) -> Mapping[str, Any]:
    key = f"{saga_id}/x"
    return {"step": "x", "kind": "effect_stays", "system": "warehouse", "key": key, "command": "look there"}


def _story(state: str, saga_id: str, kind: str, committed: bool) -> dict[str, Any]:
    """The `saga show` document of a nested saga, as far as a parent can need it."""
    reason = {"kind": kind, "step": "x", "type": "Rejected", "message": "no", "details": {}}
    return {
        "id": saga_id, "saga": "child", "digest": "sha256:child", "generation": 1, "state": state,
        "phase": "committed" if committed else "backward", "reason": None if committed else reason, "input": {},
        "output": None, "labels": {}, "started_at": "2026-01-01T00:00:00Z",
        "committed_at": "2026-01-01T00:00:00Z" if committed else None, "ended_at": "2026-01-01T00:00:01Z",
        "deadline_at": None, "can_undo": False, "undo_until": None, "cancel_requested": False, "overdue": False,
        "steps_omitted": None, "parent": None, "children": [], "web_ui": None, "steps": [], "parked": [],
        "not_done": [], "residue": [], "operator": [], "notifications": [],
    }  # fmt: skip
