"""A database whose statements fail, and steps that send them.

Each statement is preceded by one that writes, so that a refused attempt would leave a row if it were not rolled back.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from saga_activities.attempt_context import AttemptContext
from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.connections import DatabaseConnections
from saga_activities.dispatcher import Dispatcher
from saga_activities.http import HttpConnections
from sagas.actions.registry import ACTION_ATTRIBUTE, Actions, action
from sagas.actions.step import Step
from sagas.errors import Rejected
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation, idempotency_key
from sagas.settings import SqlConnection
from tests.integration.guard.conftest import GuardDatabase, new_attempt, open_guard_database

WRITE = "insert into trace_row values (:id)"

TABLES = (
    "create table trace_row (id varchar(200) primary key)",
    "create table stock (sku varchar(20) primary key, free int not null check (free >= 0))",
    "create table line (sku varchar(20) not null, foreign key (sku) references stock (sku))",
)
POSTGRES_TABLES = (
    "create extension if not exists btree_gist",
    "create table slot (room int, at int4range, exclude using gist (room with =, at with &&))",
    "create table amount_row (amount numeric(5,2), at date)",
    "create view totals as select sku, sum(free) as free from stock group by sku",
    "insert into slot values (1, '[1,5)')",
    "create sequence ticket",
    "create materialized view refreshed as select 1 as a with no data",
    "create function refuse(code text) returns void language plpgsql as $$ begin"
    " raise exception 'no' using errcode = code; end $$",
    "create table seat (n int)",
    "create function refuse_seat() returns trigger language plpgsql as $$ begin"
    " raise exception 'row 7 is Ada''s: no'; end $$",
    "create trigger refuses_seat before insert on seat for each row execute function refuse_seat()",
)
MARIADB_TABLES = (
    "create table amount_row (amount numeric(5,2), at date)",
    "create table seat (n int)",
    "create trigger refuses_seat before insert on seat for each row"
    " signal sqlstate '45000' set message_text = 'row 7 is Ada''s: no'",
)
SQLITE_TABLES = (
    "create table amount_row (amount int) strict",
    "create table numbered (id integer primary key)",
    "create table refusing (n int)",
    "create trigger refuses before insert on refusing begin select raise(abort, 'no'); end",
    "create table seat (n int)",
    "create trigger refuses_seat before insert on seat begin select"
    " case new.n when 1 then raise(abort, 'row 7 is Ada''s: no')"
    " when 2 then raise(fail, 'row 7 is Ada''s: no') else raise(rollback, 'row 7 is Ada''s: no') end;"
    " end",
)
ROWS = ("insert into stock values ('A', 5)", "insert into stock values ('B', 5)", "insert into line values ('B')")


async def open_shop(kind: str, url: str) -> GuardDatabase:
    """A database with the tables; on a server, with an account that may not use one of them."""
    opened = await open_guard_database(kind, url)
    own = {"postgresql": POSTGRES_TABLES, "mariadb": MARIADB_TABLES, "sqlite": SQLITE_TABLES}[kind]
    async with opened.engine.connect() as connection:
        for statement in (*TABLES, *own, *ROWS, *_limited_account(kind, url)):
            await connection.exec_driver_sql(statement)
        await connection.commit()
    if kind == "sqlite":
        return opened
    await opened.connections.close()
    limited = url.replace("://saga@", "://limited@").replace("://root@", "://limited@")
    connections = DatabaseConnections([SqlConnection(name="shop", url_setting=limited)], pool_size=10)
    return GuardDatabase(connections, kind, url)


def _limited_account(kind: str, url: str) -> tuple[str, ...]:
    owned = "create table only_for_the_owner (id int)"
    database = url.rpartition("/")[2]
    if kind == "postgresql":
        return (
            "do $$ begin create role limited login; exception when duplicate_object then null; end $$",
            "grant select, insert, update, delete on all tables in schema public to limited",
            "grant usage on all sequences in schema public to limited",
            owned,
        )
    if kind == "mariadb":
        tables = ("trace_row", "stock", "line", "amount_row", "seat", "saga_guard", "saga_watermark", "saga_outbox")
        return (
            owned,
            "create user if not exists limited@'%%'",
            *(f"grant select, insert, update, delete on {database}.{table} to limited@'%%'" for table in tables),
        )
    return (owned,)


@action("errors.raises", connection="shop")
async def raises(step: Step, id: str, statement: str) -> Any:
    await step.sql.execute(WRITE, id=id)
    await step.sql.execute(statement)


@action("errors.translates", connection="shop")
async def translates(step: Step, id: str, statement: str) -> Any:
    await step.sql.execute(WRITE, id=id)
    try:
        await step.sql.execute(statement)
    except Exception as error:
        raise RuntimeError("the stock system does not work") from error


@action("errors.rejects", connection="shop")
async def rejects(step: Step, id: str, statement: str) -> Any:
    await step.sql.execute(WRITE, id=id)
    try:
        await step.sql.execute(statement)
    except Exception as error:
        raise Rejected("not in stock") from error


@action("errors.one", connection="shop")
async def expects_one(step: Step, id: str, statement: str) -> Any:
    await step.sql.execute(WRITE, id=id)
    await step.sql.one(statement)


ACTIONS = Actions([getattr(function, ACTION_ATTRIBUTE) for function in (raises, translates, rejects, expects_one)])


def invocation(saga_id: str, op: str, statement: str, uses: str = "sql", **more: Any) -> Invocation:
    key = idempotency_key(saga_id, "charge", 1, op if op in ("undo", "confirm") else "")
    arguments: dict[str, Any] = {"id": saga_id, "statement": statement}
    if uses == "sql":
        arguments = {"run": [{"sql": WRITE, "params": {"id": saga_id}}, {"sql": statement}]}
    return Invocation(uses, arguments, key, saga_id, "charge", op, 1, 30.0, GuardSpec("shop", **more), saga="order")


def attempt_number(number: int, seconds: float = 30.0) -> AttemptContext:
    return replace(new_attempt(), number=number, deadline=time.time() + seconds)


def dispatcher(shop: GuardDatabase) -> Dispatcher:
    return Dispatcher(ActionBodies(ACTIONS), shop.connections, HttpConnections({}))


async def attempts(shop: GuardDatabase, call: Invocation) -> list[Outcome]:
    """Outcomes of as many attempts as Temporal makes at most, without the pauses between them."""
    made: list[Outcome] = []
    while len(made) < 5 and (not made or (made[-1].retryable and made[-1].kind != "done")):
        made.append(await dispatcher(shop).perform(call, attempt_number(len(made) + 1)))
    return made


async def traces(shop: GuardDatabase, saga_id: str) -> int:
    return (await shop.rows("select count(*) from trace_row where id = :id", id=saga_id))[0][0]


async def make_done(shop: GuardDatabase, saga_id: str) -> None:
    done = Invocation("sql", {"run": [{"sql": "select 1"}]}, "k", saga_id, "charge", "do", 1, guard=GuardSpec("shop"))
    assert (await dispatcher(shop).perform(done, attempt_number(1))).kind == "done"
