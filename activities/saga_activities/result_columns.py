"""Columns of results that would reach the next step falsified: refused by name, or kept as the database's own text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self, cast

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader, Transformer
from psycopg.pq import Format
from psycopg.types.datetime import IntervalLoader, TimedeltaDumper
from sqlalchemy.exc import DBAPIError

from sagas.errors import UsageError

_MYSQL_FLOAT, _MYSQL_TIME = 4, 11
"""Types of columns in the protocol of MySQL and MariaDB."""


class UnusableColumn(UsageError):
    """A column of a result cannot be passed on as it is; ``column`` is its name, if a text in it is the reason."""

    def __init__(self, message: str, *, column: str | None = None) -> None:
        super().__init__(message)
        self.column = column


class DatabaseInterval(timedelta):
    """An ``interval`` of PostgreSQL or a ``time`` of MySQL; ``text`` is what the database reads as the same value.

    A ``timedelta`` has no months: psycopg counts 30 days for each.
    """

    text: str

    @classmethod
    def of(cls, length: timedelta, text: str) -> Self:
        interval = cls(length.days, length.seconds, length.microseconds)
        interval.text = text
        return interval


class _IntervalLoader(IntervalLoader):
    def load(self, data: Buffer) -> timedelta:
        return DatabaseInterval.of(super().load(data), bytes(data).decode())


class _IntervalDumper(TimedeltaDumper):
    """psycopg would write -1.5 s as ``-1 days +23:59:58.5``, which PostgreSQL does not normalise."""

    def dump(self, obj: timedelta) -> Buffer:
        if isinstance(obj, DatabaseInterval):
            return obj.text.encode()
        length, sign = abs(obj), "-" if obj < timedelta(0) else ""
        return f"{sign}{length.days} days {sign}{mysql_time(length - timedelta(days=length.days))}".encode()


class _LowerBoundError(psycopg.DataError):
    """An array has other positions than 1 to n, which a list cannot have."""


def _array_loader(plain: type[Loader]) -> type[Loader]:
    class ArrayLoader(Loader):
        """psycopg reads ``[0:2]={1,2,3}`` as ``{1,2,3}``, whose items have other positions."""

        def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
            super().__init__(oid, context)
            self._plain = plain(oid, context)

        def load(self, data: Buffer) -> Any:
            if bytes(data[:1]) == b"[":
                raise _LowerBoundError("its array begins at another position than 1")
            return self._plain.load(data)

    return ArrayLoader


for _type in psycopg.adapters.types:
    if _type.array_oid and (_plain := psycopg.adapters.get_loader(_type.array_oid, Format.TEXT)) is not None:
        psycopg.adapters.register_loader(_type.array_oid, _array_loader(cast("type[Loader]", _plain)))

# For all connections: SQLAlchemy copies these conversions when it opens an engine, and adds its own.
psycopg.adapters.register_loader("interval", _IntervalLoader)
psycopg.adapters.register_dumper(timedelta, _IntervalDumper)


def mysql_conversions() -> Mapping[Any, Any]:
    """The conversions of asyncmy, with negative times: it would write -1.5 s as ``-01:59:58.5``.

    Booleans are the literals, which functions of JSON tell from 1 and 0.
    """
    from asyncmy.converters import conversions

    def escape(length: timedelta, _: Any = None) -> str:
        return f"'{mysql_time(length)}'"

    def escape_boolean(value: bool, _: Any = None) -> str:
        return "true" if value else "false"

    return {**conversions, timedelta: escape, DatabaseInterval: escape, bool: escape_boolean}


def mysql_time(length: timedelta) -> str:
    """A ``time`` of MySQL and MariaDB as text."""
    microseconds = abs(length) // timedelta(microseconds=1)
    seconds, fraction = divmod(microseconds, 1_000_000)
    sign = "-" if length < timedelta(0) else ""
    text = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}" if fraction else text


def check_names(names: Sequence[str]) -> None:
    """Raise :class:`UnusableColumn` if two columns have one name, as in ``select o.*, c.*``."""
    if len(set(names)) < len(names):
        name = next(name for index, name in enumerate(names) if name in names[:index])
        raise UnusableColumn(
            f"two columns of the result are named {name!r}, and only one of them could be used: name each column in"
            " the select list and give one of these another name with `as`"
        )


def mysql_reader(description: Iterable[Sequence[Any]]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """The function that reads the values of a row. Raises :class:`UnusableColumn` for a ``float``."""
    columns = list(description)
    for name, kind, *_ in columns:
        if kind == _MYSQL_FLOAT:
            raise UnusableColumn(
                f"the column {name} is a float, of which the server sends 6 digits only: write"
                f" `cast({name} as double) as {name}`"
            )
    times = {index for index, column in enumerate(columns) if column[1] == _MYSQL_TIME}
    if not times:
        return lambda row: row
    return lambda row: [_with_text(value) if index in times else value for index, value in enumerate(row)]


def _with_text(value: Any) -> Any:
    return DatabaseInterval.of(value, mysql_time(value)) if isinstance(value, timedelta) else value


def not_utf8(name: str) -> UnusableColumn:
    """The refusal of text in SQLite, MySQL and MariaDB that is not UTF-8. PostgreSQL refuses it itself."""
    return UnusableColumn(
        f"the text in the column {name} is not UTF-8: correct the row, or read the bytes with `hex({name}) as {name}`",
        column=name,
    )


_NOT_UTF8 = re.compile(r"Could not decode to UTF-8 column '(.*?)' with text", re.DOTALL)


def undecodable_column(error: DBAPIError) -> UnusableColumn | None:
    """The refusal of text in SQLite that is not UTF-8, which its driver cannot read; None for another error."""
    matched = _NOT_UTF8.match(str(error.orig))
    if matched is None:
        return None
    return not_utf8(matched[1])


def unreadable_column(cursor: Any, error: psycopg.DataError) -> UnusableColumn | None:
    """The refusal of the value that psycopg cannot read, such as a date before the year 1; None if all can be read."""
    result, transformer = cursor.pgresult, Transformer(cursor)
    for index, column in enumerate(cursor.description):
        load = transformer.get_loader(column.type_code, result.fformat(index)).load
        for row in range(result.ntuples):
            value = result.get_value(row, index)
            try:
                _ = None if value is None else load(value)
            except _LowerBoundError:
                return UnusableColumn(
                    f"an array in the column {column.name} begins at another position than 1, as"
                    f" {bytes(value or b'')[:20].decode(errors='replace')}, and a list has no positions: write"
                    f" `{column.name}::text as {column.name}`, which a column of this type takes back"
                )
            except psycopg.DataError:
                return UnusableColumn(
                    f"the driver cannot read the column {column.name} ({error}): write"
                    f" `{column.name}::text as {column.name}`, or a value within the years 1 to 9999"
                )
    return None
