"""Automatic compensation in the guard's transaction, on every database: images, restoration, locks and refusals."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from sqlalchemy import text

from saga_activities.automatic import row_locks
from saga_activities.automatic.image_recorder import MAX_ROWS
from saga_activities.bodies.sql_action import restore_body, sql_body
from saga_activities.guard import EntryKey
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from tests.integration.guard.conftest import GuardDatabase, clock, new_attempt

COLUMNS = "sku varchar(20) not null primary key, free integer, price numeric(10, 2), note varchar(200)"


class Shop:
    """A guard's database with one table `stock` of this test, and steps with `compensate: auto` on it."""

    def __init__(self, database: GuardDatabase) -> None:
        self.database = database
        self.id = uuid4().hex[:12]
        self.table = f"stock_{self.id}"

    @property
    def kind(self) -> str:
        return self.database.kind

    async def sql(self, statement: str, **values: Any) -> list[Any]:
        return await self.database.rows(statement.replace("stock", self.table), **values)

    async def stock(self) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.sql("select * from stock order by sku")]

    async def do(self, run: Any, saga: str = "first", step: str = "take", **params: Any) -> Outcome:
        statements = [{"sql": one, "params": params} for one in ([run] if isinstance(run, str) else run)]
        written = [{**one, "sql": one["sql"].replace("stock", self.table)} for one in statements]
        entry = self.entry(saga, step)
        arguments = {"connection": "shop", "run": written}
        invocation = Invocation(
            "sql", arguments, str(entry), entry.saga_id, step, "do", 1, guard=GuardSpec("shop", images=True)
        )
        return await self.database.guard.do(entry, "h", sql_body(arguments, invocation, new_attempt()), **clock())

    async def undo(self, saga: str = "first", step: str = "take") -> Outcome:
        entry = self.entry(saga, step)
        invocation = Invocation("sql.restore", {}, str(entry), entry.saga_id, step, "undo", 1, guard=GuardSpec("shop"))
        body = restore_body({}, invocation, new_attempt())
        return await self.database.guard.undo(entry, body, known_done=True, **clock())

    def entry(self, saga: str, step: str) -> EntryKey:
        return EntryKey(f"{saga}-{self.id}", step)

    async def release(self, saga: str) -> None:
        await row_locks.release(self.database.engine, f"{saga}-{self.id}")

    def upsert(self, sku: str = ":sku", free: str = ":free") -> str:
        clause = (
            "on duplicate key update free = free + values(free)"
            if self.kind == "mariadb"
            else "on conflict (sku) do update set free = stock.free + excluded.free"
        )
        return f"insert into stock (sku, free) values ({sku}, {free}) {clause}"


@pytest_asyncio.fixture
async def shop(guard_database: GuardDatabase) -> AsyncIterator[Shop]:
    shop = Shop(guard_database)
    await shop.sql(f"create table stock ({COLUMNS})")
    await shop.sql(r"insert into stock values ('a', 5, 1.50, 'it''s \: %'), ('b', 7, 2.5, null), ('c', 0, 3, '')")
    yield shop
    await shop.sql("drop table stock")


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


@pytest.mark.parametrize(("run", "params"), STATEMENTS, ids=[one[0][0] for one in STATEMENTS])
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
    kinds = [one.kind if one.kind == "done" else one.failure and one.failure.type for one in outcomes]
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
    """Only where the database does not return the new keys; and in an upsert."""
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


# Random statements and random foreign changes: after the undo every row is as before, or nothing was overwritten

KEYS = ("a", "b", "c", "d", "e")
NOTES = ("null", "'plain'", "''", "'  spaces '", "'zero\u200bwidth'", "'quo''te'", "'%s {} \\:x'", "'Ä'")
PRICES = ("null", "0", "1.50", "99999999.99", "-0.01")

ROUNDS = 25
LONG_ROUNDS = 400


