"""A saga is resumed after its run was deleted on its way back: what that run has undone leads the new one backward."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.guard import Guard, GuardMode
from saga_activities.guard.schema import create_tables
from saga_activities.guard.sql_session import SqlSession
from saga_workers.client import Client
from saga_workers.stuck.resumption import start_again
from sagas import Rejected
from sagas.errors import RefusedError, UsageError
from sagas.settings import HttpService, SqlConnection
from sagas.settings.connections import async_url
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished
from tests.helpers.new_databases import new_database
from tests.helpers.payment_server import PaymentServer
from tests.helpers.run_changes import delete_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle, row, states
from tests.integration.engine.repeated_runs import repeat, waits_at

LINE = """
    saga: line
    steps:
      - {id: a, uses: book, compensate: unbook}
      - X
      - {id: go, uses: wait, with: {signal: go}}
      - {id: z, uses: book, compensate: unbook}
"""
IN_ANOTHER_DATABASE = '{uses: sql, with: {connection: depot, run: "select 1"}}'
STEPS = {
    "an action": "{id: x, uses: work, compensate: unbook}",
    "another database": f"{{id: x, uses: work, compensate: {IN_ANOTHER_DATABASE}}}",
    "an alternate": "{id: x, uses: work, compensate: [{uses: unwork, retry: {max_attempts: 1}}, {uses: unbook}]}",
    "one attempt": "{id: x, uses: careless, probe: look, compensate: unbook}",
    "items": '{id: x, uses: work, for_each: [1, 2], with: {value: "${{ item }}"}, compensate: unbook}',
    "http": "{id: x, uses: http, with: {connection: crm, method: POST, path: /charges, "
    "json: {account: h-1, amount: '12.50'}}, compensate: {uses: unbook, with: {value: 1}}}",
}


@pytest.fixture
async def env(postgres_env: Environment, postgres_server: DatabaseServer, tmp_path: Path) -> AsyncIterator[Environment]:
    depot = new_database(postgres_server)
    postgres_env.connections["depot"] = SqlConnection(
        name="depot", root=tmp_path, url_setting=async_url(depot, tmp_path)
    )
    engine = create_async_engine(async_url(depot, tmp_path))
    await create_tables(engine)
    yield postgres_env
    await engine.dispose()


def with_step(step: str) -> str:
    return LINE.replace("- X", f"- {step}")


async def undone_and_deleted(client: Client) -> str:
    """A saga that has undone x, and has parked at the undo of a, without a run."""
    id = await begin(client, "line")
    await waits_at(client, id, "go")
    await client.cancel(id)
    story = await finished(client, id)
    assert (story["state"], {states(story)[x] for x in states(story) if x[0] == "x"}) == ("PARKED", {"COMPENSATED"})
    await delete_run(client.temporal, id)
    return id


@pytest.mark.sampled(keep=3)
@pytest.mark.parametrize("step", STEPS)
async def test_a_step_without_a_guard_that_was_undone_is_not_called_again(
    env: Environment, tmp_path: Path, step: str
) -> None:
    env.plan["undo a"] = [Rejected("closed"), None]
    env.plan["undo x"] = [Rejected("no"), None] if step == "an alternate" else [None]
    with PaymentServer() as payments:
        env.connections["crm"] = HttpService(name="crm", root=tmp_path, url_setting=payments.url)
        async with env.serving(with_step(STEPS[step])) as client:
            id = await undone_and_deleted(client)
            before = (env.log(), payments.ledger()["requests"])
            await start_again(client, await client.locator.locate(id), not_ended=True)
            story = await finished(client, id)
            assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "late")
            assert (env.log(), payments.ledger()["requests"]) == ([*before[0], "undo a"], before[1])


@pytest.mark.sampled
@pytest.mark.parametrize("how", ["reset", "resume"])
@pytest.mark.parametrize("pivot", [False, True])
async def test_a_step_that_was_undone_alone_stays_left_out(env: Environment, how: str, pivot: bool) -> None:
    env.plan["do x"] = [OSError("no answer")]
    step = "{id: x, uses: work, retry: {max_attempts: 1}, on_failure: continue, compensate: unbook}"
    behind = "pivot: true" if pivot else "compensate: unbook"
    definition = with_step(f"{step}\n      - {{id: y, uses: book, {behind}}}")
    if pivot:
        definition = definition.replace("{id: z, uses: book, compensate: unbook}", "{id: z, uses: work, effect: none}")
    async with env.serving(definition) as client:
        id = await begin(client, "line")
        await repeat(client, id, how)
        await waits_at(client, id, "go")
        assert states(await client.show(id))["x"] == "COMPENSATED"
        await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] == "COMPLETED"
    assert [line for line in env.log() if line != "do a"] == ["do x", "undo x", "do y", "do z"]


async def test_the_ledger_tells_of_an_undo_without_a_guard(env: Environment, orders: AsyncEngine) -> None:
    env.plan["undo a"] = [Rejected("closed"), None]
    async with env.serving(with_step("{id: x, uses: work, compensate: unwork}")) as client:
        id = await undone_and_deleted(client)
        await start_again(client, await client.locator.locate(id))
        story = await finished(client, id)
        assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "late")
        assert (env.log().count("do x"), env.log().count("undo x")) == (1, 1)


async def test_a_confirm_in_a_guard_tells_of_the_commit_point(env: Environment) -> None:
    env.plan["confirm g"] = [Rejected("no"), None]
    steps = "\n      - ".join(f"{{id: {id}, uses: work, confirm: fix, compensate: unwork}}" for id in "xg")
    async with env.serving(
        with_step(steps).replace("z, uses: book, compensate: unbook", "z, uses: work, effect: none")
    ) as client:
        id = await begin(client, "line")
        await handle(client, id).signal("go")

        async def confirms() -> bool:
            story = await client.show(id)
            return ((row(story, "x").get("confirmation")) or {}).get("state") == "DONE" and "confirm g" in env.log()

        await until(confirms, limit=60.0)
        await delete_run(client.temporal, id)
        await start_again(client, await client.locator.locate(id), not_ended=True)
        await waits_at(client, id, "go")
        with pytest.raises(RefusedError, match="past the point of no return"):
            await client.cancel(id)
        await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] == "COMPLETED"


UNDER_WAY: dict[str, tuple[str, GuardMode]] = {
    "outside of the guards": ("x", "own"),
    "in its guard": ("a", "decide"),
}


@pytest.mark.parametrize("where", UNDER_WAY)
async def test_an_undo_whose_transaction_is_open_is_waited_for(env: Environment, where: str) -> None:
    """The run that has begun it is deleted, and nothing that is stored tells of it until it commits."""
    entry, mode = UNDER_WAY[where]
    begun, go = asyncio.Event(), asyncio.Event()

    async def held(sql: SqlSession) -> None:
        await sql.execute("delete from effects where what = :what", what=entry)
        begun.set()
        await go.wait()

    async with env.serving(with_step(STEPS["an action"])) as client:
        id = await begin(client, "line")
        await waits_at(client, id, "go")
        await delete_run(client.temporal, id)
        now, guard = time.time(), Guard("shop", env.engine)
        key = EntryKey(id, entry)
        undo = asyncio.create_task(guard.undo(key, held, mode=mode, scheduled_at=now, deadline=now + 120))
        await begun.wait()
        await start_again(client, await client.locator.locate(id), not_ended=True)
        await asyncio.sleep(1.5)
        assert (env.log(), row(await client.show(id), "a")["state"]) == (["do a", "do x"], "PENDING")
        go.set()
        assert (await undo).kind == "done"
        story = await finished(client, id)
        assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "late")
        assert env.log().count("do x") == 1
    assert await env.effects() == []


async def test_an_undone_step_that_the_saga_lacks_is_refused(env: Environment) -> None:
    async with env.serving(with_step(STEPS["an action"])) as client:
        id = await begin(client, "line")
        await waits_at(client, id, "go")
        await delete_run(client.temporal, id)
        location = await client.locator.locate(id)
        with pytest.raises(UsageError, match=f"{id} has no step goo; did you mean go") as refusal:
            await start_again(client, location, undone=["goo"], not_ended=True)
        assert refusal.value.help == "its steps are a, x, go, z"
