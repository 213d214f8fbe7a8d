"""Runs the statements of a step with `compensate: auto`, and stores what they change, in the guard's transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from saga_activities.automatic import row_locks
from saga_activities.automatic.postgresql import merge_with_returning
from saga_activities.automatic.restore_order import rehearse
from saga_activities.automatic.row_changes import check_scope, number_changes
from saga_activities.automatic.row_image import RowImage, encoded_image
from saga_activities.automatic.row_locks import locked_row
from saga_activities.automatic.statement_check import check_statement
from saga_activities.automatic.stored_images import insert_images
from saga_activities.automatic.table_access import (
    Image,
    Key,
    TableAccess,
    used_parameters,
)
from saga_activities.automatic.table_shape import TEXT_ALIAS, DeclaredType, changes_key
from saga_activities.automatic.unique_keys import ConflictKey, conflict_keys
from saga_activities.automatic.written_rows import WrittenRows
from saga_activities.guard.database_errors import STATEMENT_NOTE
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.sql_session import Row, SqlSession, StatementResult
from sagas.errors import InfrastructureError, UsageError
from sagas.sql_text.clocks import clock_value
from sagas.sql_text.row_changes import ConflictRow, NotImageable, RowChange
from sagas.text.exact_json import encode_json
from sagas.text.shortening import counted

MAX_ROWS = 1000
"""Rows that one statement may change."""

MAX_BYTES = 8 * 1024 * 1024
"""Bytes of all images of one step, as JSON."""

INSERTED = f"{TEXT_ALIAS}inserted"
"""The column of a result that says whether the row was inserted."""


_MAX_RUNS = 4
"""Runs of an upsert or a MERGE, each with the rows locked that the earlier ones have affected."""


class _OtherRows(Exception):
    """A run has changed rows that no earlier run has affected."""


class ImagesTooLarge(UsageError):
    """The step changes more rows, or larger ones, than can be undone automatically."""


class ImageRecorder:
    """The images of one entry in one transaction.

    ``created_at`` is that of its guard row; ``undo_scope``: see :class:`sagas.protocol.messages.GuardSpec`.
    """

    def __init__(self, sql: SqlSession, entry_key: EntryKey, created_at: float, undo_scope: str = "") -> None:
        self._sql = sql
        self._entry_key = entry_key
        self._created_at = created_at
        self._undo_scope = undo_scope
        self._images: list[RowImage] = []
        self._stored: list[dict[str, Any]] = []
        self._tables: dict[str, TableAccess] = {}
        self._statements = 0
        self._types: dict[str, Mapping[str, DeclaredType]] = {}
        self._bytes = 0
        self._written = WrittenRows(sql)

    async def run(self, statement: str, parameters: Mapping[str, Any]) -> StatementResult:
        """Run one statement and remember the rows before and after it.

        Raises :class:`NotImageable` before the change if it could not be undone, :class:`ImagesTooLarge`,
        :class:`sagas.errors.RowLocked` if a row belongs to another saga.
        """
        try:
            return await self._run(*await self._sql.placed(statement, parameters))
        except SQLAlchemyError as error:
            error.add_note(f"{STATEMENT_NOTE}{statement}")  # as the author wrote it, without the columns of the engine
            raise

    async def _run(self, statement: str, parameters: Mapping[str, Any]) -> StatementResult:
        change, table = await check_statement(self._sql, statement)
        if table is None:
            async with self._written.of(change, None):
                return await self._sql.run(statement, parameters)
        self._statements += 1
        self._tables.setdefault(table.shape.quoted, table)
        if change.kind in ("update", "delete"):
            return await self._change_existing(change, table, parameters)
        if change.conflict is not None and change.conflict.rows:
            return await self._upsert_rows(change, table, parameters)
        if change.conflict is not None or change.kind == "merge":
            return await self._run_twice(change, table, parameters)
        return await self._insert(change, table, parameters)

    async def _change_existing(
        self, change: RowChange, table: TableAccess, parameters: Mapping[str, Any]
    ) -> StatementResult:
        if change.where is not None and self._sql.dialect == "sqlite":
            clock = clock_value(change.functions, parameters)
            if clock is not None:
                why = f"its condition asks for the time with the value {clock!r} of a parameter"
                raise NotImageable(f"{why}; pass the time itself")
        before = await table.lock_matching(change, parameters, MAX_ROWS + 1)
        rows = {table.key_of(image): image for image in before}
        _check_number(table, rows)
        await self._lock(table, rows)
        keys = set(rows)
        if change.kind == "update" and changes_key(table.shape, change):
            result, returned = await self._run_with_keys(change.with_returning, change, table, parameters)
            keys |= returned.keys()
            await self._lock(table, returned.keys() - rows.keys())
        else:
            async with self._written.of(change, table) as written:
                result = await self._sql.run(change.statement, parameters)
                written["count"] = result.rowcount
        if result.rowcount < len(rows) or (result.rowcount > len(rows) and self._sql.dialect == "sqlite"):
            # The rows found are locked, and SQLite's writer is alone, so nobody else can have caused this.
            raise NotImageable(
                f"its condition matches {counted(len(rows), 'row')} of {table.shape.name}, "
                f"and it changes {result.rowcount}: write"
                " a condition that has the same value each time it is computed"
            )
        if result.rowcount != len(rows):
            # The condition is the same and the rows were locked, so another row has come to match it meanwhile.
            raise InfrastructureError("another transaction has changed which rows match the statement; it is repeated")
        self._remember(table, rows, await table.lock_rows(keys))
        return result

    async def _insert(self, change: RowChange, table: TableAccess, parameters: Mapping[str, Any]) -> StatementResult:
        result, keys = await self._run_with_keys(change.with_returning, change, table, parameters)
        _check_number(table, keys)
        await self._lock(table, keys)
        after = await table.lock_rows(keys)
        if after.keys() != keys.keys():
            raise NotImageable(f"the rows inserted into {table.shape.name} cannot be read again")
        self._remember(table, {}, after)
        return result

    async def _run_twice(self, change: RowChange, table: TableAccess, parameters: Mapping[str, Any]) -> StatementResult:
        """Run an upsert or a MERGE once to learn which rows it affects, take that back, and run it with them locked.

        Which rows are in the way, by which key, and which of them exist is the database's own answer.
        """
        with_returning = change.with_returning
        if change.kind == "merge":
            with_returning = partial(merge_with_returning, change)
        async with self._sql.savepoint(keep=False):
            _, tried = await self._run_with_keys(with_returning, change, table, parameters)
        expected = set(tried)
        for _ in range(_MAX_RUNS):
            _check_number(table, expected)
            before = await table.lock_rows(expected)
            await self._lock(table, expected)
            affected: dict[Key, bool] = {}
            try:
                async with self._sql.savepoint():
                    result, affected = await self._run_with_keys(with_returning, change, table, parameters)
                    self._check_affected(affected, expected, before)
            except _OtherRows:  # of another transaction, and then it affects them again, or picked by chance
                expected |= affected.keys()
                continue
            await self._lock(table, affected.keys() - expected)
            self._remember(table, before, await table.lock_rows({**before, **affected}))
            return result
        raise NotImageable(
            "the rows that it affects differ from run to run: write a source and conditions that choose the same rows"
            " each time they are computed"
        )

    def _check_affected(self, affected: Mapping[Key, bool], expected: Collection[Key], before: Collection[Key]) -> None:
        """Raise :class:`_OtherRows` if a row was changed that is not locked, and whose image is not there."""
        if self._sql.dialect == "sqlite":  # it does not say which rows were inserted
            changed = affected.keys() - set(expected)
        else:
            changed = {key for key, inserted in affected.items() if key not in before and not inserted}
        if changed:
            raise _OtherRows()

    async def _run_with_keys(
        self,
        with_returning: Callable[[str], str],
        change: RowChange,
        table: TableAccess,
        parameters: Mapping[str, Any],
    ) -> tuple[StatementResult, dict[Key, bool]]:
        """The author's result, and the keys of the rows returned; True: the database says that the row was inserted."""
        statement = with_returning(f"{table.key_expressions()}{_inserted(self._sql, change)}")
        async with self._written.of(change, table) as written:
            with table.naming_columns(table.shape.key_columns):
                result = await self._sql.run(statement, used_parameters(statement, parameters, self._sql.dialect))
            rows = result.rows or []
            written["count"] = len(rows)
        keys = {table.returned_key(row): bool(row.get(INSERTED, True)) for row in rows}
        return StatementResult(_without_keys(rows) if change.returning else None, len(rows)), keys

    async def _upsert_rows(
        self, change: RowChange, table: TableAccess, parameters: Mapping[str, Any]
    ) -> StatementResult:
        """An upsert of MySQL or MariaDB, row by row, as these databases run it."""
        assert change.conflict is not None
        if len(change.conflict.rows) > MAX_ROWS:
            raise ImagesTooLarge(_too_many_rows(table))
        keys = await conflict_keys(self._sql, table)
        results = [await self._upsert_row(change, row, table, keys, parameters) for row in change.conflict.rows]
        rows = [row for result in results for row in result.rows or ()]
        return StatementResult(rows if change.returning else None, sum(result.rowcount for result in results))

    async def _upsert_row(
        self,
        change: RowChange,
        row: ConflictRow,
        table: TableAccess,
        unique_keys: Sequence[ConflictKey],
        parameters: Mapping[str, Any],
    ) -> StatementResult:
        """Update the row if it exists and is locked, else insert it.

        The database does not say which of the two it has done. So the clause (ON CONFLICT, ON DUPLICATE KEY) is sent
        only for a row that is locked already; a plain insert fails if another transaction inserts the row meanwhile.
        """
        before = await self._conflicting(row, table, unique_keys, parameters)
        if not before:
            return await self._insert(replace(change, statement=row.insert_only), table, parameters)
        self._statements += 1  # the same row may occur several times
        await self._lock(table, before)
        upsert = replace(change, statement=row.upsert)
        result, keys = await self._run_with_keys(upsert.with_returning, upsert, table, parameters)
        if not keys.keys() <= before.keys():
            raise NotImageable("a unique key finds other rows in its way than a comparison of the columns")
        after = await table.lock_rows(before)
        if after.keys() != before.keys():
            raise NotImageable(f"it changes the primary key of {table.shape.name}")
        self._remember(table, before, after)
        return result

    async def _conflicting(
        self,
        row: ConflictRow,
        table: TableAccess,
        unique_keys: Sequence[ConflictKey],
        parameters: Mapping[str, Any],
    ) -> dict[Key, Image]:
        """The rows that have a unique key of the row to insert, locked."""
        values = {column.name: text for name, text in row.values.items() if (column := table.shape.named(name))}
        if len(values) != len(row.values):
            raise NotImageable(f"it names a column that {table.shape.name} does not have, or a generated one")
        matching: dict[Key, Image] = {}
        for unique_key in unique_keys:
            if (expressions := unique_key.expressions(values)) is not None:
                for image in await table.lock_equal(expressions, parameters, 2):
                    matching[table.key_of(image)] = image
        return matching

    async def _lock(self, table: TableAccess, keys: Iterable[Key]) -> None:
        rows = [locked_row(table, key) for key in keys]
        await row_locks.acquire(self._sql, rows, self._entry_key)

    def _remember(self, table: TableAccess, before: Mapping[Key, Image], after: Mapping[Key, Image]) -> None:
        for key in dict.fromkeys([*after, *before]):
            first, last = before.get(key), after.get(key)
            if first == last:
                continue
            row = locked_row(table, key)
            self._types[row.table] = table.shape.types
            self._images.append(RowImage(row, first, last, self._statements))
            stored = {
                "row_hash": row.hash,
                "table_name": row.table,
                "row_key": row.key_text,
                "before_image": encoded_image(first),
                "after_image": encoded_image(last),
            }
            self._bytes += sum(len(text.encode("utf-8", "surrogatepass")) for text in stored.values() if text)
            self._stored.append({**stored, "statement": self._statements})
        if self._bytes > MAX_BYTES:
            raise ImagesTooLarge(f"the images of the changed rows have more than {MAX_BYTES} bytes; change fewer rows")

    async def store(self) -> None:
        """Store the images, in the transaction of the changes, after a rehearsal of the undo.

        Raises :class:`NotImageable` if the undo would fail now, or could not restore a row that the saga has changed
        before.
        """
        earlier = await number_changes(self._sql, self._entry_key.saga_id, self._stored)
        for row in {image.row: None for image in self._images}:
            check_scope(self._undo_scope, row.label, earlier.get(row.hash, ()))
        await rehearse(self._sql, self._tables, self._images)
        header = {"statement": 0, "row_hash": "", "row_change": 0, "table_name": "", "row_key": str(len(self._stored))}
        header["before_image"] = encode_json(self._types).decode()
        entry = {**self._entry_key.values, "created_at": self._created_at, "undo_scope": self._undo_scope}
        empty = {"before_image": None, "after_image": None}
        rows = [{**empty, **entry, **image, "sequence": index} for index, image in enumerate([header, *self._stored])]
        await insert_images(self._sql, rows)


def _without_keys(rows: Iterable[Row]) -> list[Row]:
    return [Row({name: row[name] for name in row if not name.startswith(TEXT_ALIAS)}) for row in rows]


def _check_number(table: TableAccess, rows: Collection[object]) -> None:
    if len(rows) > MAX_ROWS:
        raise ImagesTooLarge(_too_many_rows(table))


def _inserted(sql: SqlSession, change: RowChange) -> str:
    """The column of an upsert on PostgreSQL: no transaction has locked or changed this version of the row before."""
    if sql.dialect != "postgresql" or change.conflict is None:
        return ""
    return f", (xmax::text = '0') AS {INSERTED}"


def _too_many_rows(table: TableAccess) -> str:
    return f"the statement changes more than {MAX_ROWS} rows of {table.shape.name}; `compensate: auto` allows no more"
