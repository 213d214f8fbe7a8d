"""The order with which the undo of a saga starts. It undoes effects that are there for good, so it is signed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from temporalio import workflow

from sagas.protocol.operator_names import recorded_name
from sagas.workflow.client_fields import optional_text, read_client_value, whole_number
from sagas.workflow.failures import refused_error
from sagas.workflow.run_trust import RunTrust, is_signed_message, require_key


@dataclass(frozen=True, slots=True)
class UndoOrder:
    """The person who undoes a saga, and the reason.

    ``closed``: how its run was closed from outside. ``generation``: that of the start to undo; None if the sender did
    not know it.
    """

    who: str
    reason: str
    closed: str
    generation: int | None


def read_undo_order(value: Any, trust: RunTrust | None) -> UndoOrder:
    """The input of a run that undoes a saga.

    Raises SagaApplicationError for an order that neither a client of this project nor the parent of a nested saga has
    signed for this run, and one that is malformed.
    """
    signature = value.get("signature") if isinstance(value, dict) else None
    require_key(trust, "undo", signature, "the order of this undo")
    if not is_signed_message("undo", [workflow.info().workflow_id], value):
        raise refused_error(
            "an undo counts only if it is signed with a key of this worker, by `saga undo` or a client of the project; "
            "set the same worker.definition_key for both"
        )
    return read_client_value("the input of an undo has texts: who, reason, closed", value, _undo_order)


def _undo_order(value: Any) -> UndoOrder:
    fields = value if isinstance(value, dict) else {}
    who = recorded_name(optional_text(fields.get("who")) or "unknown", proven="signature" in fields)
    reason, closed = optional_text(fields.get("reason")), optional_text(fields.get("closed"))
    generation = fields.get("generation")
    number = None if generation is None else whole_number(generation, 1, 2**31)
    return UndoOrder(who, reason or "undone", closed or "", number)
