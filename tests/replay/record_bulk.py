"""Records the histories of bulk workflows, and of the record of a batch; see :mod:`tests.replay.record`."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path

import psycopg
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from saga_workers.client import Client
from saga_workers.runtime.databases import set_up_database
from saga_workers.start.start_requests import BulkRow
from sagas.protocol.batch_record import (
    CANCEL_SIGNAL,
    CLOSED_SIGNAL,
    OPENED_SIGNAL,
    PAUSE_SIGNAL,
    PROGRESS_SIGNAL,
    RECORD_QUERY,
    RESUME_SIGNAL,
    BatchRecord,
)
from sagas.protocol.payloads import BATCH_PREFIX, BATCH_WORKFLOW
from tests.helpers.database_servers import postgres
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.bulk.conftest import Bank, write_project
from tests.integration.bulk.test_bulk_execution import transfer
from tests.integration.bulk.test_retries_after_leaving import RETRIED
from tests.replay.history_files import write


async def record(address: str, url: str, folder: Path) -> list[Path]:
    """Sagas that complete, are rejected, violate a constraint and retry; others that leave, for a wait or a retry."""
    await asyncio.to_thread(folder.mkdir)
    await asyncio.to_thread((folder / "retried.saga.yaml").write_text, RETRIED)
    project = write_project(folder, address, url)
    await set_up_database(project.settings.sql_connection("bank"))
    async with running_worker(project) as client:
        bank = Bank(client, project, url)
        bank.open_accounts(200)
        sagas = [transfer(number) for number in range(1, 9)]
        sagas[1], sagas[3], sagas[5] = transfer(2, amount=1000), transfer(4, to="nobody"), transfer(6, text="fails")
        wide = [transfer(number, text=f"{number}" * 150_000) for number in range(20, 26)]
        written = []
        for name, saga, inputs in (
            ("bulk", "transfer", sagas),
            ("bulk-wide", "transfer", wide),
            ("bulk-left", "waiting", [{"id": f"x-{number}", "waits": number == 2} for number in range(1, 4)]),
            ("bulk-retried", "retried", [{"id": "y-1"}]),
            ("bulk-rested", "resting", [{"id": f"z-{number}", "rest": f"{number}s"} for number in (1, 2, 6)]),
        ):
            starter = await client.starter(saga)
            handle = await starter.start_bulk(
                [BulkRow(str(input["id"]), starter.make_request(input)) for input in inputs]
            )
            await handle.result()
            written += await write(client, handle.id, name)
        await client.signal("x-2", "go")
        await client.temporal.get_workflow_handle("x-2").result()
        written += await write(client, "x-2", "bulk-left+detached")
        with contextlib.suppress(WorkflowFailureError):
            await client.temporal.get_workflow_handle("y-1").result()
        written += await write(client, "y-1", "bulk-retried+detached")
        for id in ("z-1", "z-2", "z-6"):
            with contextlib.suppress(RPCError):  # one that has not left
                await client.temporal.get_workflow_handle(id).result()
        written += await write(client, "z-6", "bulk-rested+detached")
        written += [*await record_cancelled(bank), *await record_cancelled_alone(client)]
        written += await record_batch(client)
        await client.close()
    return written


async def record_cancelled(bank: Bank) -> list[Path]:
    """A bulk workflow that is cancelled while the last step of its sagas waits for a lock of their database."""
    starter = await bank.client.starter("transfer")
    with psycopg.connect(bank.url) as blocker:
        blocker.execute("lock table note in access exclusive mode")
        inputs = [transfer(number) for number in range(30, 33)]
        handle = await starter.start_bulk([BulkRow(str(input["id"]), starter.make_request(input)) for input in inputs])

        async def is_credited() -> bool:
            credited = "select 1 from account where id = 'a130' and balance = 110"
            return bool(await asyncio.to_thread(bank.query, credited))

        await until(is_credited)
        await handle.cancel()
    assert (await handle.result())["counts"] == {"COMPENSATED": 3}
    return await write(bank.client, handle.id, "bulk-cancelled")


async def record_cancelled_alone(client: Client) -> list[Path]:
    """A saga that has left its bulk workflow, and is cancelled in Temporal while it waits for its retry."""
    starter = await client.starter("retried")
    bulk = await starter.start_bulk([BulkRow("y-2", starter.make_request({"id": "y-2"}))])
    await bulk.result()
    handle = client.temporal.get_workflow_handle("y-2")

    async def waits() -> bool:
        events = [event.event_type async for event in handle.fetch_history_events()]
        return EventType.EVENT_TYPE_TIMER_STARTED in events

    await until(waits)
    await handle.cancel()
    with contextlib.suppress(WorkflowFailureError):
        await handle.result()
    return await write(client, "y-2", "bulk-retried-cancelled+detached")


async def record_batch(client: Client) -> list[Path]:
    """The record of a batch that is paused, goes on, is taken over by another command, cancelled and closed."""
    record = BatchRecord("recorded", saga="transfer", bulk=True, client="first", total=20)
    handle = await client.temporal.start_workflow(
        BATCH_WORKFLOW,
        record.to_json(),
        id=BATCH_PREFIX + record.id,
        task_queue=client.project.settings.temporal.task_queue,
        start_signal=OPENED_SIGNAL,
        start_signal_args=[record.to_json()],
    )
    second = replace(record, client="second")
    for signal, value in (
        (PROGRESS_SIGNAL, replace(record, started=5).to_json()),
        (PAUSE_SIGNAL, {"by": "mia"}),
        (RESUME_SIGNAL, {"by": "mia"}),
        (OPENED_SIGNAL, second.to_json()),
        (PROGRESS_SIGNAL, replace(second, started=5, existing=5, ended={"COMPLETED": 7}).to_json()),
        ("unheard of", 1),
        (CANCEL_SIGNAL, {"by": "ben"}),
        (CLOSED_SIGNAL, replace(second, started=5, existing=5, stopped="cancelled").to_json()),
    ):
        await handle.query(RECORD_QUERY)  # each signal in a workflow task of its own
        await handle.signal(signal, value)
    assert (await handle.result())["state"] == "CANCELLED"
    return await write(client, handle.id, "batch")


async def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres() as database,
        TemporalServer(Path(folder) / "temporal") as temporal,
    ):
        for path in await record(temporal.address, database.url(), Path(folder) / "project"):
            print(path.name)
