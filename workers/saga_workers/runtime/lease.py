"""Leases: which relay serves a shard. A lease is a row with an owner and an expiry time on the database's clock.

The lease only keeps two live relays from fencing each other again and again; correctness does not rest on it. A relay
that sleeps past its lease and goes on is stopped by Kafka, because its producer has been fenced: by
``Publisher.fence_and_open`` of its successor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.concurrency import end_tasks
from saga_activities.guard.tables import now_sql
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.logs import fields
from saga_workers.runtime.process_identity import owner_is_dead

LEASE_TERM = 6.0
"""Seconds a lease lasts unless it is renewed."""

RENEWAL_INTERVAL = LEASE_TERM / 3
"""Seconds between two renewals, and between two polls of a relay that waits for the lease."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that this process holds. ``epoch`` grows by one with every change of owner."""

    shard: int
    owner: str
    epoch: int


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The current or last owner of a lease; ``expired`` is judged by the database's clock."""

    owner: str
    epoch: int
    expired: bool


class Leases:
    """The leases of one outbox. Each statement is a transaction of its own. Methods raise SQLAlchemyError."""

    def __init__(self, engine: AsyncEngine, owner: str, term: float = LEASE_TERM) -> None:
        self._engine, self._owner, self._term = engine, owner, term
        now = now_sql(engine.dialect.name)
        self._read = text(
            f"SELECT shard, owner, epoch, CASE WHEN until < {now} THEN 1 ELSE 0 END AS expired FROM saga_relay_lease"
        )
        self._insert = text("INSERT INTO saga_relay_lease (shard, owner, until, epoch) VALUES (:shard, '', 0, 0)")
        self._take = text(
            f"UPDATE saga_relay_lease SET owner = :owner, until = {now} + :term, epoch = epoch + 1 "
            "WHERE shard = :shard AND epoch = :epoch"
        )
        self._renew = text(
            f"UPDATE saga_relay_lease SET until = {now} + :term "
            "WHERE shard = :shard AND epoch = :epoch AND owner = :owner"
        )
        self._release = text(
            "UPDATE saga_relay_lease SET until = 0 WHERE shard = :shard AND epoch = :epoch AND owner = :owner"
        )

    async def holders(self) -> dict[int, LeaseHolder]:
        """Shard → its current or last owner."""
        async with self._engine.connect() as connection:
            rows = (await connection.execute(self._read)).all()
        return {row.shard: LeaseHolder(row.owner, row.epoch, bool(row.expired)) for row in rows}

    async def acquire(self, shard: int) -> Lease | None:
        """Acquire the lease if it is released, expired, or owned by a dead process of this machine; else None."""
        holder = (await self.holders()).get(shard)
        async with self._engine.connect() as connection:
            if holder is None:
                try:
                    await connection.execute(self._insert, {"shard": shard})
                except IntegrityError:
                    return None  # another relay came first; the next poll shows it
                holder = LeaseHolder("", 0, expired=True)
            if not (holder.expired or owner_is_dead(holder.owner)):
                return None
            values = {"shard": shard, "epoch": holder.epoch, "owner": self._owner, "term": self._term}
            taken = (await connection.execute(self._take, values)).rowcount == 1
        return Lease(shard, self._owner, holder.epoch + 1) if taken else None

    async def renew(self, lease: Lease) -> bool:
        """Extend the lease by one term; False if it has another owner by now."""
        values = {"shard": lease.shard, "epoch": lease.epoch, "owner": lease.owner, "term": self._term}
        async with self._engine.connect() as connection:
            return (await connection.execute(self._renew, values)).rowcount == 1

    async def release(self, lease: Lease) -> None:
        """Release the lease at once, so that nobody has to wait until it expires."""
        values = {"shard": lease.shard, "epoch": lease.epoch, "owner": lease.owner}
        async with self._engine.connect() as connection:
            await connection.execute(self._release, values)


log = logging.getLogger("saga.relay")

_STATEMENT_TIMEOUT = RENEWAL_INTERVAL


@contextlib.asynccontextmanager
async def hold_lease(leases: Leases, lease: Lease) -> AsyncIterator[asyncio.Event]:
    """Renew the lease while the block runs and release it at the end; the yielded event is set if the lease is lost."""
    lost = asyncio.Event()
    renewing = asyncio.create_task(_renew_until_lost(leases, lease, lost))
    try:
        yield lost
    finally:
        await end_tasks([renewing])
        if not lost.is_set():
            try:
                async with asyncio.timeout(_STATEMENT_TIMEOUT):
                    await leases.release(lease)
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                log.debug(
                    "lease not released, it will expire: %s", driver_message(error), extra=fields(shard=lease.shard)
                )


async def _renew_until_lost(leases: Leases, lease: Lease, lost: asyncio.Event) -> None:
    good_until = time.monotonic() + LEASE_TERM
    while not lost.is_set():
        await asyncio.sleep(RENEWAL_INTERVAL)
        asked = time.monotonic()
        try:
            async with asyncio.timeout(_STATEMENT_TIMEOUT):
                ours = await leases.renew(lease)
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            log.debug("lease not renewed: %s", driver_message(error), extra=fields(shard=lease.shard))
            if time.monotonic() > good_until:
                lost.set()
            continue
        good_until = asked + LEASE_TERM
        if not ours:
            lost.set()
