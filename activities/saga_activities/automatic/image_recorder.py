"""Runs the statements of a step with `compensate: auto`, and stores what they change, in the guard's transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from saga_activities.automatic import row_locks
from saga_activities.automatic.restore_order import rehearse
from saga_activities.automatic.row_image import RowImage
from saga_activities.automatic.row_locks import locked_row
from saga_activities.automatic.statement_check import check_statement
from saga_activities.automatic.table_access import (
    Image,
    Key,
    TableAccess,
    prepare_session,
    used_parameters,
)
from saga_activities.automatic.table_shape import TEXT_ALIAS
from saga_activities.guard.session import Row, SqlSession, StatementResult
from saga_activities.guard.tables import EntryKey
from sagas.builtins.row_changes import NotImageable, RowChange
from sagas.errors import InfrastructureError, UsageError

MAX_ROWS = 1000
"""Rows that one statement may change."""

MAX_BYTES = 8 * 1024 * 1024
"""Bytes of all images of one step, as JSON."""

INSERT_IMAGE = (
    "INSERT INTO saga_image (saga_id, step, generation, sequence, statement, row_hash, table_name, row_key,"
    " before_image, after_image, created_at) VALUES (:saga_id, :step, :generation, :sequence, :statement, :row_hash,"
    " :table_name, :row_key, :before_image, :after_image, :created_at)"
)


class ImagesTooLarge(UsageError):
    """The step changes more rows, or larger ones, than can be undone automatically."""


class ImageRecorder:
    """The images of one entry in one transaction. ``created_at`` is that of its guard row."""

    def __init__(self, sql: SqlSession, entry_key: EntryKey, created_at: float) -> None:
        self._sql = sql
        self._entry_key = entry_key
        self._created_at = created_at
        self._images: list[RowImage] = []
        self._stored: list[dict[str, Any]] = []
        self._tables: dict[str, TableAccess] = {}
        self._statements = 0
        self._bytes = 0
        self._prepared = False

    async def run(self, statement: str, parameters: Mapping[str, Any]) -> StatementResult:
        """Run one statement and remember the rows before and after it.

        Raises :class:`NotImageable` before the change if it could not be undone, :class:`ImagesTooLarge`,
        :class:`sagas.errors.RowLocked` if a row belongs to another saga.
        """
        if not self._prepared:
            await prepare_session(self._sql)
            self._prepared = True
        change, table = await check_statement(self._sql, statement)
        if table is None:
            return await self._sql.run(statement, parameters)
        self._statements += 1
        self._tables.setdefault(table.shape.quoted, table)
        if change.kind != "insert":
            return await self._change_existing(change, table, parameters)
        if change.conflict is not None:
            return await self._upsert(change, table, parameters)
        return await self._insert(change, table, parameters)

    async def _change_existing(
        self, change: RowChange, table: TableAccess, parameters: Mapping[str, Any]
    ) -> StatementResult:
        before = await table.lock_matching(change, parameters, MAX_ROWS + 1)
        if len(before) > MAX_ROWS:
            raise ImagesTooLarge(_too_many_rows(table))
        rows = {table.key_of(image): image for image in before}
        await self._lock(table, rows)
        result = await self._sql.run(change.statement, parameters)
        if result.rowcount != len(rows):
            # The condition is the same and the rows were locked, so another row has come to match it meanwhile.
            raise InfrastructureError("another transaction has changed which rows match the statement; it is repeated")
        after = await table.lock_keys(rows) if change.kind == "update" else {}
        if change.kind == "update" and after.keys() != rows.keys():
            raise NotImageable(f"it changes the primary key of {table.shape.name}")
        self._remember(table, rows, after)
        return result

    async def _insert(
        self, change: RowChange, table: TableAccess, parameters: Mapping[str, Any], *, insert_only: bool = False
    ) -> StatementResult:
        key_columns = table.shape.key_columns
        statement = change.with_returning(table.read_expressions(key_columns), insert_only=insert_only)
        result = await self._sql.run(statement, used_parameters(statement, parameters, self._sql.dialect))
        rows = result.rows or []
        if len(rows) > MAX_ROWS:
            raise ImagesTooLarge(_too_many_rows(table))
        keys = [table.key_of(table.image(row, key_columns)) for row in rows]
        await self._lock(table, keys)
        after = await table.lock_keys(keys)
        if after.keys() != set(keys):
            raise NotImageable(f"the rows inserted into {table.shape.name} cannot be read again")
        self._remember(table, {}, {key: after[key] for key in keys})
        return StatementResult(_without_keys(rows) if change.returning else None, len(rows))

    async def _upsert(self, change: RowChange, table: TableAccess, parameters: Mapping[str, Any]) -> StatementResult:
        """Update the row if it exists and is locked, else insert it.

        Which of the two the database would do is known only afterwards, and not on every database. So the clause is
        used only if it must take effect; a row that another transaction inserts meanwhile fails the plain insert.
        """
        before = await self._conflicting(change, table, parameters)
        if len(before) > 1:
            raise NotImageable("it conflicts with more than one row")
        if not before:
            return await self._insert(change, table, parameters, insert_only=True)
        rows = {table.key_of(image): image for image in before}
        await self._lock(table, rows)
        result = await self._sql.run(change.statement, parameters)
        after = await table.lock_keys(rows)
        if after.keys() != rows.keys():
            raise NotImageable(f"it changes the primary key of {table.shape.name}")
        self._remember(table, rows, after)
        return result

    async def _conflicting(
        self, change: RowChange, table: TableAccess, parameters: Mapping[str, Any]
    ) -> Sequence[Image]:
        """The rows that have a unique key of the row to insert, locked."""
        conflict, shape = change.conflict, table.shape
        assert conflict is not None
        values = {column.name: text for name, text in conflict.values.items() if (column := shape.named(name))}
        if len(values) != len(conflict.values):
            raise NotImageable(f"it names a column that {shape.name} does not have, or a generated one")
        targets: Iterable[Sequence[str]] = shape.unique_keys
        if conflict.target:
            columns = [column.name for name in conflict.target if (column := shape.named(name))]
            targets = [columns]
            if len(columns) != len(conflict.target) or not set(columns) <= values.keys():
                raise NotImageable("it needs a value for each column of its ON CONFLICT")
        matching: dict[Key, Image] = {}
        for target in targets:
            if any(values.get(name, "default").lower() == "default" for name in target):
                continue  # a new value of a sequence, or NULL, or a duplicate that fails the plain insert
            expressions = {shape.by_name[name].quoted: values[name] for name in target}
            for image in await table.lock_equal(expressions, parameters, 2):
                matching[table.key_of(image)] = image
        return list(matching.values())

    async def _lock(self, table: TableAccess, keys: Iterable[Key]) -> None:
        rows = [locked_row(table, key) for key in keys]
        await row_locks.acquire(self._sql, rows, self._entry_key.saga_id)

    def _remember(self, table: TableAccess, before: Mapping[Key, Image], after: Mapping[Key, Image]) -> None:
        for key in dict.fromkeys([*after, *before]):
            first, last = before.get(key), after.get(key)
            if first == last:
                continue
            row = locked_row(table, key)
            self._images.append(RowImage(row, first, last, self._statements))
            stored = {
                "row_hash": row.hash,
                "table_name": row.table,
                "row_key": row.key_text,
                "before_image": _encoded(first),
                "after_image": _encoded(last),
            }
            self._bytes += sum(len(text.encode("utf-8", "surrogatepass")) for text in stored.values() if text)
            self._stored.append({**stored, "statement": self._statements})
        if self._bytes > MAX_BYTES:
            raise ImagesTooLarge(f"the images of the changed rows have more than {MAX_BYTES} bytes; change fewer rows")

    async def store(self) -> None:
        """Store the images, in the transaction of the changes, after a rehearsal of the undo.

        Raises :class:`NotImageable` if the undo would fail now.
        """
        await rehearse(self._sql, self._tables, self._images)
        header = {"statement": 0, "row_hash": "", "table_name": "", "row_key": str(len(self._stored))}
        entry = {
            "saga_id": self._entry_key.saga_id,
            "step": self._entry_key.entry,
            "generation": self._entry_key.generation,
            "created_at": self._created_at,
        }
        empty = {"before_image": None, "after_image": None}
        rows = [{**entry, **empty, **one, "sequence": at} for at, one in enumerate([header, *self._stored])]
        await self._sql.run(INSERT_IMAGE, rows)


def _encoded(image: Image | None) -> str | None:
    return None if image is None else json.dumps(dict(image), ensure_ascii=False, separators=(",", ":"))


def _without_keys(rows: Iterable[Row]) -> list[Row]:
    return [Row({name: row[name] for name in row if not name.startswith(TEXT_ALIAS)}) for row in rows]


def _too_many_rows(table: TableAccess) -> str:
    return f"the statement changes more than {MAX_ROWS} rows of {table.shape.name}; `compensate: auto` allows no more"
