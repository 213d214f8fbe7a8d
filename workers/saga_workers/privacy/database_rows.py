"""Replaces the values of sagas in the rows that one database of the project has of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.enqueued import tables as enqueued
from saga_activities.guard.outbox_postgresql import outbox_rows
from saga_activities.guard.stored_values import StoredValues, stored_values
from saga_activities.guard.tables import guard_table, image_table, outbox_table, request_table
from saga_activities.guard.unreadable_rows import UnreadableRow
from saga_activities.messaging.outbox import DROPPED, PUBLISHED, decrypted_event
from saga_activities.table_names import table_names
from saga_activities.value_cipher import ENCRYPTED_TEXT
from saga_activities.value_places import event_place, request_place, result_place
from saga_workers.privacy.participant_rows import forget_commands
from saga_workers.privacy.places import ForgottenPlace
from saga_workers.privacy.replacement import WHOLE, Replacement, replaced_json, replaced_result
from saga_workers.runtime.databases import command_database
from sagas.portions import in_portions
from sagas.protocol.origin import forgotten_origin
from sagas.settings import SqlConnection
from sagas.text.shortening import counted, join_names

_TIMEOUT = 600.0
_IDS_AT_ONCE = 500


async def forget_in_database(
    connection: SqlConnection, saga_ids: Sequence[str], replacement: Replacement, *, replaced_before: bool = False
) -> list[ForgottenPlace]:
    """Replace the values of these sagas in a database. Each statement can be repeated. Raises SagaError.

    ``replaced_before``: only what may have stayed then, or come since, is looked at.
    """
    what = f"the rows of the connection {connection.name} cannot be changed"
    async with command_database(connection, what, _TIMEOUT) as engine, engine.connect() as database:
        tables = await table_names(database)
        rows = _Rows(engine, database, tables, saga_ids, replacement)
        places = [] if replaced_before else [await rows.guard(), await rows.starts(), await rows.images()]
        places += [await rows.requests(), await rows.outbox(), await rows.enqueued()]
        if guard_table.name in tables:
            places += await forget_commands(database, saga_ids, stored_values(engine), replacement)
    return [
        ForgottenPlace(f"{connection.name}: {place.place}", place.status, place.detail) for place in places if place
    ]


class _Rows:
    """The rows of some sagas in one database; each method is about one table, and None if there is no such table."""

    def __init__(
        self,
        engine: AsyncEngine,
        database: AsyncConnection,
        tables: Collection[str],
        saga_ids: Sequence[str],
        replacement: Replacement,
    ) -> None:
        self._database, self._tables = database, tables
        self._saga_ids, self._replacement = saga_ids, replacement
        self._values = stored_values(engine)
        self._dialect = engine.dialect.name

    async def guard(self) -> ForgottenPlace | None:
        """Results and rejections."""
        if guard_table.name not in self._tables:
            return None
        columns, changed, seen = guard_table.c, 0, 0
        key = (columns.saga_id, columns.step, columns.generation, columns.op)
        for row in await self._select(guard_table, *key, columns.result, where=columns.result.is_not(None)):
            seen += 1
            place = result_place(row.saga_id, row.step, row.generation, row.op)
            if (new := replaced_result(place, row.result, self._values, self._replacement)) is not None:
                here = sa.and_(*(column == row._mapping[column.name] for column in key))
                await self._database.execute(sa.update(guard_table).where(here).values(result=new))
                changed += 1
        return _place("results in saga_guard", changed, seen)

    async def starts(self) -> ForgottenPlace | None:
        """Inputs with which the sagas were started, and hashes by which inputs and arguments can be guessed."""
        if guard_table.name not in self._tables:
            return None
        columns, inputs, hashes = guard_table.c, 0, 0
        key = (columns.saga_id, columns.step, columns.generation, columns.op)
        has_any = sa.or_(columns.origin.is_not(None), columns.args_hash.is_not(None))
        for row in await self._select(guard_table, *key, columns.origin, columns.args_hash, where=has_any):
            new = None if row.origin is None else forgotten_origin(row.origin)
            if (new, None) == (row.origin, row.args_hash):
                continue
            here = sa.and_(*(column == row._mapping[column.name] for column in key))
            await self._database.execute(sa.update(guard_table).where(here).values(origin=new, args_hash=None))
            inputs += new != row.origin
            hashes += row.args_hash is not None
        detail = f"{counted(inputs, 'input')}, {counted(hashes, 'hash', 'hashes')} of arguments"
        return ForgottenPlace("inputs and hashes in saga_guard", "deleted" if inputs or hashes else "nothing", detail)

    async def images(self) -> ForgottenPlace | None:
        """Images of rows, which only an undo needs: they also have other values of the rows."""
        if image_table.name not in self._tables:
            return None
        gone = 0
        for ids in in_portions(self._saga_ids, _IDS_AT_ONCE):
            delete = sa.delete(image_table).where(image_table.c.saga_id.in_(ids))
            gone += (await self._database.execute(delete)).rowcount
        status = "deleted" if gone else "nothing"
        return ForgottenPlace("images in saga_image", status, f"{counted(gone, 'row')}, with which it could be undone")

    async def requests(self) -> ForgottenPlace | None:
        """Replies to commands, the sensitive texts that were kept for their messages, and inputs of sagas."""
        if request_table.name not in self._tables:
            return None
        columns, changed, seen = request_table.c, 0, 0
        for row in await self._select(request_table, columns.step_key, columns.data, columns.token, columns.origin):
            seen += 1
            new = replaced_json(request_place(row.step_key, "data"), row.data, self._values, self._replacement)
            origin = None if row.origin is None else forgotten_origin(row.origin)
            if new is None and row.token is None and origin == row.origin:
                continue
            values = {"token": None, "origin": origin} | ({} if new is None else {"data": new})
            here = columns.step_key == row.step_key
            await self._database.execute(sa.update(request_table).where(here).values(**values))
            changed += 1
        return _place("replies and inputs in saga_request", changed, seen)

    async def outbox(self) -> ForgottenPlace | None:
        """Events that are published, or never will be."""
        rows = outbox_rows(self._dialect)
        if rows.name not in self._tables:
            return None
        columns, changed, seen, waiting = outbox_table.c, 0, 0, list[str]()
        wanted = (
            columns.id, columns.status, columns.event_id, columns.topic, columns.saga_id, columns.value,
            columns.event_key, columns.headers,
        )  # fmt: skip
        for row in await self._select(outbox_table, *wanted):
            seen += 1
            if row.status not in (PUBLISHED, DROPPED):
                waiting.append(row.topic)
                continue
            new = _event(row, self._values, self._replacement)
            if new is not None:
                await self._database.execute(sa.update(rows).where(rows.c.id == row.id).values(**new))
                changed += 1
        if waiting:
            why = (
                f"{counted(len(waiting), 'event')} to {join_names(sorted(set(waiting)), 3)} not published yet: repeat"
                " the command when the relay has published them; saga relay --status says what it waits for"
            )
            return ForgottenPlace("events in saga_outbox", "stays", why)
        return _place("events in saga_outbox", changed, seen)

    async def enqueued(self) -> ForgottenPlace | None:
        """Starts and signals that were refused or dropped."""
        table = enqueued.enqueued_table
        if table.name not in self._tables:
            return None
        gone = 0
        for row in await self._select(table, table.c.id):
            # With its status: an operator may have it delivered again meanwhile.
            refused = sa.and_(table.c.id == row.id, table.c.status.in_((enqueued.REFUSED, enqueued.DROPPED)))
            gone += (await self._database.execute(sa.delete(table).where(refused))).rowcount
        if await self._select(table, table.c.id):
            return ForgottenPlace(
                "rows of saga_enqueued", "stays", "rows wait for their delivery: repeat the command after it"
            )
        return ForgottenPlace("rows of saga_enqueued", "deleted" if gone else "nothing", counted(gone, "row"))

    async def _select(
        self, table: sa.Table, *columns: Any, where: sa.ColumnElement[bool] | None = None
    ) -> Sequence[sa.Row[Any]]:
        rows: list[Any] = []
        for ids in in_portions(self._saga_ids, _IDS_AT_ONCE):
            query = sa.select(*columns).where(table.c.saga_id.in_(ids))
            selected = await self._database.execute(query if where is None else query.where(where))
            rows.extend(selected.all())
        return rows


def _place(name: str, changed: int, seen: int) -> ForgottenPlace:
    if changed:
        return ForgottenPlace(name, "replaced", f"in {changed} of {counted(seen, 'row')}")
    return ForgottenPlace(name, "nothing", f"no such value in {counted(seen, 'row')}")


def _event(row: Any, values: StoredValues, replacement: Replacement) -> dict[str, Any] | None:
    """The columns of an event without the values; None if it has none. An encrypted event stays encrypted."""
    is_encrypted = (row.value or "").startswith(ENCRYPTED_TEXT)
    try:
        clear = decrypted_event(row._mapping, values)
        new = _replaced_event(clear, replacement)
        if new == _replaced_event(clear, Replacement(frozenset())):
            return None
    except (UnreadableRow, ValueError, RecursionError):
        new = _replaced_event({"value": "null", "event_key": None, "headers": "{}"}, WHOLE)
    if not is_encrypted:
        return new
    return {name: values.encrypt_json(event_place(row._mapping, name), text) for name, text in new.items()}


def _replaced_event(clear: Mapping[str, Any], replacement: Replacement) -> dict[str, Any]:
    key = clear["event_key"]
    return {
        "value": replacement.json(clear["value"] or "null"),
        "event_key": None if key is None else replacement.text(key),
        "headers": replacement.headers(clear["headers"]),
    }