def random_statement(shop: Shop, chance: random.Random) -> str:
    """One statement that the step may run."""
    key, note_text, price = f"'{chance.choice(KEYS)}'", chance.choice(NOTES), chance.choice(PRICES)
    free = chance.randrange(9)
    return chance.choice(
        [
            f"update stock set free = free + {free}, note = {note_text} where sku = {key}",
            f"update stock set price = {price} where free >= {free}",
            f"update stock set free = {free}, price = {price}, note = {note_text}",
            f"delete from stock where sku = {key}",
            f"delete from stock where free < {free}",
            shop.upsert(key, str(free)),
            shop.upsert(key, str(free)),
            f"insert into stock (sku, free, note) values ('n{uuid4().hex[:12]}', {free}, {note_text})",
        ]
    )


def random_foreign_change(chance: random.Random) -> str:
    key = f"'{chance.choice(KEYS)}'"
    return chance.choice(
        [
            f"update stock set free = {chance.randrange(9)} where sku = {key}",
            f"update stock set note = {chance.choice(NOTES)} where sku = {key}",
            f"delete from stock where sku = {key}",
            f"update stock set price = {chance.choice(PRICES)}",
        ]
    )


async def run_round(shop: Shop, chance: random.Random) -> str:
    """Four rows, a step of one to four statements, perhaps foreign changes, and its undo. Returns how it ended."""
    await shop.sql("delete from stock")
    for key in chance.sample(KEYS, 4):
        free, price, text = chance.randrange(9), chance.choice(PRICES), chance.choice(NOTES)
        await shop.sql(f"insert into stock values ('{key}', {free}, {price}, {text})")
    saga = f"saga-{uuid4().hex[:8]}"
    statements = [random_statement(shop, chance) for _ in range(chance.randrange(1, 5))]
    changes = [random_foreign_change(chance) for _ in range(chance.choice((0, 0, 1, 2)))]
    note(f"rows: {await shop.stock()}, the step: {statements}, foreign changes: {changes}")
    try:
        return await run_step(shop, saga, statements, changes)
    finally:
        await shop.release(saga)


async def run_step(shop: Shop, saga: str, statements: list[str], changes: list[str]) -> str:
    before = await shop.stock()
    done = await shop.do(statements, saga=saga)
    assert done.kind == "done", done
    for change in changes:
        await shop.sql(change)
    changed = await shop.stock()
    images = await shop.sql(
        "select distinct row_key from saga_image where saga_id = :id and sequence > 0",
        id=shop.entry(saga, "take").saga_id,
    )
    touched = {row[0] for row in images}
    undone = await shop.undo(saga)
    after = await shop.stock()
    if undone.kind == "done":
        assert _of(after, touched, shop) == _of(before, touched, shop)
        assert _others(after, touched, shop) == _others(changed, touched, shop)
        return "restored"
    assert undone.park_reason is not None, undone
    assert after == changed
    return "parked"


def _key_text(row: tuple[Any, ...], shop: Shop) -> str:
    text = f"text:{row[0].encode().hex().upper()}" if shop.kind == "sqlite" else row[0]
    return f'["{text}"]'


def _of(rows: list[tuple[Any, ...]], keys: set[str], shop: Shop) -> list[tuple[Any, ...]]:
    return [row for row in rows if _key_text(row, shop) in keys]


def _others(rows: list[tuple[Any, ...]], keys: set[str], shop: Shop) -> list[tuple[Any, ...]]:
    return [row for row in rows if _key_text(row, shop) not in keys]


@pytest.fixture
def ends() -> Iterator[set[str]]:
    """How the rounds have ended: both ways, or the rounds have shown nothing."""
    found: set[str] = set()
    yield found
    assert found == {"restored", "parked"}


def rounds(count: int) -> settings:
    """Of the same examples each time, unless there are many."""
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=count < 100,
        suppress_health_check=[HealthCheck.function_scoped_fixture],  # each example empties the table
    )


@rounds(ROUNDS)
@given(chance=st.randoms(use_true_random=False))
async def test_every_row_is_restored_or_nothing_is_changed(shop: Shop, ends: set[str], chance: random.Random) -> None:
    ends.add(await run_round(shop, chance))


@pytest.mark.slow
@rounds(LONG_ROUNDS)
@given(chance=st.randoms(use_true_random=False))
async def test_many_random_steps(shop: Shop, ends: set[str], chance: random.Random) -> None:
    ends.add(await run_round(shop, chance))
