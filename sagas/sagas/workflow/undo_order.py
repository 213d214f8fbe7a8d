"""The order with which the undo of a saga starts. It undoes effects that are there for good, so it is signed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from temporalio import workflow

from sagas.definition.times import format_timestamp
from sagas.machine.machine import Machine
from sagas.protocol.operator_names import recorded_name
from sagas.workflow.client_fields import optional_text, read_client_value, whole_number
from sagas.workflow.failures import refused_error
from sagas.workflow.run_trust import RunTrust, is_signed_message, require_key


@dataclass(frozen=True, slots=True)
class UndoOrder:
    """The person who undoes a saga, and the reason.

    ``closed``: how its run was closed from outside. The order holds for one start of the saga: by its ``generation``
    and the time ``started_at``, or, for a saga that was closed from outside, by ``run_id``, the run that has its state.
    That of a parent has neither: it is signed for the run of the parent.
    """

    who: str
    reason: str
    closed: str
    generation: int | None
    started_at: str | None
    run_id: str | None

    def refusal(self, machine: Machine) -> str:
        """Why this start of the saga is not the one that is to be undone; empty if it is."""
        if self.generation is None and self.started_at is None:
            return ""
        this = (machine.generation, format_timestamp(machine.started_at))
        if this == (self.generation, self.started_at):
            return ""
        return (
            f"this order undoes start {self.generation} of the saga, of {self.started_at}, which was started again "
            f"since: this is start {this[0]}, of {this[1]}"
        )


def read_undo_order(value: Any, trust: RunTrust | None) -> UndoOrder:
    """The input of a run that undoes a saga.

    Raises SagaApplicationError for an order that neither a client of this project nor the parent of a nested saga has
    signed for this run, and one that is malformed.
    """
    signature = value.get("signature") if isinstance(value, dict) else None
    require_key(trust, "undo", signature, "the order of this undo")
    if not is_signed_message("undo", _recipient(workflow.info()), value):
        raise refused_error(
            "an undo counts only if it is signed with a key of this worker, by `saga undo` or a client of the project; "
            "set the same worker.definition_key for both"
        )
    return read_client_value("an undo has texts: who, reason, closed, started_at, run_id", value, _undo_order)


def _recipient(info: workflow.Info) -> list[str]:
    """The ids for which the order is signed. Temporal itself writes the parent, so nobody repeats its order."""
    return undo_recipient(info.workflow_id, None if info.parent is None else info.parent.run_id)


def undo_recipient(undo_id: str, parent_run_id: str | None) -> list[str]:
    """The ids for which the order of the run ``undo_id`` is signed, see :func:`message_content`."""
    return [undo_id] if parent_run_id is None else [undo_id, parent_run_id]


def _undo_order(value: Any) -> UndoOrder:
    fields = value if isinstance(value, dict) else {}
    who = recorded_name(optional_text(fields.get("who")) or "unknown", proven="signature" in fields)
    reason, closed = optional_text(fields.get("reason")), optional_text(fields.get("closed"))
    generation = fields.get("generation")
    number = None if generation is None else whole_number(generation, 1, 2**31)
    started_at, run_id = optional_text(fields.get("started_at")), optional_text(fields.get("run_id"))
    return UndoOrder(who, reason or "undone", closed or "", number, started_at, run_id)
