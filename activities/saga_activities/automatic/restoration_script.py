"""SQL that restores rows by hand: written with literals of the database, and tried before it is shown.

Each statement names the values that it overwrites or deletes, so that it changes nothing if the row has changed since.
What it has stored is compared afterwards: a column may hold other values than it is given, without an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.exc import DBAPIError

from saga_activities.automatic import sqlite
from saga_activities.automatic.restore_order import OTHER_VALUES, missing_reference, reference_violations
from saga_activities.automatic.row_image import differing
from saga_activities.automatic.row_locks import LockedRow
from saga_activities.automatic.table_access import Image, TableAccess
from saga_activities.automatic.table_shape import Column
from saga_activities.automatic.user_types import PRESENT_ATTRIBUTES, attributes_of
from saga_activities.guard.database_errors import classify_database_error
from saga_activities.guard.sql_session import SqlSession
from sagas.sql_text.restoring_script import CHANGED_SINCE, RESTORING_SQL_MODE
from sagas.text.printable import printable_line
from sagas.text.sql_names import sql_text

MAX_TRIALS = 300
"""Most trials of statements for single columns. Rows that cannot be restored are usually in the way of others."""


@dataclass(frozen=True, slots=True)
class HandChange:
    """A row as it is now, and as it was before the step; None if there is none."""

    row: LockedRow
    now: Image | None
    before: Image | None


@dataclass(frozen=True, slots=True)
class HandStatement:
    """A statement that restores ``row``. ``check``: a condition that the row has the values; None if it is deleted."""

    row: LockedRow
    sql: str
    check: str | None


@dataclass(frozen=True, slots=True)
class RestorationScript:
    """Statements in an order that works. ``refused``: why the last ones fail now, or are missing."""

    statements: Sequence[HandStatement]
    refused: str | None = None


async def restoration_script(
    sql: SqlSession,
    tables: Mapping[str, TableAccess],
    changes: Sequence[HandChange],
    steps: Sequence[Sequence[HandChange]] = (),
) -> RestorationScript:
    """The statements for these rows. Each was run, and all of them are rolled back.

    ``steps``: the same changes, one statement of the step after the other, the last first.
    """
    async with sql.savepoint(keep=False):
        await sql.control(_BEFORE_TRIAL.get(sql.dialect, f"SET SESSION sql_mode = '{RESTORING_SQL_MODE}'"))
        at_once = await _script(sql, tables, [changes])
        if at_once.refused is None or len(steps) < 2:
            return at_once
        one_by_one = await _script(sql, tables, steps)
        return at_once if one_by_one.refused else one_by_one


async def _script(
    sql: SqlSession, tables: Mapping[str, TableAccess], steps: Sequence[Sequence[HandChange]]
) -> RestorationScript:
    statements: list[HandStatement] = []
    violations = await reference_violations(sql, tables) if sql.dialect == "sqlite" else frozenset[tuple[object, ...]]()
    async with sql.savepoint(keep=False):
        for changes in steps:
            waiting, refused = await _in_passes(sql, tables, changes, statements)
            if not waiting:
                continue
            together = _as_new_rows(sql.dialect, tables, waiting)
            if together and await _try(sql, together) is None:
                statements += together
            elif (split := await _column_by_column(sql, tables, waiting)) is not None:
                statements += split
            else:
                if refused != OTHER_VALUES:
                    statements += [_statement(sql.dialect, tables[change.row.table], change) for change in waiting]
                return RestorationScript(statements, refused)
        if sql.dialect == "postgresql":
            return RestorationScript(statements, await _try(sql, [], "SET CONSTRAINTS ALL IMMEDIATE"))
        if sql.dialect == "sqlite":
            return RestorationScript(statements, await missing_reference(sql, tables, violations))
    return RestorationScript(statements)


async def _in_passes(
    sql: SqlSession,
    tables: Mapping[str, TableAccess],
    changes: Sequence[HandChange],
    statements: list[HandStatement],
) -> tuple[Sequence[HandChange], str | None]:
    """Restore the rows that can be, each by one statement; the others, and why the first one of them cannot."""
    waiting = changes
    while waiting := [change for change in waiting if change.now != change.before]:
        later: list[HandChange] = []
        reason = None
        for change in waiting:
            statement = _statement(sql.dialect, tables[change.row.table], change)
            refusal = await _try(sql, [statement])
            if refusal is None:
                statements.append(statement)
            else:
                later.append(change)
                reason = reason or refusal
        if len(later) == len(waiting):
            return later, reason
        waiting = later
    return (), None


async def _column_by_column(
    sql: SqlSession, tables: Mapping[str, TableAccess], changes: Sequence[HandChange]
) -> list[HandStatement] | None:
    """An update for each column: a row leaves the way of another one before it takes its place.

    Where rows wait for each other in a circle, a column is NULL meanwhile. None if there is no such order.
    """
    statements: list[HandStatement] = []
    waiting, trials = changes, MAX_TRIALS
    while True:
        waiting, _ = await _in_passes(sql, tables, waiting, statements)
        if not waiting:
            return statements
        for parts in _detours(tables, waiting):
            trials -= 1
            if trials < 0:
                return None
            tried = [_statement(sql.dialect, tables[part.row.table], part) for part in parts]
            if await _try(sql, tried) is None:
                statements += tried
                now = {part.row: part.before for part in parts}
                waiting = [replace(change, now=now.get(change.row, change.now)) for change in waiting]
                break
        else:
            return None


def _detours(tables: Mapping[str, TableAccess], changes: Sequence[HandChange]) -> Iterator[tuple[HandChange, ...]]:
    """Changes to try, each followed by those that it must make possible."""
    for change in changes:
        if change.now is not None and change.before is not None:
            rewritten = _rewritten(tables[change.row.table], change.before)
            for name in differing(change.before, change.now):
                yield (replace(change, before={**change.now, **rewritten, name: change.before[name]}),)
    for change in changes:
        shape = tables[change.row.table].shape
        followed = {name for reference in shape.references if reference.on_update for name in reference.columns}
        existing = change.now or change.before or {}
        both = change.now is not None and change.before is not None
        names = differing(change.before or {}, change.now or {}) if both else existing
        for name in names:
            if existing[name] is None or name in shape.key or name in followed:
                continue
            emptied = replace(change, before={**existing, name: None})
            for other in changes:
                yield emptied, replace(other, now=emptied.before) if other is change else other


def _as_new_rows(dialect: str, tables: Mapping[str, TableAccess], changes: Sequence[HandChange]) -> list[HandStatement]:
    """All rows deleted before any is inserted, as for a swap; nothing if a delete would change rows of other tables."""
    if any(reference.on_delete for change in changes for reference in tables[change.row.table].shape.references):
        return []
    gone = [replace(change, before=None) for change in changes if change.now is not None]
    new = [replace(change, now=None) for change in changes if change.before is not None]
    return [_statement(dialect, tables[change.row.table], change) for change in (*gone, *new)]


_BEFORE_TRIAL = {"postgresql": "SET CONSTRAINTS ALL DEFERRED", "sqlite": "PRAGMA defer_foreign_keys = ON"}


async def _try(sql: SqlSession, statements: Sequence[HandStatement], then: str | None = None) -> str | None:
    """Run them all, or none; the database's reason why not."""
    try:
        async with sql.savepoint():
            for statement in statements:
                if await sql.control(statement.sql) != 1:
                    return CHANGED_SINCE
                if statement.check and not await sql.scalar(f"SELECT {statement.check}"):
                    return OTHER_VALUES
            if then is not None:
                await sql.control(then)
    except DBAPIError as error:
        classified = classify_database_error(error)
        if sql.first_error is not None or classified is None or classified.infrastructure:
            raise
        return printable_line(classified.message)
    return None


