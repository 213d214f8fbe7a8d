"""Reads and writes rows of one table as images: the exact texts of their columns, see :class:`Column`.

The database converts every value; two images are equal if and only if their texts are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from saga_activities.automatic import mysql, postgresql, sqlite
from saga_activities.automatic.table_shape import TEXT_ALIAS, Column, TableShape
from saga_activities.guard.session import Row, SqlSession
from sagas.builtins.row_changes import NotImageable, RowChange
from sagas.builtins.sql_statements import split_parameters
from sagas.text.printable import printable_line

Image = Mapping[str, str | None]
"""The text of each column of a row that holds a value of its own; None is NULL."""

Key = tuple[str, ...]
"""The texts of the primary key."""

MAX_SHOWN = 200
"""Characters of a value in a message."""

_KEY_BATCH = 100


async def prepare_session(sql: SqlSession) -> None:
    """Let this transaction write values in a form that every other transaction reads as the same values."""
    if sql.dialect == "postgresql":
        await sql.run(postgresql.OUTPUT_STYLE)


async def shape_of_change(sql: SqlSession, change: RowChange) -> TableShape:
    """The table that a statement changes. Raises :class:`NotImageable`."""
    if sql.dialect == "postgresql":
        return await postgresql.read_shape(sql, change.table)
    return await _read_shape(sql, change.schema_name, change.table_name)


async def shape_of_table(sql: SqlSession, quoted: str) -> TableShape:
    """The table with this :attr:`TableShape.quoted` name. Raises :class:`NotImageable`."""
    if sql.dialect == "postgresql":
        return await postgresql.read_shape(sql, quoted)
    if sql.dialect == "sqlite":
        return await _read_shape(sql, None, quoted[1:-1].replace('""', '"'))
    schema, _, name = quoted[1:-1].partition("`.`")
    return await _read_shape(sql, schema.replace("``", "`"), name.replace("``", "`"))


async def _read_shape(sql: SqlSession, schema: str | None, name: str) -> TableShape:
    if sql.dialect == "sqlite":
        return await sqlite.read_shape(sql, schema, name)
    return await mysql.read_shape(sql, schema, name)


async def check_functions(sql: SqlSession, names: Sequence[str]) -> None:
    """Raise :class:`NotImageable` if one of these functions may have an effect, as far as the database knows."""
    if sql.dialect == "postgresql":
        await postgresql.check_functions(sql, names)
    elif sql.dialect != "sqlite":
        await mysql.check_functions(sql, names)


class TableAccess:
    """Rows of one table in the transaction of ``sql``."""

    def __init__(self, sql: SqlSession, shape: TableShape) -> None:
        self.shape = shape
        self._sql = sql
        self._locking = "" if sql.dialect == "sqlite" else " FOR UPDATE"  # SQLite's writer is alone

    def key_of(self, image: Image) -> Key:
        """The primary key of a row. Raises :class:`NotImageable` if it has a NULL, as SQLite allows."""
        texts = tuple(image[name] for name in self.shape.key)
        if None in texts:
            raise NotImageable(f"a row of {self.shape.name} has NULL in its primary key")
        return texts  # pyright: ignore[reportReturnType]

    async def lock_matching(self, change: RowChange, parameters: Mapping[str, Any], limit: int) -> list[Image]:
        """At most ``limit`` rows that an update or delete will change; they stay locked."""
        table = f"{change.table} AS {change.alias}" if change.alias else change.table
        condition = f" WHERE (\n{change.where}\n)" if change.where is not None else ""
        return await self._select(f"{table}{condition}", parameters, limit)

    async def lock_equal(
        self, expressions: Mapping[str, str], parameters: Mapping[str, Any], limit: int
    ) -> list[Image]:
        """At most ``limit`` rows whose columns equal these SQL expressions."""
        condition = " AND ".join(f"{column} = ({expression})" for column, expression in expressions.items())
        return await self._select(f"{self.shape.quoted} WHERE {condition}", parameters, limit)

    async def lock_keys(self, keys: Iterable[Key]) -> dict[Key, Image]:
        """The rows with these keys that exist; they stay locked."""
        wanted = sorted(set(keys))
        rows: dict[Key, Image] = {}
        for start in range(0, len(wanted), _KEY_BATCH):
            values: dict[str, Any] = {}
            conditions = [
                self._key_condition(key, values, f"k{at}_") for at, key in enumerate(wanted[start:][:_KEY_BATCH])
            ]
            for image in await self._select(f"{self.shape.quoted} WHERE {' OR '.join(conditions)}", values, None):
                rows[self.key_of(image)] = image
        return rows

    async def _select(self, source: str, parameters: Mapping[str, Any], limit: int | None) -> list[Image]:
        reads = self.read_expressions(self.shape.columns)
        order = ", ".join(column.quoted for column in self.shape.key_columns)
        bound = "" if limit is None else f" LIMIT {limit}"
        text = f"SELECT {reads} FROM {source} ORDER BY {order}{bound}{self._locking}"
        result = await self._sql.run(text, used_parameters(text, parameters, self._sql.dialect))
        return [self.image(row, self.shape.columns) for row in result.rows or ()]

    def read_expressions(self, columns: Sequence[Column]) -> str:
        return ", ".join(f"{column.read} AS {TEXT_ALIAS}{at}" for at, column in enumerate(columns))

    def image(self, row: Row, columns: Sequence[Column]) -> Image:
        """The texts of ``columns``, which were selected with :meth:`read_expressions`."""
        values = [row[f"{TEXT_ALIAS}{at}"] for at in range(len(columns))]
        if self._sql.dialect == "sqlite":
            values = [sqlite.read_text(value) for value in values]
        return {column.name: value for column, value in zip(columns, values, strict=True)}

    async def insert(self, image: Image) -> None:
        """Insert the row again."""
        values: dict[str, Any] = {}
        written = [
            self._written(self.shape.by_name[name], text, values, f"v{at}") for at, (name, text) in _numbered(image)
        ]
        columns = ", ".join(self.shape.by_name[name].quoted for name in image)
        await self._sql.run(
            f"INSERT INTO {self.shape.quoted} ({columns}){self.shape.overriding} VALUES ({', '.join(written)})", values
        )

    async def delete(self, key: Key) -> None:
        values: dict[str, Any] = {}
        condition = self._key_condition(key, values, "k")
        await self._sql.run(f"DELETE FROM {self.shape.quoted} WHERE {condition}", values)

    async def update(self, key: Key, image: Image) -> None:
        """Assign the columns of ``image``."""
        values: dict[str, Any] = {}
        condition = self._key_condition(key, values, "k")
        assignments = []
        for at, (name, text) in _numbered(image):
            column = self.shape.by_name[name]
            assignments.append(f"{column.quoted} = {self._written(column, text, values, f'v{at}')}")
        await self._sql.run(f"UPDATE {self.shape.quoted} SET {', '.join(assignments)} WHERE {condition}", values)

    def _key_condition(self, key: Key, values: dict[str, Any], prefix: str) -> str:
        parts = []
        for at, (column, text) in enumerate(zip(self.shape.key_columns, key, strict=True)):
            parts.append(f"{column.quoted} = {self._written(column, text, values, f'{prefix}{at}')}")
        return f"({' AND '.join(parts)})"

    def _written(self, column: Column, text: str | None, values: dict[str, Any], parameter: str) -> str:
        template, value = (column.write, text)
        if self._sql.dialect == "sqlite":
            template, value = sqlite.written_value(text)
        values[parameter] = value
        return template.format(f":{parameter}")

    def shown(self, text: str | None) -> str:
        """A text of an image for people: on one line, and not too long."""
        if text is None:
            return "NULL"
        line = printable_line(sqlite.shown_value(text) if self._sql.dialect == "sqlite" else text)
        return line if len(line) <= MAX_SHOWN else f"{line[:MAX_SHOWN]}…"


def _numbered(image: Image) -> Iterator[tuple[int, tuple[str, str | None]]]:
    return enumerate(image.items())


def used_parameters(text: str, parameters: Mapping[str, Any], dialect: str) -> Mapping[str, Any]:
    """The parameters that occur in ``text``, which may be a part of the author's statement."""
    names = set(split_parameters(text, dialect)[1::2])
    return {name: value for name, value in parameters.items() if name in names}
