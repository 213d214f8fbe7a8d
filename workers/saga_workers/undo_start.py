"""Starts the run that undoes a saga."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from saga_workers.location.locator import Locator
from saga_workers.privacy.operator_reasons import masked_reason
from saga_workers.temporal.temporal_client import start_headers
from sagas.errors import RefusedError
from sagas.protocol.payloads import OWNER_HEADER, UNDO_SUFFIX
from sagas.protocol.signed_content import message_content
from sagas.settings.signing_keys import SigningKeys
from sagas.text.shell import saga_command
from sagas.workflow.summaries import run_summary


@dataclass(frozen=True, slots=True)
class EndedStart:
    """A start of a saga that has ended, by its number and the time, as its view has them."""

    generation: int
    started_at: str

    def to_order(self) -> dict[str, Any]:
        return {"generation": self.generation, "started_at": self.started_at}


@dataclass(frozen=True, slots=True)
class ClosedRun:
    """A run of a saga, or of its bulk workflow, that was closed from outside. ``how``: that, for people."""

    run_id: str
    how: str = ""

    def to_order(self) -> dict[str, Any]:
        return {"run_id": self.run_id, **({"closed": self.how} if self.how else {})}


async def start_undo(
    locator: Locator,
    saga_id: str,
    saga: str,
    task_queue: str,
    *,
    reason: str,
    who: str,
    undoes: EndedStart | ClosedRun,
) -> str:
    """Start the run that undoes a saga; returns its workflow id. No other start of the id is undone by this order, also
    if somebody sends it again.

    Raises RefusedError if there is one already.
    """
    undo_id, reason = saga_id + UNDO_SUFFIX, await masked_reason(locator, saga_id, reason)
    order = {"reason": reason, "who": who, **undoes.to_order()}
    try:
        with start_headers({OWNER_HEADER: saga_id}):
            await locator.temporal.start_workflow(
                saga,
                _signed_undo(locator, undo_id, order),
                id=undo_id,
                task_queue=task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                static_summary=run_summary(f"undo of {saga_id}: {reason}"),
            )
    except WorkflowAlreadyStartedError:
        raise RefusedError(f"{saga_id} is already being undone", help=saga_command("watch", saga_id)) from None
    return undo_id


def _signed_undo(locator: Locator, undo_id: str, order: dict[str, Any]) -> dict[str, Any]:
    """The order to undo a saga, signed for the run ``undo_id`` with the key of the project."""
    settings = locator.settings
    keys = SigningKeys() if settings is None else settings.signing_keys(create=settings.config_file is not None)
    signature = keys.sign("undo", message_content([undo_id], order))
    return order if signature is None else {**order, "signature": signature}
