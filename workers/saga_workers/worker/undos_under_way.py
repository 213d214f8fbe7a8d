"""Waits for undos of an earlier run that are under way: their transactions may commit after its run was deleted, and
nothing that is stored tells of them until then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass

from saga_activities.connections import DatabaseConnections
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.transaction import RowOp
from sagas.errors import SagaError
from sagas.settings import Settings

_WAIT = 20.0
"""Seconds for one of them. Whoever waits tries again after that."""

_POOL_SIZE = 4


@dataclass(frozen=True, slots=True)
class PossibleUndo:
    """The row that the undo of an entry writes in the guard of a connection."""

    connection: str
    key: EntryKey
    op: RowOp


async def await_undos(settings: Settings, undos: Collection[PossibleUndo]) -> None:
    """Return when none of them is under way any more. Raises SagaError if one still is, or a guard does not answer."""
    if not undos:
        return
    names = {undo.connection for undo in undos}
    chosen = [connection for connection in settings.sql_connections() if connection.name in names]
    databases = DatabaseConnections(chosen, pool_size=_POOL_SIZE)
    gate = asyncio.Semaphore(_POOL_SIZE)

    async def wait(undo: PossibleUndo) -> None:
        async with gate:
            guard = databases.guard(undo.connection)
            ended = await guard.await_row(undo.key, undo.op, deadline=time.time() + _WAIT)
        if ended.kind != "done":
            why = ended.failure.message if ended.failure else ended.kind
            raise SagaError(f"whether the undo of {undo.key.entry} is under way is not known: {why}")

    try:
        async with asyncio.TaskGroup() as group:
            for undo in undos:
                group.create_task(wait(undo))
    except* SagaError as errors:
        raise errors.exceptions[0] from None
    finally:
        await databases.close()
