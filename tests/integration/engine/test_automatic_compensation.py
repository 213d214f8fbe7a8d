"""`compensate: auto` on a real server: restored on rollback and by `saga undo`, parked, and rows of other sagas."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.client import WorkflowUpdateFailedError

from sagas import Rejected
from sagas.machine.locking import row_locks
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import (
    Environment,
    begin,
    gate,
    handle,
    resolve,
    row,
    run_saga,
    wait_for_event,
)

ORDER = """
    saga: order
    input: {type: object, properties: {sku: {type: string, default: A}}}
    steps:
      - id: take
        uses: sql
        with:
          connection: shop
          run:
            - sql: update stock set free = free - 1 where sku = :sku
              params: {sku: "${{ input.sku }}"}
              expect_rows: 1
            - {sql: "insert into taken (sku) values (:sku)", params: {sku: "${{ input.sku }}"}}
        compensate: auto
      - {id: pay, uses: work, compensate: unwork}
"""


async def prepare(env: Environment) -> None:
    async with env.engine.begin() as connection:
        await connection.execute(text("create table stock (sku text primary key, free integer not null)"))
        await connection.execute(text("create table taken (id integer primary key, sku text)"))
        await connection.execute(text("insert into stock values ('A', 5), ('B', 5)"))


async def rows(env: Environment, statement: str) -> list[Any]:
    async with env.engine.begin() as connection:
        result = await connection.execute(text(statement))
        return [tuple(values) for values in result] if result.returns_rows else []


async def stock(env: Environment) -> dict[str, int]:
    return dict(await rows(env, "select sku, free from stock"))


async def released(env: Environment) -> None:
    """The final state is visible a moment before the run has released its rows and closes."""

    async def nothing_is_locked() -> bool:
        return await rows(env, "select * from saga_row_lock") == []

    await until(nothing_is_locked)


async def test_a_rollback_restores_the_rows_and_releases_them(env: Environment) -> None:
    await prepare(env)
    env.plan["do pay"] = [Rejected("no credit")]
    async with env.serving(ORDER) as client:
        story = await run_saga(client, "order")
        await released(env)
    assert (story["state"], row(story, "take")["state"]) == ("COMPENSATED", "COMPENSATED")
    assert story["row_locks"] == ["shop"]
    assert await stock(env) == {"A": 5, "B": 5}
    assert await rows(env, "select * from taken") == []


async def test_a_finished_saga_is_undone_from_its_images(env: Environment) -> None:
    await prepare(env)
    async with env.serving(ORDER) as client:
        story = await run_saga(client, "order")
        assert (story["state"], await stock(env)) == ("COMPLETED", {"A": 4, "B": 5})
        await released(env)
        await client.undo(story["id"], reason="returned", who="ada")
        undone = await finished(client, story["id"])
        await released(env)
    assert (undone["state"], await stock(env)) == ("COMPENSATED", {"A": 5, "B": 5})


async def test_a_row_changed_by_hand_parks_the_undo_until_it_is_repaired(env: Environment) -> None:
    await prepare(env)
    move, begun, go = gate()
    env.plan["do pay"] = [move]
    async with env.serving(ORDER) as client:
        id = await begin(client, "order")
        await wait_for_event(begun)
        await rows(env, "update stock set free = 40 where sku = 'A'")
        await client.cancel(id, reason="the customer left")
        go.set()
        parked = await finished(client, id)
        assert parked["state"] == "PARKED"
        assert parked["parked"][0]["why"] == (
            "the row sku=A of stock has been changed since by something without automatic compensation "
            "(free: 40 instead of 4, before the step 5)"
        )
        assert await stock(env) == {"A": 40, "B": 5}
        assert len(await rows(env, "select * from taken")) == 1
        assert parked["parked"][0]["system"] == "shop"
        assert parked["parked"][0]["rows"] == [
            {
                "row": "the row sku=A of stock",
                "table": "stock",
                "key": {"sku": "A"},
                "before": {"free": "5"},
                "after": {"free": "4"},
                "now": {"free": "40"},
                "changed_by": "something without automatic compensation",
            }
        ]
        await rows(env, "update stock set free = 4 where sku = 'A'")
        story = await resolve(client, id, "take", "retry")
    assert (story["state"], await stock(env)) == ("COMPENSATED", {"A": 5, "B": 5})


BUMP = """
    saga: bump
    steps:
      - id: add
        uses: sql
        with: {connection: shop, run: "update stock set free = free + 3 where sku = 'A'"}
        compensate: auto
