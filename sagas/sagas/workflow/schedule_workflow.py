"""A scheduled start as a Temporal workflow: one run for each time of a schedule, open for as long as its saga runs.

A worker starts the saga, with the definition that the project has by then. Temporal's overlap policies look at this
run, so it closes with the saga; a cancel of it, as by `cancel_other`, cancels the saga and waits for its undo. It fails
when the start is refused, so that the Web UI and `saga schedule show` have the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, SearchAttributeKey

from sagas.protocol.payloads import (
    SCHEDULE_WORKFLOW,
    SLOT_ACTIVITY,
    SLOT_CANCEL_ACTIVITY,
    SLOT_MEMO,
    SLOT_STATE_ACTIVITY,
)
from sagas.protocol.schedule_order import slot_text
from sagas.workflow.client_fields import LONGEST_NAME, read_client_value, text
from sagas.workflow.engine_activity import perform_until_answered
from sagas.workflow.failures import refused_error
from sagas.workflow.json_payloads import NO_INPUT, raw_json
from sagas.workflow.next_look import wait_until_next_look
from sagas.workflow.run_trust import RunTrust, is_signed_message, require_key
from sagas.workflow.waits import wait_until

_SCHEDULED_AT = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")
"""Set by Temporal for a run that a schedule starts: its time in the calendar, without the jitter."""

_TIMEOUT = timedelta(seconds=60)
_MAX_CLOCK_SKEW = timedelta(seconds=60)


@workflow.defn(name=SCHEDULE_WORKFLOW)
class ScheduledStart:
    """Starts the saga of one time of a schedule, and waits for its end."""

    def __init__(self) -> None:
        self.trust: RunTrust | None = None
        """Set by the worker before the run."""
        self._cancelled = False
        self._cancel_sent = False

    @workflow.run
    async def run(self, input: RawValue = NO_INPUT) -> Any:
        expected = f"the input of {SCHEDULE_WORKFLOW} is not an order of a schedule; saga setup makes schedules"
        order = read_client_value(expected, input.payload, _checked_order)
        self._refuse_forged(order)
        scheduled_at = _scheduled_at(order["schedule"])
        work = asyncio.create_task(self._serve(order, scheduled_at))
        while not work.done():
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                self._cancelled = True
        return work.result()

    def _refuse_forged(self, order: dict[str, Any]) -> None:
        """Raise SagaApplicationError unless this project has signed the order.

        Raises KeyMissing, which Temporal repeats, for a few minutes if another worker may have the key.
        """
        require_key(self.trust, "order", order.get("signature"), "the order of the schedule")
        if not is_signed_message("schedule", [order["schedule"]], order):
            raise refused_error(
                "the order of this schedule is not signed with a key of the project; `saga setup` signs it again"
            )

    async def _serve(self, order: Mapping[str, Any], scheduled_at: datetime) -> dict[str, Any]:
        saga, slot = order["saga"], slot_text(scheduled_at)
        answer = await _perform(SLOT_ACTIVITY, {"saga": saga, "scheduled_at": slot}, f"start {saga} of {slot}")
        if (refusal := answer.get("refused")) is not None:
            raise refused_error(str(refusal))
        saga_id, state, began = answer["id"], answer.get("state"), workflow.time()
        workflow.upsert_memo({SLOT_MEMO: saga_id})
        waits = order["times"].get("overlap") != "allow_all"
        while state is None and waits:
            await self._wait_for_next_look(workflow.time() - began)
            if self._cancelled and not self._cancel_sent:
                await self._cancel_saga(saga_id, saga, slot)
            state = (await _perform(SLOT_STATE_ACTIVITY, {"id": saga_id}, f"has {saga_id} ended?"))["state"]
        return {"id": saga_id, "scheduled_at": slot, "started": answer["started"], "state": state}

    async def _wait_for_next_look(self, elapsed: float) -> None:
        """Wait for a share of the ``elapsed`` seconds, or until a cancel that has not been sent on."""
        await wait_until(
            lambda: self._cancelled and not self._cancel_sent,
            timeout=wait_until_next_look(elapsed),
            summary="has it ended?",
        )

    async def _cancel_saga(self, saga_id: str, saga: str, slot: str) -> None:
        self._cancel_sent = True
        reason = workflow.cancellation_reason() or f"its scheduled start of {slot} was cancelled"
        request = {"id": saga_id, "saga": saga, "reason": reason}
        answer = await _perform(SLOT_CANCEL_ACTIVITY, request, f"cancel {saga_id}")
        if (refusal := answer.get("refused")) is not None:
            workflow.logger.info("%s is not cancelled, and goes on: %s", saga_id, refusal)


async def _perform(name: str, request: Mapping[str, Any], summary: str) -> dict[str, Any]:
    return await perform_until_answered(name, raw_json(request), summary, timeout=_TIMEOUT)


def _checked_order(order: Any) -> dict[str, Any]:
    for field in ("schedule", "saga"):
        text(order[field], longest=LONGEST_NAME)
    if not isinstance(order["times"], dict):
        raise TypeError("times")
    return order


def _scheduled_at(schedule: str) -> datetime:
    """The time for which Temporal has started this run. Raises SagaApplicationError if no schedule has started it."""
    info = workflow.info()
    scheduled_at = info.typed_search_attributes.get(_SCHEDULED_AT)
    if scheduled_at is None or info.workflow_id != f"{schedule}-{slot_text(scheduled_at)}":
        raise refused_error(f"{SCHEDULE_WORKFLOW} is started by its schedule only: saga schedule run, saga backfill")
    if scheduled_at > info.start_time + _MAX_CLOCK_SKEW:
        raise refused_error(f"this start is for {slot_text(scheduled_at)}, which is in the future")
    return scheduled_at
