"""Whether a cancel of a saga is on record, read from Temporal when no worker can say what the saga has made of it."""

from __future__ import annotations

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client as Temporal

from saga_workers.runs import Description
from sagas.wire import CANCEL_SIGNAL

_TAKEN = ("accepted", "recorded")


async def cancel_on_record(temporal: Temporal, described: Description) -> bool:
    """A native cancel, the signal of a parent saga, or an update that the saga has taken."""
    if described.raw.workflow_extended_info.cancel_requested:
        return True
    open_updates: set[str] = set()
    handle = temporal.get_workflow_handle(described.run.id, run_id=described.run.run_id)
    async for event in handle.fetch_history_events():
        if event.workflow_execution_signaled_event_attributes.signal_name == CANCEL_SIGNAL:
            return True
        request = event.workflow_execution_update_accepted_event_attributes.accepted_request
        if request.input.name == "cancel":
            open_updates.add(request.meta.update_id)
        if (done := event.workflow_execution_update_completed_event_attributes.meta.update_id) in open_updates:
            open_updates.remove(done)
            if await _answer(temporal, event) in _TAKEN:
                return True
    return bool(open_updates)


async def _answer(temporal: Temporal, event: HistoryEvent) -> object:
    outcome = event.workflow_execution_update_completed_event_attributes.outcome
    if not outcome.HasField("success"):
        return None
    return (await temporal.data_converter.decode(outcome.success.payloads))[0]