def _statement(dialect: str, table: TableAccess, change: HandChange) -> HandStatement:
    """The statement that restores a row."""
    shape = table.shape
    if change.before is None:
        row = change.now or {}
        text = f"DELETE FROM {shape.quoted} WHERE {_as_expected(dialect, table, row, shape.by_name)}"
        return HandStatement(change.row, text, None)
    if change.now is None:
        columns = ", ".join(column.quoted for column in shape.columns)
        values = ", ".join(column_literal(dialect, column, change.before[column.name]) for column in shape.columns)
        text = f"INSERT INTO {shape.quoted} ({columns}){shape.overriding} VALUES ({values})"
        return HandStatement(change.row, text, _check(dialect, table, change.before, shape.by_name))
    assigned = {**_rewritten(table, change.before), **differing(change.before, change.now)}
    assignments = [
        f"{shape.by_name[name].quoted} = {column_literal(dialect, shape.by_name[name], text)}"
        for name, text in assigned.items()
    ]
    expected = _as_expected(dialect, table, change.now, assigned)
    text = f"UPDATE {shape.quoted} SET {', '.join(assignments)} WHERE {expected}"
    return HandStatement(change.row, text, _check(dialect, table, change.before, assigned))


def _check(dialect: str, table: TableAccess, image: Image, names: Iterable[str]) -> str:
    """The condition that the table has the row of ``image``, and that these columns have its values exactly."""
    columns = table.shape.by_name
    conditions = [_has_key(dialect, column, image[column.name]) for column in table.shape.key_columns]
    conditions += [_has_value(dialect, columns[name], image[name]) for name in names]
    return f"EXISTS (SELECT 1 FROM {table.shape.quoted} WHERE {' AND '.join(conditions)})"


