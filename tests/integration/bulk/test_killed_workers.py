"""A batch whose sagas fail in several ways, and whose worker is killed twice, ends as single execution ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from saga_workers.client import Client
from saga_workers.start.start_requests import BulkRow
from saga_workers.temporal.temporal_client import connect
from sagas.project import Project
from sagas.workflow.bulk_workflow import HEARTBEAT
from tests.helpers.local_worker import finished
from tests.helpers.processes import WorkerProcess
from tests.helpers.waiting import until
from tests.integration.bulk.conftest import Bank

SAGAS = 500
BALANCE = 10_000
FULL = 1_000_000
"""A balance at which the table's constraint refuses any more money."""


def transfer(number: int, mark: str) -> dict[str, Any]:
    """Every tenth saga is rejected; every fiftieth violates a constraint, of the credit or of the note in turn."""
    return {
        "id": f"{mark}-{number}",
        "from": f"{mark}-source-{number}",
        "to": "full" if number % 100 == 25 else f"{mark}-target-{number}",
        "amount": BALANCE + 1 if number % 10 == 0 else 100 + number,
        "text": "twice" if number % 100 == 75 else "ok",
    }


def open_accounts(bank: Bank, mark: str, count: int) -> None:
    for side in ("source", "target"):
        statement = "insert into account select %s || i, %s from generate_series(1, %s) i"
        bank.query(statement, f"{mark}-{side}-", BALANCE, count)


@asynccontextmanager
async def held(url: str, statement: str, *values: object) -> AsyncIterator[None]:
    """Hold the locks that a statement takes, and undo it in the end."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute(statement, values)  # pyright: ignore[reportArgumentType,reportCallIssue]
        yield
        await connection.rollback()


def outcome_of(story: Mapping[str, Any], mark: str) -> Any:
    """The story of a saga, apart from times and the marks of its names."""
    reason = story["reason"] and {**story["reason"], "at": None}
    steps = [_outcome_of_step(step) for step in story["steps"]]
    return repr((story["state"], reason, story["output"], steps)).replace(f"{mark}-", "")


def _outcome_of_step(step: Mapping[str, Any]) -> Any:
    """A definite no of an attempt after a lost one is not the only fact, so that the step is sealed: it comes to the
    same, and is told as what it would be without the lost attempt."""
    state, outcome = step["state"], step["outcome"]
    if step["attempts"] != 1 and state == "NOTHING_TO_UNDO":
        state, outcome = {"Rejected": ("REJECTED", "rejected")}.get(step["error"]["type"], ("FAILED", "failed"))
    compensation = (step["compensation"] or {}).get("state")
    if state in ("REJECTED", "FAILED"):
        compensation = None  # NOTHING_TO_UNDO where it was sealed
    return step["id"], state, outcome, step["result"], step["error"] and step["error"]["type"], compensation


@pytest.mark.slow  # tests/faults kills workers of bulk execution, too
@pytest.mark.parametrize("alone", [tuple(range(1, SAGAS + 1))], ids=["all"])
async def test_it_ends_as_single_execution_ends(
    bank_project: tuple[Project, str], tmp_path: Path, alone: Sequence[int]
) -> None:
    """The sagas with the numbers ``alone`` are executed on their own, too."""
    project, url = bank_project
    assert project.settings.temporal.address is not None
    client = Client(await connect(project.settings, env={}), project)
    bank = Bank(client, project, url)
    bank.query("insert into account values ('full', %s)", FULL)
    mark = f"single{len(alone)}"  # another run of this test may have used the same Temporal
    open_accounts(bank, "bulk", SAGAS)
    open_accounts(bank, mark, SAGAS)
    starter = await client.starter("transfer")
    inputs = [transfer(number, "bulk") for number in range(1, SAGAS + 1)]
    workers = [WorkerProcess("worker-0", tmp_path / "project")]

    def waits() -> bool:
        """The worker waits for a lock: some of a chunk is done, and nothing of it is committed."""
        statement = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and application_name = %s"
        return bool(bank.query(statement, f"saga-worker-{workers[-1].pid}"))

    def guards(step: str) -> int:
        return bank.query("select count(*) from saga_guard where step = %s and op = 'do' and reason = 'do'", step)[0][0]

    async def replace_worker() -> None:
        workers[-1].kill()
        workers.append(WorkerProcess(f"worker-{len(workers)}", tmp_path / "project"))
        await asyncio.to_thread(workers[-1].start)

    try:
        await asyncio.to_thread(workers[0].start)
        async with held(url, "insert into note values ('bulk-201', 'held')"):
            async with held(url, "update account set balance = 0 where id = 'bulk-source-101'"):
                rows = [BulkRow(input["id"], starter.make_request(input)) for input in inputs]
                handle = await starter.start_bulk(rows, chunk_size=50)
                await until(lambda: guards("note") > 0 and waits(), "the first step half done")
                assert 0 < guards("debit") < SAGAS
                await replace_worker()
            await until(lambda: guards("debit") == SAGAS * 0.9 and waits(), "the last step half done")
            assert 0 < guards("note") < SAGAS * 0.9
            await replace_worker()
        result = await asyncio.wait_for(handle.result(), 60 + 5 * HEARTBEAT.total_seconds())
        assert result["counts"] == {"COMPLETED": 440, "COMPENSATED": 60}, workers[-1].tail()
        check_bank(bank, "bulk", inputs)
        singles = [transfer(number, mark) for number in alone]
        for start in range(0, len(alone), 50):
            part = singles[start : start + 50]
            await asyncio.gather(*(starter.start(starter.make_request(input)) for input in part))
            await asyncio.gather(*(finished(client, row["id"]) for row in part))
        check_bank(bank, mark, singles)
        for bulk_input, single_input in zip((inputs[number - 1] for number in alone), singles, strict=True):
            ours, theirs = await client.view(bulk_input["id"]), await client.view(single_input["id"])
            assert outcome_of(ours.to_json(), "bulk") == outcome_of(theirs.to_json(), mark)
    finally:
        for worker in workers:
            worker.kill()


def check_bank(bank: Bank, mark: str, inputs: Sequence[Mapping[str, Any]]) -> None:
    """Each saga moved its money once or not at all, and has its note and its event, or neither."""
    balances = bank.balances()
    notes = {id for (id,) in bank.query("select id from note where id like %s", f"{mark}-%")}
    events = [id for (id,) in bank.query("select saga_id from saga_outbox where saga_id like %s", f"{mark}-%")]
    completed = {
        input["id"]: input
        for input in inputs
        if input["amount"] <= BALANCE and input["to"] != "full" and input["text"] == "ok"
    }
    for input in inputs:
        moved = input["amount"] if input["id"] in completed else 0
        assert balances[input["from"]] == BALANCE - moved, input
        assert balances[input["from"].replace("source", "target")] == BALANCE + moved, input
    assert balances["full"] == FULL
    assert notes == set(completed)
    assert sorted(events) == sorted(completed)
    assert bank.query("select count(*) from saga_claim where saga_id like %s", f"{mark}-%") == [(0,)]
    states = {id: state for id, state in bank.states().items() if id.startswith(f"{mark}-")}
    assert states == {input["id"]: "COMPLETED" if input["id"] in completed else "COMPENSATED" for input in inputs}
