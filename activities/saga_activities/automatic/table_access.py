"""Reads and writes rows of one table as images: the exact texts of their columns, see :class:`Column`.

The database converts every value; two images are equal if and only if their texts are. Rows are the same row if and
only if the database says that their keys are equal: it compares keys itself, and gives the canonical form of each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from saga_activities.automatic import mysql, postgresql, sqlite
from saga_activities.automatic.table_shape import TEXT_ALIAS, Column, TableShape
from saga_activities.guard.sql_session import BoundParameters, Row, SqlSession
from saga_activities.result_columns import UnusableColumn
from sagas.portions import in_portions
from sagas.sql_text.parsed import parse_sql
from sagas.sql_text.row_changes import NotImageable, RowChange
from sagas.text.exact_json import encode_json
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

Image = Mapping[str, str | None]
"""The text of each column of a row that holds a value of its own; None is NULL."""


@dataclass(frozen=True, slots=True)
class Key:
    """A primary key: equal to another one if and only if the database says so.

    ``texts`` are the values as they are, with one of several spellings that are equal; ``hash`` is that of the table
    and of the texts that all these spellings share, see :attr:`Column.canonical`.
    """

    hash: str
    texts: tuple[str, ...] = field(compare=False)


class ReadRow(dict[str, str | None]):
    """The image of a row that the database has just returned, and its key (None: NULL is in it)."""

    __slots__ = ("key",)

    def __init__(self, image: Image, key: Key | None) -> None:
        super().__init__(image)
        self.key = key


MAX_SHOWN = 200
"""Characters of a value in a message."""

_T = TypeVar("_T")

_KEY_PORTION = 100

_MAX_PARAMETERS = 30_000
"""Parameters of one statement. SQLite allows 32,766, PostgreSQL 65,535."""

_CANONICAL_ALIAS = f"{TEXT_ALIAS}key_"
_POSITION_ALIAS = f"{TEXT_ALIAS}at"


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
        return await _read_shape(sql, None, quoted.removeprefix("main.")[1:-1].replace('""', '"'))
    schema, _, name = quoted[1:-1].partition("`.`")
    return await _read_shape(sql, schema.replace("``", "`"), name.replace("``", "`"))


async def _read_shape(sql: SqlSession, schema: str | None, name: str) -> TableShape:
    if sql.dialect == "sqlite":
        return await sqlite.read_shape(sql, schema, name)
    return await mysql.read_shape(sql, schema, name)


class TableAccess:
    """Rows of one table in the transaction of ``sql``."""

    def __init__(self, sql: SqlSession, shape: TableShape) -> None:
        self.shape = shape
        self._sql = sql
        self.has_other_keys = False
        """True if a migration has changed the type of a key since the images were made, and so its hash."""
        self._locking = "" if sql.dialect == "sqlite" else " FOR UPDATE"  # SQLite's writer is alone

    def key_of(self, image: ReadRow) -> Key:
        """The primary key of a row. Raises :class:`NotImageable` if it has a NULL, as SQLite allows."""
        if image.key is None:
            raise NotImageable(f"a row of {self.shape.name} has NULL in its primary key")
        return image.key

    async def lock_matching(self, change: RowChange, parameters: Mapping[str, Any], limit: int) -> list[ReadRow]:
        """At most ``limit`` rows that an update or delete will change; they stay locked."""
        table = f"{change.table} AS {change.alias}" if change.alias else change.table
        condition = f" WHERE (\n{change.where}\n)" if change.where is not None else ""
        return [image for _, image in await self._select(f"{table}{condition}", parameters, limit)]

    async def lock_equal(
        self, expressions: Mapping[str, str], parameters: Mapping[str, Any], limit: int
    ) -> list[ReadRow]:
        """At most ``limit`` rows whose columns equal these SQL expressions."""
        condition = " AND ".join(f"{column} = ({expression})" for column, expression in expressions.items())
        return [image for _, image in await self._select(f"{self.shape.quoted} WHERE {condition}", parameters, limit)]

    async def lock_rows(self, keys: Iterable[Key]) -> dict[Key, ReadRow]:
        """The rows with these keys that exist, by the key that was asked for; they stay locked.

        The database compares the keys, and says which of them each row has. Raises :class:`NotImageable` if two rows
        have the same one, or if a row has another key than the one by whose text it was found.
        """
        wanted = sorted(set(keys), key=lambda key: key.hash)
        rows: dict[Key, ReadRow] = {}
        for portion in in_portions(wanted, _KEY_PORTION):
            values = BoundParameters()
            conditions = [self.key_condition(key, values, f"k{index}_") for index, key in enumerate(portion)]
            position = " ".join(f"WHEN {condition} THEN {index}" for index, condition in enumerate(conditions))
            source = f"{self.shape.quoted} WHERE {' OR '.join(conditions)}"
            for row, image in await self._select(source, values, None, f", CASE {position} END AS {_POSITION_ALIAS}"):
                key = portion[row[_POSITION_ALIAS]]
                if key in rows:
                    raise NotImageable(f"two rows of {self.shape.name} have the same key {self.shown_key(key)}")
                if image.key != key and not self.has_other_keys:
                    raise NotImageable(
                        f"the database finds another row of {self.shape.name} for the key {self.shown_key(key)}"
                    )
                rows[key] = image
        return rows

    async def _select(
        self, source: str, parameters: Mapping[str, Any], limit: int | None, more: str = ""
    ) -> list[tuple[Row, ReadRow]]:
        reads = f"{self.read_expressions(self.shape.columns)}, {self._canonical_expressions()}{more}"
        order = ", ".join(column.quoted for column in self.shape.key_columns)
        bound = "" if limit is None else f" LIMIT {limit}"
        text = f"SELECT {reads} FROM {source} ORDER BY {order}{bound}{self._locking}"
        with self.naming_columns(self.shape.columns):
            result = await self._sql.run(text, used_parameters(text, parameters, self._sql.dialect))
        return [(row, self._row_image(row)) for row in result.rows or ()]

    def _row_image(self, row: Row) -> ReadRow:
        image = self.image(row, self.shape.columns)
        return ReadRow(image, self._key(row, [image[name] for name in self.shape.key]))

    def read_expressions(self, columns: Sequence[Column]) -> str:
        return ", ".join(f"{column.read} AS {TEXT_ALIAS}{index}" for index, column in enumerate(columns))

    def _canonical_expressions(self) -> str:
        return ", ".join(
            f"{column.canonical} AS {_CANONICAL_ALIAS}{index}" for index, column in enumerate(self.shape.key_columns)
        )

    def key_expressions(self) -> str:
        """The expressions to return, so that :meth:`returned_key` finds the key of a row in its result."""
        return f"{self.read_expressions(self.shape.key_columns)}, {self._canonical_expressions()}"

    def returned_key(self, row: Row) -> Key:
        """The key in a row with :meth:`key_expressions`. Raises :class:`NotImageable` if it has a NULL."""
        image = self.image(row, self.shape.key_columns)
        return self.key_of(ReadRow(image, self._key(row, list(image.values()))))

    def _key(self, row: Row, texts: Sequence[str | None]) -> Key | None:
        values = [row[f"{_CANONICAL_ALIAS}{index}"] for index in range(len(texts))]
        if self._sql.dialect == "sqlite":
            values = [sqlite.read_text(value) for value in values]
        plain = tuple(text for text in texts if text is not None)
        if len(plain) != len(texts):
            return None
        canonical = encode_json([str(value) for value in values]).decode()
        return Key(
            hashlib.sha256(f"{self.shape.quoted}\0{canonical}".encode(errors="surrogatepass")).hexdigest(), plain
        )

    def image(self, row: Row, columns: Sequence[Column]) -> Image:
        """The texts of ``columns``, which were selected with :meth:`read_expressions`."""
        values = [row[f"{TEXT_ALIAS}{index}"] for index in range(len(columns))]
        if self._sql.dialect == "sqlite":
            values = [sqlite.read_text(value) for value in values]
        return {column.name: value for column, value in zip(columns, values, strict=True)}

    async def insert(self, images: Sequence[Image]) -> None:
        """Insert rows again, with as few statements as the number of parameters allows."""
        for part in self._parts(images):
            values = BoundParameters()
            rows = [self._written_row(image, values, f"r{index}_") for index, image in enumerate(part)]
            columns = ", ".join(column.quoted for column in self.shape.columns)
            await self._sql.run(
                f"INSERT INTO {self.shape.quoted} ({columns}){self.shape.overriding} VALUES {', '.join(rows)}", values
            )

    async def delete(self, keys: Sequence[Key], *, open_references: bool = False) -> None:
        """Delete rows, with as few statements as the number of parameters allows.

        ``open_references``: rows of MySQL and MariaDB may refer to each other, or to themselves.
        """
        for part in self._parts(keys):
            values = BoundParameters()
            condition = " OR ".join(self.key_condition(key, values, f"k{index}_") for index, key in enumerate(part))
            if open_references and self._sql.dialect in ("mysql", "mariadb"):
                await mysql.open_references(self._sql, self.shape, condition, values)
            await self._sql.run(f"DELETE FROM {self.shape.quoted} WHERE {condition}", values)

    async def update(self, key: Key, image: Image) -> None:
        """Assign the columns of ``image``."""
        values = BoundParameters()
        condition = self.key_condition(key, values, "k")
        assignments = []
        for index, (name, text) in enumerate(image.items()):
            column = self.shape.by_name[name]
            assignments.append(f"{column.quoted} = {self._written(column, text, values, f'v{index}')}")
        await self._sql.run(f"UPDATE {self.shape.quoted} SET {', '.join(assignments)} WHERE {condition}", values)

    async def update_together(self, rows: Mapping[Key, Image]) -> None:
        """Assign the columns of each image, which all have the same names, with as few statements as possible.

        A foreign key of PostgreSQL and SQLite is checked at the end of a statement.
        """
        for part in self._parts(list(rows)):
            values = BoundParameters()
            conditions = [self.key_condition(key, values, f"k{index}_") for index, key in enumerate(part)]
            assignments = []
            for number, name in enumerate(rows[part[0]]):
                column = self.shape.by_name[name]
                cases = [
                    f"WHEN {condition} THEN {self._written(column, rows[key][name], values, f'v{index}_{number}')}"
                    for index, (key, condition) in enumerate(zip(part, conditions, strict=True))
                ]
                assignments.append(f"{column.quoted} = CASE {' '.join(cases)} END")
            await self._sql.run(
                f"UPDATE {self.shape.quoted} SET {', '.join(assignments)} WHERE {' OR '.join(conditions)}", values
            )

    def _parts(self, rows: Sequence[_T]) -> Iterator[Sequence[_T]]:
        size = max(1, _MAX_PARAMETERS // (len(self.shape.columns) + len(self.shape.key)))
        return in_portions(rows, size)

    def _written_row(self, image: Image, values: dict[str, Any], prefix: str) -> str:
        written = [
            self._written(column, image[column.name], values, f"{prefix}{index}")
            for index, column in enumerate(self.shape.columns)
        ]
        return f"({', '.join(written)})"

    def key_condition(self, key: Key, values: dict[str, Any], prefix: str) -> str:
        """A condition for the row with this key; its parameters are added to ``values``."""
        parts = []
        for index, (column, text) in enumerate(zip(self.shape.key_columns, key.texts, strict=True)):
            template, value = column.compare, text
            if self._sql.dialect == "sqlite":
                written, value = sqlite.written_value(text)
                template = column.compare.format(written)
            values[f"{prefix}{index}"] = value
            parts.append(f"{column.quoted} {template.format(f':{prefix}{index}')}")
        return f"({' AND '.join(parts)})"

    def _written(self, column: Column, text: str | None, values: dict[str, Any], parameter: str) -> str:
        template, value = (column.write, text)
        if self._sql.dialect == "sqlite":
            template, value = sqlite.written_value(text)
        values[parameter] = value
        return template.format(f":{parameter}")

    def shown(self, name: str, text: str | None) -> str:
        """A text of an image for people: on one line, and not too long."""
        match self._sql.dialect:
            case "sqlite":
                return shown_text(text, sqlite.shown_value)
            case "postgresql":
                return shown_text(text, str)
        return shown_text(text, partial(mysql.shown_value, self.shape.by_name[name].type))

    def shown_key(self, key: Key) -> str:
        """A primary key for people: `sku=a, day=2026-01-02`."""
        return ", ".join(
            f"{name}={self.shown(name, text)}" for name, text in zip(self.shape.key, key.texts, strict=True)
        )

    @contextmanager
    def naming_columns(self, columns: Sequence[Column]) -> Iterator[None]:
        """Name the column whose text cannot be read. Raises :class:`NotImageable`.

        ``columns``: the ones that were selected with :meth:`read_expressions`.
        """
        try:
            yield
        except UnusableColumn as error:
            number = (error.column or "").removeprefix(TEXT_ALIAS)
            if number == error.column or not number.isdecimal():
                raise
            name = columns[int(number)].name
            raise NotImageable(
                f"a value in the column {name} of {self.shape.name} is not valid in its character set: correct the row"
            ) from error


def shown_text(text: str | None, readable: Callable[[str], str]) -> str:
    """A text of an image for people; ``readable`` decodes what the dialect encodes in it."""
    if text is None:
        return "NULL"
    text = readable(text)
    if text.upper() == "NULL":
        return f"'{text}'"  # text, or null of JSON
    return shorten(printable_line(text), MAX_SHOWN)


def used_parameters(text: str, parameters: Mapping[str, Any], dialect: str) -> Mapping[str, Any]:
    """The parameters that occur in ``text``, which may be a part of the author's statement."""
    names = parse_sql(text, dialect).parameters
    if isinstance(parameters, BoundParameters):
        return parameters.only(names)
    return {name: parameters[name] for name in names if name in parameters}
