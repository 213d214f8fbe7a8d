"""Reads the lock tables for operators: who holds each key, who waits for it, and which requests are open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.database_clock import DatabaseNow
from saga_activities.locks.tables import lock_table, request_table, wait_table
from sagas.definition.times import format_timestamp

MAX_KEYS = 10_000
"""Keys that are listed, and requests that are read at once."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A saga that waits for a key, since when in seconds since the epoch."""

    saga_id: str
    since: float

    def to_json(self) -> dict[str, Any]:
        return {"saga_id": self.saga_id, "since": format_timestamp(self.since)}


@dataclass(frozen=True, slots=True)
class LockedKey:
    """One key with its owner (None: only waited for, by requests that also wait for other keys) and its waiters, in
    the order of their arrival.
    """

    key: str
    owner: str | None
    since: float | None
    waiters: tuple[Waiter, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "owner": self.owner,
            "since": format_timestamp(self.since),
            "waiters": [waiter.to_json() for waiter in self.waiters],
        }


async def read_locks(engine: AsyncEngine, keys: Sequence[str] = (), limit: int = MAX_KEYS) -> list[LockedKey]:
    """The first keys, in their order, that are held or waited for, at most ``limit``, with all that wait for them;
    ``keys``: only these. Raises SQLAlchemyError.
    """
    used = sa.union(sa.select(lock_table.c.key), sa.select(wait_table.c.key)).subquery()
    first = sa.select(used.c.key).order_by(used.c.key).limit(limit)
    if keys:
        first = first.where(used.c.key.in_(keys))
    listed = first.subquery()
    held = sa.select(lock_table).join(listed, lock_table.c.key == listed.c.key)
    waited = sa.select(wait_table).join(listed, wait_table.c.key == listed.c.key).order_by(wait_table.c.position)
    async with engine.connect() as connection:
        locks = {row.key: row for row in (await connection.execute(held)).all()}
        waiters: dict[str, list[Waiter]] = {}
        for row in (await connection.execute(waited)).all():
            waiters.setdefault(row.key, []).append(Waiter(row.saga_id, row.since))
    return [
        LockedKey(
            key,
            locks[key].saga_id if key in locks else None,
            locks[key].acquired_at if key in locks else None,
            tuple(waiters.get(key, ())),
        )
        for key in sorted({*locks, *waiters})
    ]


@dataclass(frozen=True, slots=True)
class LockAges:
    """Seconds since the oldest held lock was granted, and since the oldest request that waits was made; 0.0: none."""

    held: float
    waiting: float


async def read_ages(engine: AsyncEngine) -> LockAges:
    """The ages of the oldest rows, by the clock of the database. Raises SQLAlchemyError."""
    query = sa.select(
        DatabaseNow(),
        sa.select(sa.func.min(lock_table.c.acquired_at)).scalar_subquery(),
        sa.select(sa.func.min(wait_table.c.since)).scalar_subquery(),
    )
    async with engine.connect() as connection:
        now, acquired_at, since = (await connection.execute(query)).one()
    return LockAges(*(0.0 if at is None else max(0.0, now - at) for at in (acquired_at, since)))


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request that holds keys, or waits for them (``waits``), and the workflow that has made it."""

    owner: str
    holder: str
    workflow_id: str
    keys: tuple[str, ...]
    waits: bool
    since: float


async def open_requests(engine: AsyncEngine) -> list[OpenRequest]:
    """The requests with the oldest rows in the tables, sorted by holder: one whose saga has ended without a release
    is among them sooner or later. Raises SQLAlchemyError.
    """
    requests = request_table.c
    held = (
        sa.select(lock_table, requests.workflow_id)
        .join_from(lock_table, request_table, lock_table.c.holder == requests.holder, isouter=True)
        .order_by(lock_table.c.acquired_at)
        .limit(MAX_KEYS)
    )
    waited = (
        sa.select(wait_table, requests.holder, requests.workflow_id)
        .join_from(wait_table, request_table, wait_table.c.position == requests.position)
        .where(requests.status == "waiting")
        .order_by(wait_table.c.since)
        .limit(MAX_KEYS)
    )
    open_requests: dict[tuple[str, bool], OpenRequest] = {}
    async with engine.connect() as connection:
        for waits, query in ((False, held), (True, waited)):
            for row in (await connection.execute(query)).all():
                since = row.since if waits else row.acquired_at
                request = open_requests.get((row.holder, waits))
                keys = sorted((*request.keys, row.key)) if request else [row.key]
                # Without its request, which was purged or deleted by hand, the holder names the workflow.
                workflow_id = row.workflow_id or row.holder.partition("~")[0]
                open_requests[row.holder, waits] = OpenRequest(
                    row.saga_id,
                    row.holder,
                    workflow_id,
                    tuple(keys),
                    waits,
                    min(since, request.since if request else since),
                )
    return [open_requests[name] for name in sorted(open_requests)]
