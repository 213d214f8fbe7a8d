"""Nested sagas, whose outcome the environment chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sagas.protocol.messages import SagaEnded, StartSaga, UndoSaga
from sagas.protocol.saga_view import ReasonView, ResidueView, SagaView
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
    if fate in ("completed", "residue_committed"):
        env.record(Effect(command.entry, generation, "do", "saga"))
    match fate:
        case "completed":
            view = _view("COMPLETED", command.saga_id, output={"id": command.saga_id})
            return SagaEnded(command.id, "COMPLETED", at, view)
        case "terminated":
            return SagaEnded(command.id, "TERMINATED", at, None)
        case "refused":
            return SagaEnded(command.id, "REFUSED", at, None)
        case "residue" | "residue_committed":
            committed = "2026-01-01T00:00:00Z" if fate == "residue_committed" else None
            reason = None if committed else _reason("rejected")
            view = _view("RESIDUE", command.saga_id, reason, committed_at=committed, residue=(_left(command.saga_id),))
            return SagaEnded(command.id, "RESIDUE", at, view)
        case _:
            kind = "parent" if flight.cancelled else "rejected" if fate == "rejected" else "failed"
            return SagaEnded(command.id, "COMPENSATED", at, _view("COMPENSATED", command.saga_id, _reason(kind)))


def _end_undo(env: Environment, undo: UndoSaga, fate: ChildFate, generation: int, at: float) -> SagaEnded:
    if fate in ("terminated", "refused"):
        return SagaEnded(undo.id, "TERMINATED" if fate == "terminated" else "REFUSED", at, None)
    if env.log.net(undo.entry, generation) > 0:
        env.record(Effect(undo.entry, generation, "undo", "saga"))
    if fate == "residue":
        view = _view("RESIDUE", undo.saga_id, _reason("undone"), residue=(_left(undo.saga_id),))
        return SagaEnded(undo.id, "RESIDUE", at, view)
    return SagaEnded(undo.id, "COMPENSATED", at, _view("COMPENSATED", undo.saga_id, _reason("undone")))


def _left(saga_id: str) -> ResidueView:
    return ResidueView(step="x", kind="effect_stays", system="warehouse", key=f"{saga_id}/x", command="look there")


def _reason(kind: Any) -> ReasonView:
    return ReasonView(kind=kind, step="x", type="Rejected", message="no")


def _view(state: Any, saga_id: str, reason: ReasonView | None = None, **more: Any) -> SagaView:
    """The view of a nested saga, as far as a parent can need it."""
    return SagaView(id=saga_id, saga="child", state=state, reason=reason, **more)
