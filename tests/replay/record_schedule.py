"""Records the histories of scheduled starts; see :mod:`tests.replay.record`."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from saga_workers.client import Client
from saga_workers.schedules.temporal_schedule import signed_order
from sagas.errors import UsageError
from sagas.protocol.payloads import SCHEDULE_WORKFLOW
from sagas.protocol.schedule_order import schedule_id, slot_text
from sagas.workflow.json_payloads import raw_json
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.replay.history_files import write

NIGHTLY = """
saga: nightly
input: {type: object, required: [day], properties: {day: {type: string}}}
triggers:
  schedule:
    cron: 0 3 * * *
    input: {day: "${{ trigger.scheduled_at < '2026-02' ? trigger.scheduled_date : vars.no }}"}
steps:
  - {id: approval, uses: wait, with: {signal: approve}}
"""

_SCHEDULED_AT = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")


async def start(client: Client, scheduled_at: datetime) -> WorkflowHandle[Any, Any]:
    """Start the run of one time as Temporal's schedule does."""
    settings, trigger = client.project.settings, client.project.definition("nightly").schedule
    assert trigger is not None
    id = schedule_id(settings.temporal.task_queue, "nightly")
    return await client.temporal.start_workflow(
        SCHEDULE_WORKFLOW,
        raw_json(signed_order(id, "nightly", trigger, settings.signing_keys())),
        id=f"{id}-{slot_text(scheduled_at)}",
        task_queue=settings.temporal.task_queue,
        search_attributes=TypedSearchAttributes([SearchAttributePair(_SCHEDULED_AT, scheduled_at)]),
    )


async def record(client: Client) -> list[Path]:
    """A start whose saga completes, one that is cancelled with its saga, and one that is refused."""
    written: list[Path] = []
    for day, name in ((1, "schedule"), (2, "schedule-cancelled")):
        scheduled_at = datetime(2026, 1, day, 3, tzinfo=UTC)
        handle = await start(client, scheduled_at)
        saga_id = f"nightly-{slot_text(scheduled_at)}"

        async def is_running(saga_id: str = saga_id) -> bool:
            with contextlib.suppress(UsageError):
                return (await client.view(saga_id)).state == "RUNNING"
            return False

        await until(is_running)
        await asyncio.sleep(3)  # it asks for the state of the saga meanwhile
        await (client.signal(saga_id, "approve") if name == "schedule" else handle.cancel())
        state = "COMPLETED" if name == "schedule" else "COMPENSATED"
        assert (await handle.result())["state"] == state
        written += await write(client, handle.id, name)
    refused = await start(client, datetime(2026, 3, 1, 3, tzinfo=UTC))
    with contextlib.suppress(WorkflowFailureError):
        await refused.result()
    return [*written, *await write(client, refused.id, "schedule-refused")]


async def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        TemporalServer(Path(folder) / "temporal") as temporal,
    ):
        project = make_project(Path(folder) / "project", {"nightly": NIGHTLY}, [], address=temporal.address)
        async with running_worker(project) as client:
            for path in await record(client):
                print(path.name)
