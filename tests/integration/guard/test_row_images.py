"""Automatic compensation in the guard's transaction, on every database: images, restoration, locks and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from saga_activities.automatic.image_recorder import MAX_ROWS
from saga_activities.connection_health import has_answered
from saga_activities.guard.entry_key import EntryKey
from sagas.protocol.outcomes import Outcome
from tests.integration.guard.row_image_shop import Shop, shop

__all__ = ["shop"]  # a fixture

STATEMENTS = [
    (["update stock set free = free - :n where sku = :sku"], {"n": 2, "sku": "a"}),
    (["update stock set free = 1, note = null, price = price * 2"], {}),
    (["update stock set free = 9 where sku = 'missing'"], {}),
    (["delete from stock where free > 1"], {}),
    (["delete from stock"], {}),
    (["insert into stock (sku, free) values ('d', 1), ('e', 2)"], {}),
    (["insert into stock (sku) values ('d')", "update stock set free = 3 where sku = 'd'", "delete from stock"], {}),
    (["delete from stock where sku = 'a'", "insert into stock (sku, free) values ('a', 1)"], {}),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("run", "params"), STATEMENTS, ids=[statement[0][0] for statement in STATEMENTS])
async def test_the_undo_restores_every_row(shop: Shop, run: list[str], params: dict[str, Any]) -> None:
    before = await shop.stock()
    assert (await shop.do(run, **params)).kind == "done"
    after = await shop.stock()
    assert (before != after) == ("missing" not in run[0])
    undone = await shop.undo()
    assert (undone.kind, await shop.stock()) == ("done", before), undone
    assert (await shop.undo()).result == undone.result
    assert (await shop.do(run, **params)).kind == "late"


@pytest.mark.parametrize("sku", ["a", "new"])
async def test_an_upsert_is_an_update_or_an_insert(shop: Shop, sku: str) -> None:
    before = await shop.stock()
    assert (await shop.do(shop.upsert(), sku=sku, free=10)).kind == "done"
    assert {row[0]: row[1] for row in await shop.stock()}[sku] == (15 if sku == "a" else 10)
    assert (await shop.undo()).result == {"restored": 1}
    assert await shop.stock() == before


async def test_the_result_has_only_what_the_author_returns(shop: Shop) -> None:
    if shop.kind == "mariadb":
        assert (await shop.do("insert into stock (sku, free) values ('d', 1) returning free")).result == [{"free": 1}]
        return
    assert (await shop.do("insert into stock (sku, free) values ('d', 1) returning *")).result == [
        {"sku": "d", "free": 1, "price": None, "note": None}
    ]
    assert (await shop.do("update stock set free = 2 where sku = 'd' returning free", step="b")).result == [{"free": 2}]


CHANGES = {
    "update stock set free = 99 where sku = 'a'": "free: 99 instead of 4, before the step 5",
    "update stock set note = null where sku = 'a'": "note: NULL instead of ",
    "delete from stock where sku = 'a'": "the row was deleted",
}


@pytest.mark.sampled
@pytest.mark.parametrize(("change", "difference"), CHANGES.items())
async def test_a_foreign_change_parks_the_undo_and_nothing_is_overwritten(
    shop: Shop, change: str, difference: str
) -> None:
    await shop.do(["update stock set free = free - 1 where sku in ('a', 'b')"])
    await shop.sql(change)
    changed = await shop.stock()
    outcome = await shop.undo()
    assert outcome.park_reason is not None
    assert "has been changed since by something without automatic compensation" in outcome.park_reason
    assert difference in outcome.park_reason
    assert await shop.stock() == changed
    await shop.sql("delete from stock where sku = 'a'")
    await shop.sql(r"insert into stock values ('a', 5, 1.50, 'it''s \: %')")  # repaired: as before the step
    assert (await shop.undo()).result == {"restored": 1}
    assert (await shop.stock())[1][1] == 7


async def test_a_row_with_the_key_of_a_deleted_one_is_not_overwritten(shop: Shop) -> None:
    await shop.do("delete from stock where sku = 'a'")
    await shop.sql("insert into stock (sku, free) values ('a', 1)")
    outcome = await shop.undo()
    assert "a row with this key was inserted" in str(outcome.park_reason)
    assert ("a", 1) in [row[:2] for row in await shop.stock()]


async def test_the_reason_names_the_saga_that_changed_the_row(shop: Shop) -> None:
    await shop.do("update stock set free = 1 where sku = 'a'")
    await shop.release("first")
    await shop.do("update stock set free = 2 where sku = 'a'", saga="second", step="other")
    refused = await shop.undo()
    assert (refused.kind, refused.infrastructure) == ("failed", True)
    assert has_answered(refused, is_database=True)
    assert (failure := refused.failure) is not None
    assert f"locked by the saga second-{shop.id} since 20" in failure.message
    assert failure.message.endswith("Z, so it cannot be restored yet")
    assert refused.failure.details["owner"] == f"second-{shop.id}"
    await shop.release("second")
    outcome = await shop.undo()
    assert f"changed since by step other of the saga second-{shop.id}" in str(outcome.park_reason)


async def test_rows_of_one_saga_never_interleave_with_those_of_another(shop: Shop) -> None:
    await shop.do("update stock set free = 1 where sku = 'a'")
    for statement in (
        "update stock set note = 'x' where sku = 'a'",
        "delete from stock",
        shop.upsert("'a'", "1"),
    ):
        refused = await shop.do(statement, saga="second")
        assert refused.failure is not None
        assert (refused.kind, refused.failure.type, refused.counted) == ("failed", "RowLocked", False)
        assert refused.failure.details["owner"] == f"first-{shop.id}"
        assert "the row sku=a of" in refused.failure.message
    assert (await shop.do("update stock set note = 'x' where sku = 'b'", saga="second", step="b")).kind == "done"
    assert (await shop.do("update stock set free = 2 where sku = 'a'", step="again")).kind == "done"
    assert (await shop.undo(step="again")).kind == (await shop.undo()).kind == "done"
    await shop.release("first")
    assert (await shop.do("update stock set free = 3 where sku = 'a'", saga="second")).kind == "done"


async def test_a_deleted_key_stays_locked(shop: Shop) -> None:
    await shop.do("delete from stock where sku = 'a'")
    refused = await shop.do("insert into stock (sku) values ('a')", saga="second")
    assert refused.failure is not None
    assert refused.failure.type == "RowLocked"


async def test_concurrent_steps_on_a_row_take_turns(shop: Shop) -> None:
    outcomes = await asyncio.gather(
        *(shop.do("update stock set free = free + 1 where sku = 'b'", saga=f"saga{n}") for n in range(6))
    )
    kinds = [
        outcome.kind if outcome.kind == "done" else outcome.failure and outcome.failure.type for outcome in outcomes
    ]
    assert kinds.count("done") == 1
    assert set(kinds) <= {"done", "RowLocked", "Infrastructure"}
    assert (await shop.stock())[1][1] == 8


async def test_missing_images_park_the_undo(shop: Shop) -> None:
    await shop.do("update stock set free = 1 where sku = 'a'")
    await shop.sql(
        "delete from saga_image where saga_id = :id and sequence = 1", id=shop.entry("first", "take").saga_id
    )
    outcome = await shop.undo()
    assert "the images of the changed rows are missing" in str(outcome.park_reason)


async def test_too_many_rows_are_refused_and_nothing_is_changed(shop: Shop) -> None:
    await shop.sql("insert into stock (sku) values " + ", ".join(f"('x{n}')" for n in range(MAX_ROWS + 1)))
    before = await shop.stock()
    for statement in ("update stock set free = 0", "delete from stock"):
        outcome = await shop.do(statement, step=statement[:6])
        assert outcome.failure is not None
        assert (outcome.kind, outcome.retryable) == ("failed", False)
        assert f"more than {MAX_ROWS} rows" in outcome.failure.message
    assert await shop.stock() == before


async def test_a_killed_connection_leaves_nothing_half_done(shop: Shop) -> None:
    """The server ends the session of a do and of an undo that wait for a row, as it does for a killed worker."""
    if shop.kind != "postgres":
        pytest.skip("the sessions of others are seen and ended on PostgreSQL only")
    before = await shop.stock()
    run = ["update stock set note = 'x' where sku = 'b'", "update stock set free = 1 where sku = 'a'"]
    outcome = await killed_while_it_waits(shop, shop.do(run))
    assert (outcome.infrastructure, await shop.stock()) == (True, before)
    assert await shop.sql("select * from saga_image where saga_id = :id", id=shop.entry("first", "take").saga_id) == []
    assert (await shop.do(run)).kind == "done"
    after = await shop.stock()
    outcome = await killed_while_it_waits(shop, shop.undo())
    assert (outcome.infrastructure, await shop.stock()) == (True, after)
    assert ((await shop.undo()).result, await shop.stock()) == ({"restored": 2}, before)


async def killed_while_it_waits(shop: Shop, attempt: Coroutine[Any, Any, Outcome]) -> Outcome:
    blocked = (
        "select pid from pg_stat_activity where wait_event_type = 'Lock' and query like '%stock%'"
        " and pid <> pg_backend_pid()"
    )
    async with shop.database.engine.execution_options(isolation_level="READ COMMITTED").connect() as other:
        await other.execute(text(f"select * from {shop.table} where sku = 'a' for update"))
        task = asyncio.create_task(attempt)
        while not (pids := await shop.sql(blocked)):
            assert not task.done(), task
            await asyncio.sleep(0.02)
        await shop.sql("select pg_terminate_backend(cast(:pid as int))", pid=pids[0][0])
        outcome = await task
        await other.rollback()
    return outcome


# What the catalog refuses


async def refusal(shop: Shop, statement: str) -> str:
    before = await shop.stock()
    outcome = await shop.do(statement, saga=f"saga{uuid4().hex}")
    assert (outcome.kind, outcome.retryable, outcome.failure and outcome.failure.type) == (
        "failed",
        False,
        "definition",
    )
    assert await shop.stock() == before
    assert outcome.failure is not None
    return outcome.failure.message


async def test_a_table_without_primary_key_is_refused(shop: Shop) -> None:
    await shop.sql("create table stock_log (note varchar(10))")
    assert "has no primary key" in await refusal(shop, "insert into stock_log values ('x')")
    await shop.sql("drop table stock_log")


async def test_a_change_of_the_primary_key_is_refused(shop: Shop) -> None:
    """Refused where the database does not return the new keys; and in an upsert."""
    if shop.kind == "mariadb":
        assert "changes the primary key" in await refusal(shop, "update stock set sku = 'z' where sku = 'a'")
    upsert = shop.upsert("'a'", "1")
    assert "changes the primary key" in await refusal(shop, f"{upsert}, sku = 'z'")


async def test_a_missing_table_and_a_view_are_refused(shop: Shop) -> None:
    assert "there is no table" in await refusal(shop, "delete from stock_missing")
    await shop.sql("create view stock_view as select * from stock")
    assert "table" in await refusal(shop, "delete from stock_view")
    await shop.sql("drop view stock_view")


async def test_cascades_are_refused(shop: Shop) -> None:
    await shop.sql(
        "create table stock_line (id integer primary key, sku varchar(20),"
        " foreign key (sku) references stock (sku) on delete cascade on update set null)"
    )
    assert "changes rows of" in await refusal(shop, "delete from stock where sku = 'a'")
    assert "its undo, a delete from" in await refusal(shop, "insert into stock (sku) values ('z')")
    assert (await shop.do("update stock set free = 1 where sku = 'a'")).kind == "done"
    assert (await shop.undo()).kind == "done"
    await shop.sql("drop table stock_line")


async def test_triggers_are_refused_also_by_the_undo(shop: Shop) -> None:
    assert (await shop.do("update stock set free = 1 where sku = 'a'")).kind == "done"
    name = f"trigger_{shop.id}"
    if shop.kind == "postgres":
        await shop.sql(f"create function {name}() returns trigger language plpgsql as 'begin return new; end'")
        await shop.sql(f"create trigger {name} before update on stock for each row execute function {name}()")
    else:
        body = "set new.note = 'x'" if shop.kind == "mariadb" else "begin update stock set note = 'x'; end"
        when = "before" if shop.kind == "mariadb" else "after"
        await shop.sql(f"create trigger {name} {when} update on stock for each row {body}")
    assert f"has the trigger {name}" in await refusal(shop, "update stock set free = 2 where sku = 'b'")
    after = await shop.stock()
    assert f"has the trigger {name}" in str((await shop.undo()).park_reason)
    assert await shop.stock() == after


@pytest.mark.parametrize("place", ["check", "operator", "domain", "array"])
async def test_code_in_constraints_is_refused(shop: Shop, place: str) -> None:
    if shop.kind != "postgres":
        pytest.skip("functions in constraints are PostgreSQL's")
    name = f"f_{shop.id}_{place}"
    body = "begin insert into stock (sku) values ('by ' || $1); return true; end"
    await shop.sql(f"create function {name}(n int) returns bool language plpgsql as $${body}$$")
    column = {"check": f"int check ({name}(n))", "operator": "int check (n @@@@ 1)"}.get(place, f"d_{name}")
    if place == "operator":
        await shop.sql(f"create function {name}(n int, m int) returns bool language sql as 'select {name}(n)'")
        await shop.sql(f"create operator @@@@ (leftarg = int, rightarg = int, function = {name})")
    elif place in ("domain", "array"):
        await shop.sql(f"create domain e_{name} as int check ({name}(value))")
        await shop.sql(f"create domain d_{name} as e_{name}{'[]' if place == 'array' else ''}")
    await shop.sql(f"create table t_{name} (n {column}, id int primary key)")
    before = await shop.stock()
    assert f"calls the function {name}" in await refusal(shop, f"insert into t_{name} (id) values (1)")
    assert await shop.stock() == before
    if place == "check":
        harmless = "language plpgsql stable as $$begin return true; end$$"
        await shop.sql(f"create or replace function {name}(n int) returns bool {harmless}")
        assert (await shop.do(f"insert into t_{name} (id) values (1)")).kind == "done"


async def test_a_changed_table_parks_the_undo(shop: Shop) -> None:
    assert (await shop.do("update stock set free = 1 where sku = 'a'")).kind == "done"
    await shop.sql("alter table stock add column colour varchar(10)")
    assert "other columns than when the step ran" in str((await shop.undo()).park_reason)


async def test_images_are_purged_with_the_guard(shop: Shop) -> None:
    from saga_activities.guard import watermark

    entry = EntryKey(f"old-{uuid4()}", "take")
    for table, columns in (
        ("saga_guard", "saga_id, step, generation, op, reason, created_at) values (:id, 'take', 1, 'do', 'do', 1.0)"),
        (
            "saga_image",
            "saga_id, step, generation, sequence, statement, row_hash, table_name, row_key, created_at)"
            " values (:id, 'take', 1, 0, 0, '', '', '0', 1.0)",
        ),
    ):
        await shop.sql(f"insert into {table} ({columns}", id=entry.saga_id)
    await watermark.clean_up(shop.database.engine, oldest_open=None, now=100.0, longest_transaction=0, retention=90.0)
    for table in ("saga_guard", "saga_image"):
        assert await shop.sql(f"select 1 from {table} where saga_id = :id", id=entry.saga_id) == []
