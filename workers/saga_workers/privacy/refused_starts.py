"""Enqueued rows that were refused or dropped before they started a saga: their inputs are in clear."""

from __future__ import annotations

import sqlalchemy as sa

from saga_activities.enqueued.tables import DROPPED, REFUSED, enqueued_table
from saga_activities.table_names import table_names
from saga_workers.location.locator import Locator
from saga_workers.privacy.places import ForgottenPlace
from saga_workers.runtime.databases import command_database
from sagas.settings import Settings, SqlConnection
from sagas.text.shortening import counted

_TIMEOUT = 60.0


async def is_refused_start(locator: Locator, settings: Settings, saga_id: str) -> bool:
    """True if nobody knows a saga of this id, and a refused or dropped row has it, or a forget of such rows was
    interrupted. Raises SagaError.
    """
    if (await locator.locate(saga_id)).kind != "unknown":
        return False
    if await locator.ledger.is_forgetting(saga_id):
        return True
    return any([await _change(each, saga_id, delete=False) for each in settings.sql_connections()])


async def forget_refused_start(
    locator: Locator, settings: Settings, saga_id: str, *, who: str, reason: str
) -> list[ForgottenPlace]:
    """Delete the refused and dropped rows of an id, and record that. Raises SagaError: then it is to be repeated."""
    ledger = locator.ledger
    await ledger.begin_forgetting([saga_id], who=who, reason=reason)
    places: list[ForgottenPlace] = []
    for connection in settings.sql_connections():
        rows = await _change(connection, saga_id, delete=True)
        status = "deleted" if rows else "nothing"
        places.append(ForgottenPlace(f"{connection.name}: rows of saga_enqueued", status, counted(rows, "row")))
    await ledger.complete_forgetting([saga_id])
    return places


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
