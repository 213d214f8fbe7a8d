"""Starts that were refused, so that nobody knows a saga of their ids: what has their inputs all the same.

That are enqueued rows, in clear, and the histories of bulk workflows and of runs that never became a saga.
"""

from __future__ import annotations

import asyncio

import sqlalchemy as sa

from saga_activities.enqueued.tables import DROPPED, REFUSED, enqueued_table
from saga_activities.table_names import table_names
from saga_workers.location.locator import Locator
from saga_workers.privacy.histories import delete_histories, histories_place, saga_runs
from saga_workers.privacy.places import ForgottenPlace
from saga_workers.privacy.shared_histories import SharedRuns, shared_histories, shared_runs
from saga_workers.runtime.databases import command_database
from sagas.project import Project
from sagas.settings import Settings, SqlConnection
from sagas.text.shortening import counted

_TIMEOUT = 60.0


async def is_refused_start(locator: Locator, settings: Settings, saga_id: str) -> bool:
    """True if nobody knows a saga of this id, and a refused or dropped row or a bulk workflow has it, or a forget of
    such rows was interrupted. Raises SagaError.
    """
    if (await locator.locate(saga_id)).kind != "unknown":
        return False
    if await locator.ledger.is_forgetting(saga_id):
        return True
    if any([await _change(each, saga_id, delete=False) for each in settings.sql_connections()]):
        return True
    return bool((await _shared_runs(locator, settings, saga_id)).given)


async def forget_refused_start(
    locator: Locator, settings: Settings, saga_id: str, *, who: str, reason: str, delete_run: bool
) -> list[ForgottenPlace]:
    """Delete the refused and dropped rows of an id, and record that; name the histories that have its input.

    Raises SagaError: then it is to be repeated.
    """
    ledger = locator.ledger
    await ledger.begin_forgetting([saga_id], who=who, reason=reason)
    places: list[ForgottenPlace] = []
    for connection in settings.sql_connections():
        rows = await _change(connection, saga_id, delete=True)
        status = "deleted" if rows else "nothing"
        places.append(ForgottenPlace(f"{connection.name}: rows of saga_enqueued", status, counted(rows, "row")))
    shared = await _shared_runs(locator, settings, saga_id)
    definitions = await asyncio.to_thread(lambda: Project(settings).definitions)
    runs = await saga_runs(locator.temporal, saga_id, [saga_id])
    if runs and delete_run:
        places.append(await delete_histories(locator.temporal, runs))
    elif runs:
        places.append(await histories_place(locator.temporal, runs, None))
    places += await shared_histories(locator.temporal, shared, shared.sensitive_values(definitions))
    await ledger.complete_forgetting([saga_id])
    return places


async def _shared_runs(locator: Locator, settings: Settings, saga_id: str) -> SharedRuns:
    """The bulk workflows of the project that were given this id: nobody knows for which definition."""
    return await shared_runs(locator.temporal, saga_id, None, queue=settings.temporal.task_queue)


async def _change(connection: SqlConnection, saga_id: str, *, delete: bool) -> int:
    """The number of these rows, which are deleted or only counted; a row that is tried again meanwhile stays."""
    columns = enqueued_table.c
    chosen = sa.and_(columns.saga_id == saga_id, columns.status.in_((REFUSED, DROPPED)))
    what = f"the enqueued rows of {connection.name} cannot be read"
    async with command_database(connection, what, _TIMEOUT) as engine, engine.connect() as database:
        if enqueued_table.name not in await table_names(database):
            return 0
        if delete:
            return (await database.execute(sa.delete(enqueued_table).where(chosen))).rowcount
        return int((await database.execute(sa.select(sa.func.count()).where(chosen))).scalar_one())
