"""The starts that a schedule has made, as Temporal has them: one run for each time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from temporalio.client import (
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionResult,
    ScheduleDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.exceptions import ApplicationError

from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.locator import Locator
from saga_workers.schedules.final_states import final_state
from saga_workers.temporal.foreign_payloads import UNREADABLE_PAYLOAD
from saga_workers.temporal.temporal_runs import describe_run
from sagas.errors import SagaError
from sagas.protocol.payloads import SLOT_MEMO

_NOT_ENDED = (None, "COMPLETED")
"""The states of a saga that are not a failure."""


@dataclass(frozen=True, slots=True)
class SlotStart:
    """One start. ``id`` is that of the saga, as soon as it is known; ``outcome`` is in words.

    ``failed``: it was refused, or its saga has ended otherwise than COMPLETED.
    """

    scheduled_at: str
    workflow_id: str
    id: str | None
    outcome: str
    failed: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def last_starts(locator: Locator, current: ScheduleDescription) -> list[SlotStart]:
    """The last ten starts, newest first. Raises RPCError."""
    return await asyncio.gather(*(_read(locator, current.id, made) for made in reversed(current.info.recent_actions)))


async def _read(locator: Locator, schedule: str, made: ScheduleActionResult) -> SlotStart:
    action, temporal = made.action, locator.temporal
    assert isinstance(action, ScheduleActionExecutionStartWorkflow)
    slot = action.workflow_id.removeprefix(f"{schedule}-")  # that of the result has the jitter
    run_id = action.first_execution_run_id
    described = await describe_run(temporal, action.workflow_id, run_id)
    if described is None:
        return SlotStart(slot, action.workflow_id, None, "its run is no longer in Temporal")
    status = described.run.status
    saga_id = (await described.run.memo()).get(SLOT_MEMO)
    saga_id = saga_id if isinstance(saga_id, str) else None
    handle = temporal.get_workflow_handle(action.workflow_id, run_id=run_id)
    if status is WorkflowExecutionStatus.RUNNING:
        outcome = "waits for a worker" if saga_id is None else "running"
        return SlotStart(slot, action.workflow_id, saga_id, outcome)
    try:
        if status is WorkflowExecutionStatus.COMPLETED:
            result = await handle.result()
            return await _ended(locator, slot, action.workflow_id, result if isinstance(result, Mapping) else {})
        if status is WorkflowExecutionStatus.FAILED:
            await handle.result()
    except WorkflowFailureError as error:
        why = error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause)
        return SlotStart(slot, action.workflow_id, saga_id, f"refused: {why}", failed=True)
    except UNREADABLE_PAYLOAD as error:
        why = error.message if isinstance(error, SagaError) else str(error)
        return SlotStart(slot, action.workflow_id, saga_id, f"its outcome cannot be read: {why}")
    return SlotStart(slot, action.workflow_id, saga_id, status.name.lower().replace("_", " "), failed=True)


async def _ended(locator: Locator, slot: str, workflow_id: str, result: Mapping[str, Any]) -> SlotStart:
    saga_id, state, outcome = result.get("id"), result.get("state"), "started"
    if state is None and isinstance(saga_id, str):  # with `allow_all` the start does not wait for the end of its saga
        try:
            state = await final_state(locator, saga_id)
            outcome = "running"
        except LedgerUnavailable:
            pass
    earlier = "" if result.get("started", True) else "already started, "
    return SlotStart(slot, workflow_id, saga_id, f"{earlier}{state or outcome}", failed=state not in _NOT_ENDED)