def _rewritten(table: TableAccess, image: Image) -> Image:
    """The columns that the database would assign itself."""
    return {column.name: image[column.name] for column in table.shape.columns if column.rewritten}


def _as_expected(dialect: str, table: TableAccess, image: Image, names: Iterable[str]) -> str:
    """The condition for the row with the key of ``image``, if these columns have its values."""
    shape = table.shape
    conditions = [_has_key(dialect, column, image[column.name]) for column in shape.key_columns]
    others = (shape.by_name[name] for name in names if name not in shape.key)
    return " AND ".join([*conditions, *(_has_value(dialect, column, image[column.name]) for column in others)])


def _has_key(dialect: str, column: Column, text: str | None) -> str:
    """The condition that a key column has a value that is equal to that of this text."""
    value = column_literal(dialect, column, text)
    if dialect == "postgresql" and ("." in column.type or not column.type.startswith(_PLAIN_KEYS)):
        return f"{column.quoted} {column.compare.format(value)}"  # text of a row would have no known type
    return f"{column.quoted} = {value}"


def _has_value(dialect: str, column: Column, text: str | None) -> str:
    """The condition that a column has exactly the value of this text."""
    if text is None:
        return f"{column.quoted} IS NULL"
    if dialect == "sqlite":
        kind = text.partition(":")[0]  # 1.0 is equal to 1
        return f"typeof({column.quoted}) = '{kind}' AND {column.quoted} = {_sqlite_literal(text)} COLLATE BINARY"
    if dialect == "postgresql":
        # Under the column's own collation another text may be equal.
        collation = "" if column.type.startswith(_WITHOUT_COLLATION) else ' COLLATE "C"'
        return f"{column.read} = {_postgresql_text(text)}{collation}"
    if re.fullmatch(r"-?\d+(\.\d+)?", text) and column.type.lower().startswith(_EXACT_NUMBERS):
        return f"{column.quoted} = {text}"
    return f"CAST({column.read} AS BINARY) = {_mysql_text(text)}"


_WITHOUT_COLLATION = (
    "smallint",
    "integer",
    "bigint",
    "numeric",
    "boolean",
    "date",
    "time",
    "uuid",
    "interval",
    "bytea",
)

_PLAIN_KEYS = (*_WITHOUT_COLLATION, "text", "character")
"""Types of PostgreSQL of which text without a type is read as a value in a comparison."""

_EXACT_NUMBERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal")


def column_literal(dialect: str, column: Column, text: str | None) -> str:
    """The SQL of a value of ``column`` whose text in an image is ``text``."""
    if text is None:
        return "NULL"
    if dialect == "postgresql":
        composites = attributes_of(column.parts)
        if composites:
            return _positional_text(column, text, composites)
        return _postgresql_text(text)  # a literal without a type has that of its column
    if dialect == "sqlite":
        return _sqlite_literal(text)
    return column.write.format(_mysql_text(text))


def _positional_text(column: Column, text: str, composites: Mapping[str, Sequence[str]]) -> str:
    """A value whose text has no names of attributes: it is refused if they are others when it is written."""
    conditions = " AND ".join(
        f"{PRESENT_ATTRIBUTES.format(_postgresql_text(name))} = {_postgresql_text(', '.join(attributes))}"
        for name, attributes in composites.items()
    )
    otherwise = _postgresql_text(f"the attributes of {', '.join(composites)} have changed since")
    return f"CAST(CASE WHEN {conditions} THEN {_postgresql_text(text)} ELSE {otherwise} END AS {column.type})"


def _postgresql_text(text: str) -> str:
    if _is_portable(text):
        return sql_text(text)
    escaped = "".join(
        character if _is_portable(character) and character != "'" else _postgresql_escape(character)
        for character in text
    )
    return f"E'{escaped}'"


def _postgresql_escape(character: str) -> str:
    if character in "\\'":
        return character * 2
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character) or f"\\U{ord(character):08X}"


def _mysql_text(text: str) -> str:
    if _is_portable(text):
        return sql_text(text)
    return f"CONVERT(X'{text.encode().hex().upper()}' USING utf8mb4)"


def _sqlite_literal(stored: str) -> str:
    _, value = sqlite.written_value(stored)
    if isinstance(value, bytes) and not stored.startswith("text:"):
        return f"X'{value.hex().upper()}'"
    if isinstance(value, float):
        return {"inf": "9e999", "-inf": "-9e999"}.get(repr(value), repr(value))
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = "\0"
        return sql_text(text) if _is_plain(text) else f"CAST(X'{value.hex().upper()}' AS TEXT)"
    return str(value)


def _is_portable(text: str) -> bool:
    """True for text that is the same in every session: in each encoding, and whether a backslash escapes or not."""
    return text.isascii() and "\\" not in text and _is_plain(text)


def _is_plain(text: str) -> bool:
    """True for text that can be shown and pasted as it is."""
    return text == printable_line(text)
