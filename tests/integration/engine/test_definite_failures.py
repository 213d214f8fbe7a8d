"""Failures that Temporal repeats: a step is *failed* at its end if each attempt said that nothing happened."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from sagas import Step
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.new_databases import new_url
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import LIMIT
from tests.integration.engine.environment import (
    GRACE,
    begin,
    gate,
    open_environment,
    resolve,
    row,
    run_saga,
    wait_for_event,
)

RETRY = "retry: {max_attempts: 3, initial_interval: 20ms, max_interval: 20ms}, on_failure: park"
PARKS = "saga: NAME\nsteps:\n  - {id: a, uses: book, compensate: unbook, OPTIONS" + RETRY + "}\n"


async def beat_and_fail(step: Step) -> Any:
    step.heartbeat({"progress": step.attempt})
    raise ValueError("no")


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("options", ["", "heartbeat: 10s, ", "timeout: 2s, "])
async def test_a_step_whose_attempts_were_all_rolled_back_parks_as_failed(
    options: str, temporal: TemporalServer, tmp_path: Path
) -> None:
    env = await open_environment(tmp_path, temporal.address)
    env.plan["do a"] = [beat_and_fail]
    async with env.serving(PARKS.replace("NAME", "definite").replace("OPTIONS", options)) as client:
        story = await run_saga(client, "definite")
        step = row(story, "a")
        assert (story["state"], step["outcome"], step["attempts"]) == ("PARKED", "failed", 3)
        again = await resolve(client, story["id"], "a", "retry")
        assert (row(again, "a")["outcome"], row(again, "a")["attempts"]) == ("failed", 6)
        env.plan["do a"] = []
        assert (await resolve(client, story["id"], "a", "retry"))["state"] == "COMPLETED"
    assert await env.effects() == ["a"]


async def test_an_attempt_without_an_answer_makes_all_of_them_unknown(temporal: TemporalServer, tmp_path: Path) -> None:
    env = await open_environment(tmp_path, temporal.address)
    stuck, begun, _ = gate()
    env.plan["do a"] = [ValueError("no"), stuck, ValueError("no")]
    async with env.serving(PARKS.replace("NAME", "answerless").replace("OPTIONS", "timeout: 60s, ")) as client:
        saga_id = await begin(client, "answerless")
        await wait_for_event(begun)
    async with env.again() as client:
        step = row(await finished(client, saga_id), "a")
    assert (step["outcome"], step["attempts"]) == ("unknown", 3)


async def test_a_participant_that_was_never_reached_leaves_a_failed_step(
    temporal: TemporalServer, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = await open_environment(tmp_path, temporal.address)
    call = f"{{method: POST, url: 'http://127.0.0.1:{port}/charges', json: {{}}}}"
    steps = f"  - {{id: a, uses: http, with: {call}, compensate: {{uses: http, with: {call}}}, {RETRY}}}\n"
    async with env.serving(f"saga: unreached\nsteps:\n{steps}") as client:
        step = row(await run_saga(client, "unreached"), "a")
    assert (step["outcome"], step["attempts"]) == ("failed", 3)
    assert "cannot be reached for POST /charges" in step["error"]["message"]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
async def test_a_row_that_stays_locked_leaves_a_failed_step(
    kind: str, request: pytest.FixtureRequest, temporal: TemporalServer, tmp_path: Path
) -> None:
    url = await new_url(kind, request, tmp_path)
    engine = open_engine("shop", url, 2)
    await create_tables(engine)
    run = '{connection: shop, run: "update stock set free = free - 1 where sku = 1"}'
    undo = '{connection: shop, run: "update stock set free = free + 1 where sku = 1"}'
    project = make_project(
        tmp_path / "project",
        {
            "locked-row": "saga: locked-row\nsteps:\n  - {id: a, uses: sql, timeout: 2s, "
            f"with: {run}, compensate: {{uses: sql, with: {undo}}}, {RETRY}}}\n"
        },
        [],
        address=temporal.address,
        connections={"shop": url},
    )
    async with engine.connect() as other, running_worker(project, grace=GRACE) as client:
        await other.exec_driver_sql("create table stock (sku int primary key, free int)")
        await other.exec_driver_sql("insert into stock values (1, 5)")
        await other.exec_driver_sql("begin")
        await other.exec_driver_sql("update stock set free = 4 where sku = 1")
        story = await asyncio.wait_for(run_saga(client, "locked-row"), LIMIT)
        step = row(story, "a")
        assert (story["state"], step["outcome"], step["attempts"]) == ("PARKED", "failed", 3)
        await other.exec_driver_sql("rollback")
        assert (await resolve(client, story["id"], "a", "retry"))["state"] == "COMPLETED"
        assert (await other.exec_driver_sql("select free from stock")).scalar() == 4
    await engine.dispose()
