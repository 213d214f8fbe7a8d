"""Columns that a statement of MySQL or MariaDB compares with, or assigns to, those of another kind: refused.

They compare a number with text as binary floats, by the number at the beginning of the text; of a member of an enum
they take the position, of a time its digits, and text they round to the digits of a column.
"""

from __future__ import annotations

import asyncio
import sys

from saga_activities.engine_tables import ENGINE_TABLES
from saga_activities.parameters.column_catalog import Query, read_columns
from saga_activities.parameters.operand_forms import NUMBERS
from saga_activities.parameters.parameter_columns import ParameterColumn
from sagas.sql_text.parameters.assigned_parameters import AssignedParameter
from sagas.sql_text.parameters.column_pairs import column_pairs, may_pair_columns
from sagas.sql_text.parsed import ParsedSql
from sagas.text.shortening import shorten


async def paired_problem(statement: ParsedSql, query: Query) -> str | None:
    """The sentence about two columns whose values would be converted without an error; None: there are none."""
    if not may_pair_columns(statement):
        return None
    # The first analysis imports a large parser, for which the other attempts of the worker must not wait.
    is_loaded = "sqlglot" in sys.modules
    candidates = column_pairs(statement) if is_loaded else await asyncio.to_thread(column_pairs, statement)
    pairs = [pair for pair in candidates if not {pair.first.name, pair.other.name} & ENGINE_TABLES]
    columns = dict(
        await read_columns([part for pair in pairs for part in (pair.first, pair.other)], statement.dialect, query)
    )
    for pair in pairs:
        first, other = columns.get(pair.first), columns.get(pair.other)
        if first is None or other is None:
            continue
        if pair.is_assigned and (how := _conversion(first, other)) is not None:
            return f"{_shown(pair.other, other)} gets the value of {_shown(pair.first, first)}, of which {how}"
        for number, text in ((pair.first, pair.other), (pair.other, pair.first)) if not pair.is_assigned else ():
            if (how := _comparison(columns[number], columns[text])) is not None:
                shown = f"{_shown(number, columns[number])} is compared with {_shown(text, columns[text])}"
                return f"{shown}, of which {how}"
    return None


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


def _comparison(number: ParameterColumn, text: ParameterColumn) -> str | None:
    if number.kind not in NUMBERS or text.kind not in ("text", "enum"):
        return None
    part = "the positions of the members" if text.kind == "enum" else "the numbers that the texts begin with"
    return f"{part} would count: write `cast({number.name} as char)`"
