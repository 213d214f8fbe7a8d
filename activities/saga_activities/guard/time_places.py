"""Text of which PostgreSQL would read another value or a part of it at its place: refused before the statement is sent.

Text is sent without a type, and PostgreSQL gives it the type of its place: that of the column with which it is
compared, of the argument of a function, of a cast. In doing so it drops an offset, a time of day or digits without an
error, and reads 1.5.2026 by its ``DateStyle`` and 0x10 as 16. Only the server knows the types of all
places, so it is asked for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from saga_activities.guard.iso_times import may_be_time
from saga_activities.guard.json_parameters import UnusableParameter
from saga_activities.guard.number_notations import notations, refuse_notation
from saga_activities.guard.parameter_types import parameter_types, types_of
from saga_activities.guard.time_columns import HeldTime, postgresql_time, time_text
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.placeholders import cast_types, placeholder_names

_TYPES: Mapping[int, str] = {
    **{1082: "date", 1083: "time", 1114: "timestamp", 1184: "timestamptz", 1186: "interval", 1266: "timetz"},
    **{1182: "date", 1183: "time", 1115: "timestamp", 1185: "timestamptz", 1187: "interval", 1270: "timetz"},
    **{3912: "date", 3908: "timestamp", 3910: "timestamptz", 4535: "date", 4533: "timestamp", 4534: "timestamptz"},
}
"""The types of times by their object identifiers, also in arrays, ranges and multiranges."""

_SCALARS = frozenset([1082, 1083, 1114, 1184, 1186, 1266])
"""The types of times whose text has one time only."""

_FIRST_OWN_TYPE = 16384
"""The object identifiers from here on are those of the database's own types."""

_BASES = """
WITH RECURSIVE base AS (
    SELECT oid::bigint AS own, typbasetype AS type FROM pg_catalog.pg_type WHERE oid = ANY(%(own)s) AND typtype = 'd'
  UNION ALL
    SELECT base.own, t.typbasetype FROM base JOIN pg_catalog.pg_type t ON t.oid = base.type WHERE t.typtype = 'd'
)
SELECT own, base.type::bigint AS type FROM base JOIN pg_catalog.pg_type t ON t.oid = base.type WHERE t.typtype <> 'd'
"""
"""The types behind domains."""

_WIDER = {"date": "timestamptz", "time": "timetz", "timestamp": "timestamptz"}
_EVERY_DIGIT = 99


async def refuse_shortened_times(
    connection: AsyncConnection, statement: ParsedSql, parameters: Sequence[Mapping[str, Any]]
) -> None:
    """Raises UnusableParameter for text of which PostgreSQL would drop a part, and SQLAlchemy's errors."""
    if not (wanted := _checked(parameters)):
        return
    types = await parameter_types(connection, statement, parameters[0])
    own = sorted({types[name] for name in wanted if types[name] >= _FIRST_OWN_TYPE})
    rows = (await connection.exec_driver_sql(_BASES, {"own": own})).all() if own else []
    bases = {row.own: row.type for row in rows}
    _refuse_shortened(statement, parameters, {name: bases.get(types[name], types[name]) for name in wanted})


def refuse_shortened_literals(connection: Any, statement: ParsedSql, values: Mapping[str, Any]) -> None:
    """Check the values that a connection of psycopg sends as literals. Raises UnusableParameter, psycopg's errors."""
    if wanted := _checked([values]) & {*statement.parameters}:
        with connection.lock:
            types = connection.wait(types_of(connection, statement, values))
        _refuse_shortened(statement, [values], {name: types[name] for name in wanted})


def _checked(parameters: Sequence[Mapping[str, Any]]) -> set[str]:
    return {
        name for values in parameters for name, value in values.items() if any(_times(value)) or any(notations(value))
    }


def _refuse_shortened(statement: ParsedSql, parameters: Sequence[Mapping[str, Any]], types: Mapping[str, int]) -> None:
    casts = _author_casts(statement)
    for name, identifier in types.items():
        for values in parameters:
            refuse_notation(name, values.get(name), identifier)
        type = _TYPES.get(identifier)
        if type is None or (held := postgresql_time(type, -1)) is None:
            continue
        place = f"PostgreSQL takes a {type} at its place"
        whole = _held(held, casts.get(name))
        for text in (text for values in parameters for text in _times(values.get(name))):
            parts = [text] if identifier in _SCALARS else list(_items(text))
            if whole is not None and (problem := next(filter(None, map(whole.problem, parts)), None)) is not None:
                raise UnusableParameter(
                    f"the parameter {name} is {text[:80]}, and {place}, which {problem}: {_advice(name, type)}"
                )
            if (problem := next(filter(None, map(held.form_problem, parts)), None)) is not None:
                raise UnusableParameter(f"the parameter {name} is {text[:80]}, and {place}: {problem}")


def _times(value: Any) -> Iterator[str]:
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, list | tuple):
            yield from _times(item)
        elif isinstance(item, str) and (time_text(item) is not None or may_be_time(item)):
            yield item


def _items(text: str) -> Iterator[str]:
    """The times in the text of a range or an array."""
    for part in text.rpartition("=")[2].split(","):
        if (item := part.strip('[](){}" ')) and item.lower() not in ("empty", "null"):
            yield item


def _author_casts(statement: ParsedSql) -> Mapping[str, str]:
    """The parameters that have the same cast at each place."""
    casts: dict[str, set[str]] = {}
    for name, cast in zip(placeholder_names(statement), cast_types(statement), strict=True):
        casts.setdefault(name, set()).add(cast)
    return {name: next(iter(types)) for name, types in casts.items() if len(types) == 1}


def _held(held: HeldTime, cast: str | None) -> HeldTime | None:
    """The range of a place; None if its author has written which part counts."""
    if cast == "date":
        return None
    return replace(held, digits=_EVERY_DIGIT) if cast is not None and cast.endswith("(") else held


def _advice(name: str, type: str) -> str:
    wider = _WIDER.get(type)
    if wider is None:
        return f"write a cast that rounds it, such as `:{name}::{type}(6)`"
    return f"write the cast to a type that holds it, such as `:{name}::{wider}`, or give only what counts"
