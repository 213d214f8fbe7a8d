"""The semantic locks of a project, and those whose saga has ended without releasing them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from sqlalchemy.exc import SQLAlchemyError
from temporalio.client import Client as Temporal

from saga_activities.connections import DatabaseConnections
from saga_activities.locks import lock_list
from saga_activities.locks.lock_activities import LockActivities
from saga_activities.locks.lock_list import LockedKey, OpenRequest
from saga_workers.location.locator import Locator
from saga_workers.runtime.database_access import unusable
from saga_workers.runtime.databases import open_command_engine
from saga_workers.temporal.temporal_client import signal_granted_saga
from sagas.errors import SagaError, UsageError
from sagas.settings import Settings, SqlConnection

_CONCURRENCY = 16
_RELEASE_SECONDS = 30.0


def lock_connection(settings: Settings) -> SqlConnection:
    """The connection of the lock tables. Raises UsageError if the project has none."""
    if settings.lock_connection is None:
        raise UsageError(
            "the project has no database for locks", help='connection = "NAME" under [locks] or [ledger] in saga.toml'
        )
    return settings.sql_connection(settings.lock_connection)


async def list_locks(settings: Settings, keys: Sequence[str] = (), limit: int = lock_list.MAX_KEYS) -> list[LockedKey]:
    """The first keys that are held or waited for, at most ``limit``; ``keys``: only these. Raises SagaError."""
    connection = lock_connection(settings)
    engine = open_command_engine(connection)
    try:
        return await lock_list.read_locks(engine, keys, limit)
    except (SQLAlchemyError, OSError) as error:
        raise _unreadable(connection, error) from error
    finally:
        await engine.dispose()


async def list_orphans(locator: Locator, settings: Settings) -> list[OpenRequest]:
    """The requests whose workflow, and its undo, is not running any more. Raises SagaError, RPCError."""
    connection = lock_connection(settings)
    engine = open_command_engine(connection)
    gate = asyncio.Semaphore(_CONCURRENCY)

    async def is_over(request: OpenRequest) -> bool:
        async with gate:
            return (await locator.within_temporal().locate(request.workflow_id)).open_run is None

    try:
        requests = await lock_list.open_requests(engine)
        over = await asyncio.gather(*map(is_over, requests))
        candidates = [request for request, ended in zip(requests, over, strict=True) if ended]
        if not candidates:
            return []
        # Its saga may have released it since: a run closes after the release.
        still = set(await lock_list.open_requests(engine))
        return [candidate for candidate in candidates if candidate in still]
    except (SQLAlchemyError, OSError) as error:
        raise _unreadable(connection, error) from error
    finally:
        await engine.dispose()


async def release_orphan(temporal: Temporal, settings: Settings, owner: str, holder: str) -> str | None:
    """Release what the holder has, and wake the sagas that waited for it; returns why that failed, or None."""
    connection = lock_connection(settings)
    databases = DatabaseConnections([connection], pool_size=1)
    try:
        locks = LockActivities(databases, lambda workflow_id: signal_granted_saga(temporal, workflow_id))
        now = time.time()
        outcome = await locks.release(connection.name, owner, holder, scheduled_at=now, deadline=now + _RELEASE_SECONDS)
    finally:
        await databases.close()
    if outcome.kind == "done":
        return None
    return outcome.failure.message if outcome.failure else outcome.kind


def _unreadable(connection: SqlConnection, error: Exception) -> SagaError:
    return unusable(connection, f"the locks in the connection {connection.name} cannot be read", error)
