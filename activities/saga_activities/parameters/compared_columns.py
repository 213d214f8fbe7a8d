"""Values that a statement of MySQL or MariaDB compares with, or assigns to, those of another kind: refused.

They compare a number with text as binary floats, by the number at the beginning of the text; of a member of an enum
they take the position, of a time its digits, and text they round to the digits of a column.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal

from sqlalchemy.exc import DBAPIError

from saga_activities.engine_tables import is_engine_table
from saga_activities.parameters.column_catalog import Query, read_columns
from saga_activities.parameters.json_parameters import without_target
from saga_activities.parameters.operand_forms import NUMBERS
from saga_activities.parameters.parameter_columns import ParameterColumn, Parameters
from sagas.errors import UsageError
from sagas.sql_text.calls import called_functions
from sagas.sql_text.parameters.assigned_parameters import AssignedParameter
from sagas.sql_text.parameters.assigned_values import ColumnPair, ComputedValue, assigned_values
from sagas.sql_text.parameters.compared_sides import ComparedSides, compared_sides
from sagas.sql_text.parsed import ParsedSql, parse_sql
from sagas.text.exact_json import encode_json
from sagas.text.shortening import shorten

Describe = Callable[[str], Awaitable[Sequence[tuple[str, int]]]]
"""The names of the columns of a query and their types, as numbers of the protocol."""

_NUMBERS = frozenset([0, 1, 2, 3, 4, 5, 8, 9, 13, 16, 246])
"""Types of integers, decimals, floats, a year and a bit."""
_TIMES = frozenset([7, 10, 11, 12])
_TEXTS = frozenset([15, *range(247, 255)])
"""Types of text, bytes, and members of an enum or a set."""

_ROUTINES = """
SELECT 1 AS is_own FROM information_schema.routines
WHERE routine_type = 'FUNCTION' AND json_contains(:names, json_quote(lower(routine_name))) LIMIT 1
"""


async def paired_problem(
    statement: ParsedSql, rows: Sequence[Parameters], query: Query, describe: Describe
) -> str | None:
    """The sentence about values that would be converted without an error; None if there are none.

    ``rows`` are the parameters, None where they are not known; ``query`` also evaluates expressions with them.
    """
    # The first analysis imports a large parser, for which the other attempts of the worker must not wait.
    values, sides = _analysed(statement) if "sqlglot" in sys.modules else await asyncio.to_thread(_analysed, statement)
    return (
        await _assigned_problem(values, statement, query)
        or await _computed_problem(values, rows, statement, query, describe)
        or await _compared_problem(sides, describe)
    )


def _analysed(statement: ParsedSql) -> tuple[Sequence[ColumnPair | ComputedValue], Sequence[ComparedSides]]:
    return assigned_values(statement), compared_sides(statement)


async def _assigned_problem(
    values: Sequence[ColumnPair | ComputedValue], statement: ParsedSql, query: Query
) -> str | None:
    pairs = [pair for pair in values if isinstance(pair, ColumnPair)]
    pairs = [
        pair for pair in pairs if not any(is_engine_table(end.schema, end.name) for end in (pair.source, pair.target))
    ]
    columns = dict(
        await read_columns([part for pair in pairs for part in (pair.source, pair.target)], statement.dialect, query)
    )
    for pair in pairs:
        source, target = columns.get(pair.source), columns.get(pair.target)
        if source is not None and target is not None and (how := _conversion(source, target)) is not None:
            return f"{_shown(pair.target, target)} gets the value of {_shown(pair.source, source)}, of which {how}"
    return None


async def _computed_problem(
    values: Sequence[ColumnPair | ComputedValue],
    rows: Sequence[Parameters],
    statement: ParsedSql,
    query: Query,
    describe: Describe,
) -> str | None:
    """The sentence about a text or a time that functions make of parameters, and that its column would convert."""
    computed = [value for value in values if isinstance(value, ComputedValue)]
    computed = [value for value in computed if not is_engine_table(value.target.schema, value.target.name)]
    columns = dict(await read_columns([value.target for value in computed], statement.dialect, query))
    for value in computed:
        column = columns.get(value.target)
        if column is None or (column.kind not in (*NUMBERS, "bits", "enum") and column.time is None):
            continue
        types = await _types(f"select {value.typed} limit 0", describe)
        if types is not None and types[0][1] not in (*_TEXTS, *_TIMES):
            continue
        if value.is_alone and not await _calls_routine(value.expression, statement.dialect, query):
            for row in rows:
                if (problem := await _evaluated_problem(value, column, row, statement.dialect, query)) is not None:
                    return problem
        elif types is None or types[0][1] in _TEXTS:
            return (
                f"{_shown(value.target, column)} would convert the text that {shorten(value.expression)} makes with a"
                " parameter: pass the value itself as a parameter, or write a cast around it to a number or a time"
            )
    return None


async def _evaluated_problem(
    computed: ComputedValue, column: ParameterColumn, row: Parameters, dialect: str, query: Query
) -> str | None:
    asked = parse_sql(f"select {computed.expression} as value", dialect)
    given = {name: without_target(name, row[name], dialect) for name in asked.parameters}
    try:
        ((result,),) = [tuple(record.values()) for record in await query(asked.source, given)]
    except (DBAPIError, UsageError):
        return (
            f"{_shown(computed.target, column)} would convert what {shorten(computed.expression)} makes of a parameter:"
            " pass the value itself as a parameter"
        )
    value = result.decode(errors="replace") if isinstance(result, bytes) else result
    if value is None or isinstance(value, int | float | Decimal):
        return None
    try:
        column.checked(computed.target, value, dialect)
    except UsageError as problem:
        why = problem.message.partition(", and ")[2]
        return f"{shorten(computed.expression)} makes {shorten(str(value))} of its parameters, and {why}"
    return None


async def _calls_routine(expression: str, dialect: str, query: Query) -> bool:
    """Return whether an expression calls a function of the author, which may have an effect."""
    names = sorted({name.lower() for _, name in called_functions(parse_sql(expression, dialect))})
    return bool(names and await query(_ROUTINES, {"names": encode_json(names).decode()}))


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
        return None  # it does not stand alone, or the statement is also wrong


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
