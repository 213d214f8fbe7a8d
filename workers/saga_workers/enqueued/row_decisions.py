"""Enqueued rows as operators see them, and their decisions about them: try again, or never."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.enqueued.tables import DROPPED, NEW, REFUSED
from saga_activities.guard.stored_values import is_encrypted, stored_values
from saga_activities.guard.tables import now_sql
from saga_activities.input_limits import MAX_ENQUEUED_BYTES, MAX_ENQUEUED_NAME
from saga_activities.value_places import enqueued_place
from saga_workers.enqueued.written_text import NotText, column_sql, column_text, shown_text
from saga_workers.runtime.databases import command_database
from sagas.errors import RefusedError, UsageError
from sagas.input_limits import MAX_SAGA_ID_BYTES
from sagas.settings import Settings
from sagas.text.shell import saga_command

_TIMEOUT = 15.0

_SELECT = (
    "SELECT id, status, {saga} AS saga, {saga_id} AS saga_id, {signal_name} AS signal_name, {now} - created_at AS age, "
    "substr(reason, 1, 1000) AS reason FROM saga_enqueued WHERE {statuses} ORDER BY id LIMIT :limit"
)
_RETRY = text(
    f"UPDATE saga_enqueued SET status = '{NEW}', reason = NULL, dropped_at = NULL WHERE id = :id AND status <> '{NEW}'"
)
_RETRY_ALL = text(f"UPDATE saga_enqueued SET status = '{NEW}', reason = NULL WHERE status = '{REFUSED}'")
_DROP = (
    f"UPDATE saga_enqueued SET status = '{DROPPED}', reason = :reason, dropped_at = {{now}}, "
    f"input = coalesce(:input, input) WHERE id = :id AND status <> '{DROPPED}'"
)
_STATUS = "SELECT status, {saga_id} AS saga_id FROM saga_enqueued WHERE id = :id"
_INPUT = f"SELECT uid, {{input}} AS input FROM saga_enqueued WHERE id = :id AND length(input) <= {MAX_ENQUEUED_BYTES}"


@dataclass(frozen=True, slots=True)
class ListedRow:
    """``age``: seconds since it was written. ``reason``: why it waits or is refused, or who dropped it, and why."""

    connection: str
    row: int
    status: str
    saga: str | None
    saga_id: str | None
    signal: str | None
    age: float
    reason: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "connection": self.connection,
            "row": self.row,
            "status": self.status,
            "saga": self.saga,
            "id": self.saga_id,
            "signal": self.signal,
            "age_seconds": round(self.age, 3),
            "reason": self.reason,
        }


async def list_rows(
    settings: Settings, connection: str | None, statuses: Sequence[str] | None, limit: int
) -> list[ListedRow]:
    """The oldest rows of these statuses; None: of all but the dropped ones, also of one that another program has
    written, which is never delivered. Raises UsageError without ``[enqueue]``, and SagaError for a database that
    does not answer.
    """
    listed: list[ListedRow] = []
    for name in _names(settings, connection):
        async with enqueued_database(settings, name) as engine:
            listed += await read_rows(name, engine, statuses, limit)
    return listed


async def read_rows(name: str, engine: AsyncEngine, statuses: Sequence[str] | None, limit: int) -> list[ListedRow]:
    """The oldest rows of one database; see :func:`list_rows`. Raises SQLAlchemyError."""
    condition = f"status <> '{DROPPED}'" if statuses is None else "status IN :statuses"
    dialect = engine.dialect.name
    query = text(_SELECT.format(now=now_sql(dialect), statuses=condition, **_texts(dialect))).bindparams(limit=limit)
    if statuses is not None:
        query = query.bindparams(bindparam("statuses", list(statuses), expanding=True))
    async with engine.connect() as connection:
        rows = (await connection.execute(query)).all()
    return [
        ListedRow(
            name,
            row.id,
            row.status,
            shown_text(row.saga),
            shown_text(row.saga_id),
            shown_text(row.signal_name),
            row.age,
            row.reason,
        )
        for row in rows
    ]


def _texts(dialect: str) -> dict[str, str]:
    """The expressions for the columns that the writer of a row chooses, cut to a length that can be shown."""
    lengths = {"saga": MAX_ENQUEUED_NAME, "saga_id": MAX_SAGA_ID_BYTES, "signal_name": MAX_ENQUEUED_NAME}
    return {name: column_sql(f"substr({name}, 1, {length})", dialect) for name, length in lengths.items()}


async def retry_row(settings: Settings, connection: str | None, row: int) -> str:
    """Deliver a refused or dropped row again. Raises UsageError, RefusedError, and SagaError as :func:`list_rows`."""
    name = _one_name(settings, connection)
    async with enqueued_database(settings, name) as engine:
        await _decide(engine, _RETRY, row, {"id": row}, "tried again")
    return f"row {row} of {name} will be delivered"


async def retry_refused(settings: Settings, connection: str | None) -> int:
    """Deliver all refused rows again; their number. Raises UsageError and SagaError as :func:`list_rows`."""
    count = 0
    for name in _names(settings, connection):
        async with enqueued_database(settings, name) as engine, engine.connect() as database:
            count += (await database.execute(_RETRY_ALL)).rowcount
    return count


async def drop_row(settings: Settings, connection: str | None, row: int, *, reason: str, who: str) -> str:
    """Never deliver this row. Raises UsageError, RefusedError, and SagaError as :func:`list_rows`."""
    name = _one_name(settings, connection)
    values: dict[str, Any] = {"id": row, "reason": f"dropped: {who}: {reason}"}
    async with enqueued_database(settings, name) as engine:
        values["input"] = await _encrypted_input(engine, row)
        drop = text(_DROP.format(now=now_sql(engine.dialect.name)))
        before = await _decide(engine, drop, row, values, "dropped")
    saga_id = shown_text(before.saga_id)
    look = saga_command("show", saga_id) if saga_id is not None else "saga list"
    late = f", unless a delivery was under way: {look}" if before.status == NEW else ""
    return f"row {row} of {name} will not be delivered{late}"


async def _encrypted_input(engine: AsyncEngine, row: int) -> str | None:
    """The input of a row as it is kept until the row is deleted; None: as it is."""
    values = stored_values(engine)
    async with engine.connect() as database:
        query = text(_INPUT.format(input=column_sql("input", engine.dialect.name)))
        stored = (await database.execute(query, {"id": row})).first()
    try:
        input = None if stored is None else column_text(stored.input)
    except NotText:
        return None
    if stored is None or is_encrypted(input):
        return None
    return values.encrypt_json(enqueued_place(stored.uid), input)


async def _decide(engine: AsyncEngine, statement: Any, row: int, values: Any, what: str) -> Any:
    """The row as it was before."""
    look = text(_STATUS.format(saga_id=column_sql("saga_id", engine.dialect.name)))
    async with engine.connect() as database:
        before = (await database.execute(look, {"id": row})).first()
        if before is None:
            raise UsageError(
                f"there is no row {row}: it was delivered, or never written",
                help="saga enqueued list    shows the rows",
            )
        if (await database.execute(statement, values)).rowcount != 1:
            raise RefusedError(f"row {row} is {before.status}, so it cannot be {what}")
    return before


def _names(settings: Settings, connection: str | None) -> tuple[str, ...]:
    names = settings.enqueue.connections
    if not names:
        raise UsageError(
            "no database of the project has enqueued rows", help="set connections under [enqueue] in saga.toml"
        )
    if connection is None:
        return names
    if connection not in names:
        raise UsageError(f"{connection} is not among the connections of [enqueue]", help=f"--connection {names[0]}")
    return (connection,)


def _one_name(settings: Settings, connection: str | None) -> str:
    first, *others = _names(settings, connection)
    if others:
        raise UsageError(
            "the numbers of rows belong to their databases, and [enqueue] has several", help=f"--connection {first}"
        )
    return first


@asynccontextmanager
async def enqueued_database(settings: Settings, name: str) -> AsyncIterator[AsyncEngine]:
    """The database of a connection. Raises SagaError if it does not answer the body in time."""
    what = f"the enqueued rows of {name} cannot be read"
    async with command_database(settings.sql_connection(name), what, _TIMEOUT) as engine:
        yield engine