"""


async def test_a_parked_undo_of_a_finished_saga_keeps_its_rows(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(env)
    async with env.serving(BUMP) as client:
        first = await run_saga(client, "bump")
        other = await run_saga(client, "bump")
        await rows(env, "update stock set free = 40 where sku = 'A'")
        await released(env)
        await client.undo(first["id"], reason="returned", who="ada")
        parked = await finished(client, first["id"])
        by = f"something without automatic compensation and step add of the saga {other['id']}"
        assert parked["state"] == "PARKED"
        assert parked["parked"][0]["why"] == (
            f"the row sku=A of stock has been changed since by {by} (free: 40 instead of 8, before the step 5)"
        )
        assert await rows(env, "select saga_id from saga_row_lock") == [(first["id"],)]
        monkeypatch.setattr(row_locks, "DEFAULT_WAIT", 0.0)
        refused = await run_saga(client, "bump")
        assert (refused["state"], refused["reason"]["type"]) == ("COMPENSATED", "RowLocked")
        await paste(env, parked["parked"][0]["sql"])
        await client.resolve(first["id"], {"step": "add", "decision": "retry", "reason": "restored", "who": "ada"})
        assert (await finished(client, first["id"]))["state"] == "COMPENSATED"
        await released(env)
        assert (await run_saga(client, "bump"))["state"] == "COMPLETED"
    assert (await stock(env))["A"] == 8


async def parked_by_hand(env: Environment, client: Any, begun: Any, go: Any) -> dict[str, Any]:
    """A saga whose undo is parked, because somebody has changed a row of its step."""
    id = await begin(client, "order")
    await wait_for_event(begun)
    await rows(env, "update stock set free = 40 where sku = 'A'")
    await client.cancel(id, reason="the customer left")
    go.set()
    story = await finished(client, id)
    assert story["state"] == "PARKED"
    return story


async def paste(env: Environment, statements: list[str]) -> None:
    async with env.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        for statement in statements:
            await connection.exec_driver_sql(statement)


@pytest.mark.parametrize("decision", ["retry", "done"])
async def test_the_sql_of_a_parked_undo_restores_its_rows(env: Environment, decision: str) -> None:
    await prepare(env)
    move, begun, go = gate()
    env.plan["do pay"] = [move]
    async with env.serving(ORDER) as client:
        parked = await parked_by_hand(env, client, begun, go)
        await paste(env, parked["parked"][0]["sql"])
        assert (await stock(env), await rows(env, "select * from taken")) == ({"A": 5, "B": 5}, [])
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await resolve(client, parked["id"], "take", "retry", **{"with": {"connection": "shop", "run": "select 1"}})
        assert "the undo of take takes no arguments" in str(refused.value.cause)
        evidence = {"evidence": "restored by the SQL of saga show"} if decision == "done" else {}
        story = await resolve(client, parked["id"], "take", decision, **evidence)
    assert (story["state"], story["residue"]) == ("COMPENSATED", [])
    assert (await stock(env), await rows(env, "select * from taken")) == ({"A": 5, "B": 5}, [])


async def test_the_residue_of_a_skipped_undo_names_its_rows(env: Environment) -> None:
    await prepare(env)
    move, begun, go = gate()
    env.plan["do pay"] = [move]
    async with env.serving(ORDER) as client:
        parked = await parked_by_hand(env, client, begun, go)
        story = await resolve(client, parked["id"], "take", "skip")
        residue = story["residue"]
        assert story["state"] == "RESIDUE"
        assert [(left_effect["step"], left_effect["kind"], left_effect["system"]) for left_effect in residue] == [
            ("take", "effect_stays", "shop")
        ] * 2
        assert {left_effect["key"] for left_effect in residue} == {"the row sku=A of stock", "the row id=1 of taken"}
        assert await stock(env) == {"A": 40, "B": 5}
        await paste(env, [line for left_effect in residue for line in left_effect["command"].splitlines()])
    assert (await stock(env), await rows(env, "select * from taken")) == ({"A": 5, "B": 5}, [])


async def test_another_saga_waits_for_the_row(env: Environment) -> None:
    await prepare(env)
    move, begun, go = gate()
    env.plan["do pay"] = [move, {"value": 1}]
    async with env.serving(ORDER) as client:
        first = await begin(client, "order")
        await wait_for_event(begun)
        second = await begin(client, "order")
        other_row = await run_saga(client, "order", {"sku": "B"})
        assert other_row["state"] == "COMPLETED"

        async def waits() -> bool:
            return row((await client.show(second)), "take")["error"] is not None

        await until(waits)
        assert await stock(env) == {"A": 4, "B": 4}
        go.set()
        stories = [await finished(client, first), await finished(client, second)]
    assert [document["state"] for document in stories] == ["COMPLETED", "COMPLETED"]
    assert await stock(env) == {"A": 3, "B": 4}


@pytest.mark.slow
async def test_the_wait_for_a_row_does_not_count_a_pause(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    await prepare(env)
    move, begun, go = gate()
    env.plan["do pay"] = [move, {"value": 1}]
    async with env.serving(ORDER) as client:
        first = await begin(client, "order")
        await wait_for_event(begun)
        second = await begin(client, "order")

        async def waits() -> bool:
            return row((await client.show(second)), "take")["error"] is not None

        async def attempts() -> int:
            events = (await handle(client, second).fetch_history()).events
            return sum(event.HasField("activity_task_scheduled_event_attributes") for event in events)

        await until(waits)
        since = time.monotonic()
        await client.pause(second)
        await asyncio.sleep(8)
        monkeypatch.setattr(row_locks, "DEFAULT_WAIT", time.monotonic() - since)
        before = await attempts()
        await client.resume(second)

        async def has_met_the_row_again() -> bool:
            return await attempts() >= before + 2 or (await client.view(second)).state != "RUNNING"

        await until(has_met_the_row_again)
        assert (await client.view(second)).state == "RUNNING"
        go.set()
        stories = [await finished(client, first), await finished(client, second)]
    assert [document["state"] for document in stories] == ["COMPLETED", "COMPLETED"]


async def test_a_saga_that_waits_too_long_is_rejected(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    await prepare(env)
    monkeypatch.setattr(row_locks, "DEFAULT_WAIT", 0.0)
    move, begun, go = gate()
    env.plan["do pay"] = [move]
    async with env.serving(ORDER) as client:
        first = await begin(client, "order")
        await wait_for_event(begun)
        refused = await run_saga(client, "order")
        go.set()
        assert (await finished(client, first))["state"] == "COMPLETED"
    assert (refused["state"], refused["reason"]["kind"], refused["reason"]["type"]) == (
        "COMPENSATED",
        "rejected",
        "RowLocked",
    )
    assert f"locked by the saga {first}" in refused["reason"]["message"]
    assert await stock(env) == {"A": 4, "B": 5}


PARENT = """
    saga: parent
    steps:
      - {id: order, uses: saga, with: {name: order, input: {}}}
      - {id: ship, uses: plain, compensate: unwork}
"""


async def test_the_rows_of_a_nested_saga_are_released_by_its_root(env: Environment) -> None:
    await prepare(env)
    move, begun, go = gate()
    env.plan["do ship"] = [move]
    async with env.serving(ORDER, PARENT) as client:
        id = await begin(client, "parent")
        await wait_for_event(begun)
        assert {owner for (owner,) in await rows(env, "select saga_id from saga_row_lock")} == {id}
        go.set()
        story = await finished(client, id)
        await released(env)
    assert (story["state"], story["row_locks"], await stock(env)) == ("COMPLETED", ["shop"], {"A": 4, "B": 5})
