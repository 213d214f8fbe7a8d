"""Concurrent chunks whose calls meet on a few rows with mixed amounts: the servers count their deadlocks."""

from __future__ import annotations

import asyncio
import random
import time
from uuid import uuid4

import pytest

from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.bulk.chunk_performer import ChunkPerformer
from sagas.actions.registry import Actions
from sagas.protocol.messages import GuardSpec
from sagas.protocol.payloads import Invocation, idempotency_key
from tests.helpers.sampling import mostly_slow
from tests.integration.guard.conftest import GuardDatabase, new_attempt

CALLS, ROWS, STREAMS = 40, 12, 6
SECONDS = {"a few seconds": 4, "a minute": 60}
TABLES = (
    "create table if not exists met_stock (sku varchar(20) primary key, free int not null)",
    "create table if not exists met_total (amount int not null, account varchar(20) primary key)",
)
STOCK = "update met_stock set free = free - :amount where free >= :amount and sku = :name"
TOTAL = {
    "postgres": "insert into met_total (amount, account) values (:amount, :name)"
    " on conflict (account) do update set amount = met_total.amount + :amount",
    "mariadb": "insert into met_total (amount, account) values (:amount, :name)"
    " on duplicate key update amount = met_total.amount + :amount",
}
DEADLOCKS = {
    "postgres": "select deadlocks from pg_stat_database where datname = current_database()",
    "mariadb": "select variable_value from information_schema.global_status where variable_name = 'Innodb_deadlocks'",
}


def call(statement: str, dice: random.Random) -> Invocation:
    saga_id = f"met-{uuid4()}"
    parameters = {"amount": dice.randint(1, 99), "name": f"row-{dice.randrange(ROWS)}"}
    arguments = {"run": statement, "params": parameters}
    key = idempotency_key(saga_id, "meet", 1, "")
    return Invocation("sql", arguments, key, saga_id, "meet", "do", 1, guard=GuardSpec("shop", "decide"), saga="order")


@pytest.mark.parametrize("seconds", mostly_slow(SECONDS, {"a few seconds"}, SECONDS))
@pytest.mark.parametrize("guard_database", ["postgres", "mariadb"], indirect=True)
async def test_chunks_never_deadlock_with_each_other(guard_database: GuardDatabase, seconds: int) -> None:
    for table in TABLES:
        await guard_database.rows(table)
    for number in range(ROWS):
        await guard_database.rows("delete from met_stock where sku = :sku", sku=f"row-{number}")
        await guard_database.rows("insert into met_stock values (:sku, 1000000)", sku=f"row-{number}")
    performer = ChunkPerformer(guard_database.guard, ActionBodies(Actions()))
    before, until, done = await _deadlocks(guard_database), time.monotonic() + seconds, 0

    async def stream(seed: int) -> None:
        nonlocal done
        dice = random.Random(seed)
        while time.monotonic() < until:
            statement = dice.choice((STOCK, TOTAL[guard_database.kind]))
            outcomes = await performer.perform([call(statement, dice) for _ in range(CALLS)], new_attempt())
            # On a busy machine a call may wait for a row for longer than it may: it would be tried again.
            done += [outcome.kind for outcome in outcomes if outcome].count("done")

    await asyncio.gather(*(stream(seed) for seed in range(STREAMS)))
    assert done > CALLS, "more than one chunk met others"
    await asyncio.sleep(1.5)  # PostgreSQL's sessions report their counts at most once a second
    assert await _deadlocks(guard_database) == before


async def _deadlocks(database: GuardDatabase) -> int:
    [(count,)] = await database.rows(DEADLOCKS[database.kind])
    return int(count)
