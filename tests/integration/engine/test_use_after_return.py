"""Tasks and threads of an action that go on after its function has returned: statements and events are refused."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sagas import Step, action
from sagas.errors import AttemptOver
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import GRACE, open_environment, row, run_saga

INSERT = "insert into effects values (:what)"
TASKS: set[asyncio.Task[None]] = set()
THREADS: list[threading.Thread] = []
LATE: dict[str, list[str]] = {}


def note(step: Step, error: BaseException) -> None:
    LATE.setdefault(step.saga_id, []).append(type(error).__name__)


@action("left.task", connection="shop")
async def left_task(step: Step, seconds: float) -> None:
    if step.op != "do":
        return
    await step.sql.execute(INSERT, what="before")

    async def later() -> None:
        await asyncio.sleep(seconds)
        try:
            step.emit("orders", value={"late": True})
        except AttemptOver as error:
            note(step, error)
        try:
            await step.sql.execute(INSERT, what="late")
        except AttemptOver as error:
            note(step, error)

    TASKS.add(asyncio.create_task(later()))


@action("left.thread", connection="shop")
def left_thread(step: Step, seconds: float) -> None:
    if step.op != "do":
        return
    step.sql.execute(INSERT, what="before")

    def later() -> None:
        time.sleep(seconds)
        for use in (lambda: step.emit("orders", value=1), lambda: step.sql.execute(INSERT, what="late")):
            try:
                use()
            except AttemptOver as error:
                note(step, error)

    THREADS.append(threading.Thread(target=later))
    THREADS[-1].start()


@action("left.statement", connection="shop")
async def left_statement(step: Step, seconds: float) -> None:
    if step.op != "do":
        return

    async def slowly() -> None:
        await step.sql.execute(INSERT, what="before")
        for _ in range(1_000_000):
            await step.sql.execute("select 1")

    TASKS.add(asyncio.create_task(slowly()))
    await asyncio.sleep(seconds)


async def run(temporal: TemporalServer, folder: Path, name: str, seconds: float) -> tuple[dict[str, Any], list[Any]]:
    shop = await open_environment(folder, temporal.address)
    saga = f"after-{name}-{int(seconds * 100)}"
    steps = f"- {{id: a, uses: left.{name}, with: {{seconds: {seconds}}}, compensate: left.{name}}}"
    project = make_project(
        folder / "project",
        {saga: f"saga: {saga}\nsteps:\n  {steps}\n"},
        [left_task, left_thread, left_statement],
        address=temporal.address,
        connections={"shop": shop.url},
    )
    async with running_worker(project, grace=GRACE) as client:
        story = await run_saga(client, saga)
        await asyncio.gather(*TASKS, return_exceptions=True)
        for thread in THREADS:
            await asyncio.to_thread(thread.join)
        TASKS.clear()
        THREADS.clear()
    engine = sa.create_engine(shop.url.replace("+aiosqlite", ""))
    with engine.connect() as connection:
        effects = [what for (what,) in connection.execute(sa.text("select what from effects"))]
        assert connection.execute(sa.text("select count(*) from saga_outbox")).scalar() == 0
    return story, effects


@pytest.mark.parametrize("name", ["task", "thread"])
async def test_after_the_commit_both_are_refused(temporal: TemporalServer, tmp_path: Path, name: str) -> None:
    story, effects = await run(temporal, tmp_path, name, 1.0)
    assert (story["state"], effects) == ("COMPLETED", ["before"])
    assert LATE[story["id"]] == ["AttemptOver", "AttemptOver"]


async def test_an_event_between_return_and_commit_rolls_the_attempt_back(
    temporal: TemporalServer, tmp_path: Path
) -> None:
    """Row and event stay together: the task runs at the first await after the function has returned."""
    story, effects = await run(temporal, tmp_path, "task", 0.0)
    assert effects in (["before"], [])
    assert LATE[story["id"]][0] == "AttemptOver"
    assert (story["state"] == "COMPLETED") == (effects == ["before"])


async def test_a_statement_that_still_runs_fails_the_attempt(temporal: TemporalServer, tmp_path: Path) -> None:
    story, effects = await run(temporal, tmp_path, "statement", 0.2)
    assert (story["state"], effects) == ("COMPENSATED", [])
    assert "await every task that it starts" in row(story, "a")["error"]["message"]
