"""The lock tables on each database: the order of arrival, no deadlock, nothing left, attempts that come late."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from sqlalchemy import text

from saga_activities.guard import watermark
from saga_activities.locks.lock_list import open_requests, read_locks
from saga_activities.locks.lock_table import Answer, Granted, LockTable
from saga_activities.locks.tables import create_tables
from tests.helpers.sampling import scaled
from tests.helpers.waiting import LIMIT
from tests.integration.guard.conftest import GuardDatabase

pytestmark = pytest.mark.sampled(turns="guard_database")


class Locks:
    """The lock table of one database; ids and keys of a test are its own."""

    def __init__(self, database: GuardDatabase) -> None:
        self.database = database
        self.table = LockTable("shop", database.engine)
        self.prefix = f"{uuid4()}-"

    async def acquire(self, owner: str, *keys: str, holder: str | None = None, waits: bool = True) -> Answer:
        name = self.prefix + owner
        now = time.time()
        outcome = await self.table.acquire(
            [self.prefix + key for key in keys],
            owner=name,
            holder=self.prefix + (holder or owner),
            workflow_id=name,
            waits=waits,
            scheduled_at=now,
            deadline=now + 60,
        )
        assert outcome.kind == "done", outcome
        return outcome.result

    async def release(self, owner: str, holder: str | None = None) -> list[str]:
        """The holders that are granted their locks and do not know it yet."""
        now = time.time()
        outcome = await self.table.release(
            owner=self.prefix + owner, holder=self.prefix + (holder or owner), scheduled_at=now, deadline=now + 60
        )
        assert outcome.kind == "done", outcome
        told: list[Granted] = outcome.result
        return [message.holder.removeprefix(self.prefix) for message in told if message.holder.startswith(self.prefix)]

    async def held(self) -> dict[str, str | None]:
        locks = await read_locks(self.database.engine)
        return {
            lock.key.removeprefix(self.prefix): lock.owner and lock.owner.removeprefix(self.prefix)
            for lock in locks
            if lock.key.startswith(self.prefix)
        }


@pytest_asyncio.fixture
async def locks(guard_database: GuardDatabase) -> AsyncIterator[Locks]:
    await create_tables(guard_database.engine)
    await create_tables(guard_database.engine)
    yield Locks(guard_database)


async def test_requests_are_granted_all_or_none_and_in_the_order_of_their_arrival(locks: Locks) -> None:
    assert (await locks.acquire("a", "x", "y")).answer == "granted"
    second = await locks.acquire("b", "y", "z")
    assert (second.answer, [(blocker.key[-1], blocker.owner[-1]) for blocker in second.blockers]) == (
        "waiting",
        [("y", "a")],
    )
    third = await locks.acquire("c", "z")
    assert [blocker.owner[-1] for blocker in third.blockers] == ["b"]
    assert (await locks.acquire("d", "z", waits=False)).answer == "refused"
    assert (await locks.acquire("e", "free", waits=False)).answer == "granted"
    assert await locks.release("a") == ["b"]
    assert await locks.held() == {"y": "b", "z": "b", "free": "e"}
    assert (await locks.acquire("c", "z")).answer == "waiting"
    assert await locks.release("b") == ["c"]
    granted = await locks.acquire("c", "z")
    assert granted.answer == "granted"
    assert granted.waited is not None
    for owner in ("c", "e", "d"):
        await locks.release(owner)
    assert await locks.held() == {}


async def test_everything_may_be_repeated(locks: Locks) -> None:
    for _ in range(2):
        assert (await locks.acquire("a", "x")).answer == "granted"
        assert (await locks.acquire("b", "x")).answer == "waiting"
    for _ in range(2):
        assert await locks.release("a") == ["b"]
    for _ in range(2):
        assert (await locks.acquire("b", "x")).answer == "granted"
    assert await locks.release("a") == []
    assert await locks.held() == {"x": "b"}
    await locks.release("b")


async def test_an_attempt_after_the_release_gets_nothing(locks: Locks) -> None:
    await locks.release("never")
    assert (await locks.acquire("never", "x")).answer == "late"
    await locks.acquire("a", "x")
    await locks.acquire("b", "x")
    await locks.release("b")
    assert (await locks.acquire("b", "x")).answer == "late"
    assert await locks.release("a") == []
    assert (await locks.acquire("a", "x")).answer == "late"
    assert await locks.held() == {}


async def test_a_waiter_that_withdraws_lets_the_next_ones_pass(locks: Locks) -> None:
    await locks.acquire("a", "x")
    await locks.acquire("b", "x", "y")
    await locks.acquire("c", "y")
    assert await locks.release("b") == ["c"]
    assert await locks.held() == {"x": "a", "y": "c"}
    for owner in ("a", "c"):
        await locks.release(owner)


async def test_an_owner_re_enters_and_each_part_releases_its_own(locks: Locks) -> None:
    await locks.acquire("a", "x")
    await locks.acquire("b", "x", "y")
    assert (await locks.acquire("a", "x", "y", holder="a/child")).answer == "granted"
    assert (await locks.acquire("a", "y", holder="a/other")).answer == "granted"
    assert await locks.release("a", "a/child") == []
    assert await locks.held() == {"x": "a", "y": "a"}
    assert await locks.release("a", "a/other") == []
    assert await locks.held() == {"x": "a", "y": None}
    assert await locks.release("a") == ["b"]
    await locks.release("b")
    assert await locks.held() == {}


@pytest.mark.sampled
@pytest.mark.parametrize("keys", [1, 4])
async def test_many_sagas_run_one_after_the_other(locks: Locks, keys: int) -> None:
    """Each asks until it is granted, holds for a moment and releases; none overtakes, and nothing is left."""
    random.seed(keys)
    count = scaled(8, 20)
    names = [f"k{number}" for number in range(keys)]
    wanted = {f"s{number}": random.sample(names, random.randint(1, keys)) for number in range(count)}
    holding: dict[str, str] = {}
    woken = {saga: asyncio.Event() for saga in wanted}
    order: list[str] = []

    async def live(saga: str) -> None:
        while (await locks.acquire(saga, *wanted[saga])).answer != "granted":
            await asyncio.wait_for(woken[saga].wait(), LIMIT)
            woken[saga].clear()
        order.append(saga)
        for key in wanted[saga]:
            assert holding.setdefault(key, saga) == saga, f"{key} is held by {holding[key]} and {saga}"
        await asyncio.sleep(random.random() / 1000)
        for key in wanted[saga]:
            del holding[key]
        for told in await locks.release(saga):
            woken[told].set()

    await asyncio.gather(*map(live, wanted))
    assert sorted(order) == sorted(wanted)
    assert await locks.held() == {}
    assert [
        request for request in await open_requests(locks.database.engine) if request.owner.startswith(locks.prefix)
    ] == []


@pytest.mark.sampled  # where requests race, each database locks its rows in its own way
async def test_requests_are_served_in_the_order_of_their_arrival(locks: Locks) -> None:
    await locks.acquire("first", "k")
    waiting = [f"w{number:02}" for number in range(scaled(6, 12))]
    for saga in waiting:
        assert (await locks.acquire(saga, "k")).answer == "waiting"
    served, holder = [], "first"
    for _ in waiting:
        await locks.release(holder)
        actual_locks = await read_locks(locks.database.engine, [locks.prefix + "k"])
        holder = str(actual_locks[0].owner).removeprefix(locks.prefix)
        assert [waiter.saga_id.removeprefix(locks.prefix) for waiter in actual_locks[0].waiters] == waiting[
            len(served) + 1 :
        ]
        assert (await locks.acquire(holder, "k")).answer == "granted"
        served.append(holder)
    await locks.release(holder)
    assert served == waiting


async def test_a_list_has_the_first_keys_with_all_that_wait_for_them(locks: Locks) -> None:
    await locks.acquire("first", "a", "c")
    await locks.acquire("second", "b", "c")
    await locks.acquire("third", "c")
    keys = [locks.prefix + key for key in "abc"]
    expected = [("a", "first", 0), ("b", "", 1), ("c", "first", 2)]
    for limit in (3, 2):
        listed = await read_locks(locks.database.engine, keys, limit)
        told = [(lock.key[-1], (lock.owner or "").removeprefix(locks.prefix), len(lock.waiters)) for lock in listed]
        assert told == expected[:limit]
    assert [lock.key for lock in await read_locks(locks.database.engine, keys[2:], 1)] == keys[2:]
    for owner in ("first", "second", "third"):
        await locks.release(owner)


async def test_requests_are_purged_with_the_rows_of_their_saga(locks: Locks) -> None:
    """Below the watermark only, and never those of a saga with a later request: an attempt may still be late."""
    for owner in ("old", "young", "mixed"):
        await locks.acquire(owner, "x")
        await locks.release(owner)
    await locks.acquire("mixed", "x", holder="mixed~2")
    await locks.release("mixed", "mixed~2")
    async with locks.database.engine.begin() as connection:
        for holder in ("old", "mixed"):
            await connection.execute(
                text("update saga_lock_request set created_at = 10 where holder = :holder"),
                {"holder": locks.prefix + holder},
            )
    await watermark.clean_up(
        locks.database.engine,
        oldest_open=None,
        now=100.0,
        longest_transaction=0.0,
        retention=50.0,
        more_tables=["saga_lock_request"],
    )
    requests = await locks.database.rows(
        "select holder from saga_lock_request where holder like :mine", mine=locks.prefix + "%"
    )
    assert {row.holder.removeprefix(locks.prefix) for row in requests} == {"young", "mixed", "mixed~2"}
    assert (await locks.acquire("mixed", "x")).answer == "late"


async def test_other_applications_can_look(locks: Locks) -> None:
    await locks.acquire("a", "x")
    quote = "`" if locks.database.kind == "mariadb" else '"'
    rows: list[Any] = await locks.database.rows(
        f"select saga_id from saga_lock where {quote}key{quote} = :key", key=locks.prefix + "x"
    )
    assert [row.saga_id for row in rows] == [locks.prefix + "a"]
    await locks.release("a")
    async with locks.database.engine.connect() as connection:
        for table in ("saga_lock", "saga_lock_wait"):
            count = (await connection.execute(text(f"select count(*) from {table}"))).scalar()
            assert count == 0
