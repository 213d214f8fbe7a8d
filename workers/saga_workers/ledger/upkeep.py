"""Upkeep of the ledger inside every `saga worker`: partitions of the months to come, and deletion of what is old."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta

from sqlalchemy.exc import SQLAlchemyError

from saga_activities.connections import DatabaseConnections
from saga_activities.ledger.retention import PurgeResult, maintain
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.lock_waits import LockWatch, has_waited_too_long, limit_lock_waits
from saga_workers.runtime.logs import fields
from saga_workers.temporal.server_time import ServerTime
from sagas.errors import SagaError
from sagas.settings.masking import mask

log = logging.getLogger("saga.upkeep")

INTERVAL = 3600.0
"""Seconds between two rounds."""


async def maintain_ledger_forever(
    databases: DatabaseConnections, connection: str, retention: float, server_time: ServerTime
) -> None:
    """One round now and one every hour, for the sagas that ended more than ``retention`` seconds ago.

    Several workers may do this at once. An error is logged, and the next round tries again.
    """
    while True:
        now = await server_time.now()
        if now is not None:
            await maintain_ledger(databases, connection, retention, now)
        await asyncio.sleep(INTERVAL)


async def maintain_ledger(
    databases: DatabaseConnections, connection: str, retention: float, now: float
) -> PurgeResult | None:
    """One round at ``now``, in seconds since the epoch.

    None after an error, which is logged, as who holds a lock that is not granted in time.
    """
    about = fields(connection=connection)
    try:
        done = await _maintain(databases, connection, retention, datetime.fromtimestamp(now, UTC))
    except (SagaError, SQLAlchemyError, OSError) as error:
        log.warning("ledger not purged: %s", driver_message(error), extra=about)
        return None
    if done.refused is not None:
        log.warning("partitions of the ledger are neither created nor dropped: %s", mask(done.refused), extra=about)
    if done.dropped or done.deleted:
        log.info("ledger purged, %d months dropped, %d rows deleted", len(done.dropped), done.deleted, extra=about)
    return done


async def _maintain(databases: DatabaseConnections, connection: str, retention: float, now: datetime) -> PurgeResult:
    """One round over a pool of its own: its limit for locks is not that of attempts."""
    engine = databases.separate_engine(connection, pool_size=2)  # one of them reads who holds a lock
    limit_lock_waits(engine)
    watch = LockWatch(engine, connection, None)
    watch.statement = "the upkeep of the ledger"
    try:
        async with watch.running():
            return await maintain(engine, now=now, before=now - timedelta(seconds=retention))
    except SQLAlchemyError as error:
        if has_waited_too_long(error):
            raise watch.timeout() from error
        raise
    finally:
        await engine.dispose()
