"""Columns that a statement of MySQL or MariaDB compares with, or assigns to, those of another kind: refused.

They compare a number with text as binary floats, by the number at the beginning of the text; of a member of an enum
they take the position, of a time its digits, and text they round to the digits of a column.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence

from sqlalchemy.exc import DBAPIError

from saga_activities.engine_tables import ENGINE_TABLES
from saga_activities.parameters.column_catalog import Query, read_columns
from saga_activities.parameters.operand_forms import NUMBERS
from saga_activities.parameters.parameter_columns import ParameterColumn
from sagas.sql_text.parameters.assigned_parameters import AssignedParameter
from sagas.sql_text.parameters.column_pairs import ColumnPair, column_pairs
from sagas.sql_text.parameters.compared_sides import ComparedSides, compared_sides
from sagas.sql_text.parsed import ParsedSql
from sagas.text.shortening import shorten

Describe = Callable[[str], Awaitable[Sequence[tuple[str, int]]]]
"""The names of the columns of a query and their types, as numbers of the protocol."""

_NUMBERS = frozenset([0, 1, 2, 3, 4, 5, 8, 9, 13, 16, 246])
"""Of integers, decimals, floats, a year and a bit."""
_TEXTS = frozenset([15, *range(247, 255)])
"""Of text, bytes and members."""


async def paired_problem(statement: ParsedSql, query: Query, describe: Describe) -> str | None:
    """The sentence about two columns whose values would be converted without an error; None: there are none."""
    # The first analysis imports a large parser, for which the other attempts of the worker must not wait.
    pairs, sides = _analysed(statement) if "sqlglot" in sys.modules else await asyncio.to_thread(_analysed, statement)
    return await _assigned_problem(pairs, statement, query) or await _compared_problem(sides, describe)


def _analysed(statement: ParsedSql) -> tuple[Sequence[ColumnPair], Sequence[ComparedSides]]:
    return column_pairs(statement), compared_sides(statement)


async def _assigned_problem(pairs: Sequence[ColumnPair], statement: ParsedSql, query: Query) -> str | None:
    pairs = [pair for pair in pairs if not {pair.source.name, pair.target.name} & ENGINE_TABLES]
    columns = dict(
        await read_columns([part for pair in pairs for part in (pair.source, pair.target)], statement.dialect, query)
    )
    for pair in pairs:
        source, target = columns.get(pair.source), columns.get(pair.target)
        if source is not None and target is not None and (how := _conversion(source, target)) is not None:
            return f"{_shown(pair.target, target)} gets the value of {_shown(pair.source, source)}, of which {how}"
    return None


async def _compared_problem(sides: Sequence[ComparedSides], describe: Describe) -> str | None:
    expressions = [expression for pair in sides for expression in pair.expressions]
    compared: list[tuple[str, int]] = []
    if expressions:
        names = [name for pair in sides for name in pair.names]
        types = await _types(f"select {', '.join(expressions)} limit 0", describe)
        if types is None:  # one of them has no type of its own, as the alias of an output has none
            each = [await _types(f"select {expression} limit 0", describe) for expression in expressions]
            types = [of_one[0] if of_one else ("", -1) for of_one in each]
        compared = [(name, type) for name, (_, type) in zip(names, types, strict=True)]
    for pair in sides:
        compared += await _joined(pair.natural, describe) if pair.natural else ()
    for first, other in zip(compared[::2], compared[1::2], strict=True):
        for (number, kind), (text, other_kind) in ((first, other), (other, first)):
            if kind in _NUMBERS and other_kind in _TEXTS:
                return (
                    f"the number {shorten(number)} is compared with the text {shorten(text)}, and the numbers that the"
                    " texts begin with, or the positions of members, would count as binary floats: write"
                    f" `cast({number} as char)`"
                )
    return None


async def _joined(queries: Sequence[str], describe: Describe) -> Sequence[tuple[str, int]]:
    """The columns of one name of both sides of a natural join, each after the other."""
    left, right = [await _types(query, describe) or () for query in queries]
    others = {name.lower(): (name, type) for name, type in right}
    return [part for name, type in left if name.lower() in others for part in ((name, type), others[name.lower()])]


async def _types(query: str, describe: Describe) -> Sequence[tuple[str, int]] | None:
    try:
        return await describe(query)
    except DBAPIError:
        return None  # it does not stand alone, or the statement is wrong, too


def _shown(place: AssignedParameter, column: ParameterColumn) -> str:
    return f"the column {column.name} of {place.name} ({shorten(column.type)})"


def _conversion(first: ParameterColumn, last: ParameterColumn) -> str | None:
    cast = "write a cast that is wanted, such as `cast({} as {})`"
    if first.kind == "enum" and last.kind in (*NUMBERS, "bits"):
        return f"it would store the positions of the members: {cast.format(f'{first.name} + 0', 'signed')}"
    if first.kind == "text" and last.kind in (*NUMBERS, "bits"):
        return f"it would round the numbers, or store bytes: {cast.format(first.name, 'decimal(…)')}"
    if first.time is not None and last.kind in NUMBERS:
        return f"it would store the digits: {cast.format(first.name, 'char')}"
    if first.kind in NUMBERS and last.kind == "enum":
        return f"it would store the members at these positions: {cast.format(first.name, 'char')}"
    return None
