"""The times of a schedule between two moments, as Temporal itself computes them.

Where clocks change, Temporal has rules of its own, which differ between versions of the server and between time zones.
So it is asked, with a paused schedule that exists for a moment and has no jitter: a backfill starts the times that the
schedule starts, and no others.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.workflowservice.v1 import ListScheduleMatchingTimesRequest
from temporalio.client import Client as Temporal
from temporalio.service import RPCError

from saga_workers.schedules.schedule_status import trigger_of
from saga_workers.schedules.temporal_schedule import make_schedule
from sagas.definition.model import Definition
from sagas.errors import UsageError
from sagas.protocol.payloads import SCHEDULE_PREFIX
from sagas.settings.signing_keys import SigningKeys

MAX_TIMES = 100_000
"""Times of one backfill: each is a row in memory, and a workflow."""

_SETTLED = timedelta(days=2)
"""How much earlier Temporal is asked: within an hour that clocks repeat its answer depends on where it begins."""


async def matching_times(
    temporal: Temporal, definition: Definition, task_queue: str, first: datetime, last: datetime
) -> list[datetime]:
    """The times from ``first`` to ``last``, both included, ascending and in UTC.

    Raises UsageError if they are more than MAX_TIMES, or the definition has no schedule; RPCError.
    """
    trigger = replace(trigger_of(definition), jitter=0.0)
    id = f"{SCHEDULE_PREFIX}{task_queue}~times~{uuid.uuid4()}"
    schedule = make_schedule(definition, trigger, id=id, task_queue=task_queue, keys=SigningKeys())
    schedule.state.paused = True
    schedule.state.note = "made for a moment by saga backfill; it starts nothing"
    schedule.spec.end_at = last
    handle = await temporal.create_schedule(id, schedule)
    try:
        return await _list(temporal, id, first, last)
    finally:
        with contextlib.suppress(RPCError):
            await handle.delete()


async def _list(temporal: Temporal, id: str, first: datetime, last: datetime) -> list[datetime]:
    times: list[datetime] = []
    after = first - _SETTLED
    while True:
        page = await _page(temporal, id, after, last)
        new = [time for time in page if time > after]
        times += [time for time in new if first <= time <= last]
        if not new:
            return times
        if len(times) > MAX_TIMES:
            raise UsageError(
                f"the schedule has more than {MAX_TIMES:,} times in this range",
                help="fill it in parts, with other --from and --to",
            )
        after = new[-1]


async def _page(temporal: Temporal, id: str, after: datetime, last: datetime) -> list[datetime]:
    begin, end = Timestamp(), Timestamp()
    begin.FromDatetime(after)
    end.FromDatetime(last)
    request = ListScheduleMatchingTimesRequest(
        namespace=temporal.namespace, schedule_id=id, start_time=begin, end_time=end
    )
    answer = await temporal.workflow_service.list_schedule_matching_times(request, retry=True)
    return [time.ToDatetime(UTC) for time in answer.start_time]
