"""Text of which PostgreSQL would take another value or a part of it at its place: refused before it is sent.

Text is sent without a type, and PostgreSQL gives it the type of its place: that of the column with which it is
compared, of the argument of a function, of a cast. In doing so it drops an offset, a time of day or digits without an
error, and reads 1.5.2026 by its ``DateStyle`` and 0x10 as 16. Only the server knows the types of all places, so it is
asked for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from saga_activities.parameters.column_catalog import Query, read_types
from saga_activities.parameters.float_operands import AskTypes, with_float_arrays
from saga_activities.parameters.iso_times import may_be_time
from saga_activities.parameters.json_parameters import UnusableParameter
from saga_activities.parameters.number_notations import notations, refuse_notations
from saga_activities.parameters.numeric_operands import numeric_operands, with_decimals
from saga_activities.parameters.operand_forms import NUMBERS
from saga_activities.parameters.own_types import refuse_rewritten
from saga_activities.parameters.parameter_columns import (
    InexactNumber,
    ParameterColumn,
    Parameters,
    has_numbers,
    is_long_number,
)
from saga_activities.parameters.plain_texts import is_plain
from saga_activities.parameters.text_literals import item_texts
from saga_activities.parameters.time_columns import HeldTime, time_text
from sagas.sql_text.parameters.assigned_parameters import AssignedParameter
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.placeholders import cast_parameters, cast_types, placeholder_names

_WIDER = {"date": "timestamptz", "time": "timetz", "timestamp": "timestamptz"}
_EVERY_DIGIT = 99


async def checked_places(
    statement: ParsedSql, rows: Sequence[Parameters], ask_types: AskTypes, query: Query, *, authors: ParsedSql
) -> Sequence[Parameters]:
    """The parameters, with decimals for text that is an operand, and text for arrays of floats.

    ``authors`` is the statement with the names that its author has given to the parameters, which messages show.
    Raises UnusableParameter for text of which PostgreSQL would take another value, and the errors of the database.
    """
    rows = await with_float_arrays(statement, rows, ask_types)
    wanted = {name for values in rows for name, value in values.items() if _needs_check(value)}
    operands = numeric_operands(statement, rows)
    if not wanted and not operands.names:
        return rows
    types = await ask_types(statement, rows[0])
    columns = await _columns({name: types[name] for name in {*wanted, *operands.names}}, query)
    if numeric := operands.of_types(columns):
        rows = [with_decimals(values, numeric) for values in rows]
        # The types of other parameters may follow from these.
        types = await ask_types(statement, rows[0]) if wanted - numeric else types
        columns = await _columns({name: types[name] for name in wanted - numeric}, query)
    casts, cast = _author_casts(statement), cast_parameters(statement)
    shown = dict(zip(placeholder_names(statement), placeholder_names(authors), strict=True))
    for name in sorted(wanted & columns.keys()):
        if (column := columns[name]) is None:
            continue
        for value in {str(values.get(name)): values.get(name) for values in rows}.values():
            if column.kind in NUMBERS:
                refuse_notations(shown[name], value)
            _refuse_shortened(shown[name], value, column, casts.get(name))
            if name not in cast:
                _refuse_rounded(shown[name], value, column)
                if column.is_own and _has_numbers(value):
                    await refuse_rewritten(shown[name], value, column, query)
    return rows


def _needs_check(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_needs_check, value))
    if not isinstance(value, str) or is_plain(value):
        return False
    return _has_numbers(value) or any(_times(value)) or any(notations(value))


def _has_numbers(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_numbers, value))
    return isinstance(value, str) and (is_long_number(value) or has_numbers(value))


async def _columns(types: Mapping[str, int], query: Query) -> Mapping[str, ParameterColumn | None]:
    """Each place by the name of its parameter, as a column of its type; None if it has no type."""
    columns = await read_types({*types.values()}, query)
    return {name: columns.get(type) for name, type in types.items()}


def _refuse_shortened(name: str, value: Any, column: ParameterColumn, cast: str | None) -> None:
    if (held := column.time) is None:
        return
    type = held.type_name
    place = f"PostgreSQL takes a {type} at its place"
    whole = _held(held, cast)
    for text in _times(value):
        parts = list(item_texts(text)) if column.is_array or column.is_range else [text]
        if whole is not None and (problem := next(filter(None, map(whole.problem, parts)), None)) is not None:
            raise UnusableParameter(
                f"the parameter {name} is {text[:80]}, and {place}, which {problem}: {_advice(name, type)}"
            )
        if (problem := next(filter(None, map(held.form_problem, parts)), None)) is not None:
            raise UnusableParameter(f"the parameter {name} is {text[:80]}, and {place}: {problem}")


def _refuse_rounded(name: str, value: Any, column: ParameterColumn) -> None:
    if not _has_numbers(value) or column.time is not None or column.kind == "integer":
        return  # PostgreSQL refuses a fraction itself
    try:
        column.check_loss(AssignedParameter(name, "its place", None, "its place", None, alone=True), value)
    except InexactNumber:
        raise UnusableParameter(
            f"the parameter {name} is {str(value)[:80]}, and PostgreSQL takes a {column.type} at its"
            f" place, which would be another number: write a cast to the type that is wanted, such as"
            f" `:{name}::numeric`"
        ) from None


def _times(value: Any) -> Iterator[str]:
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, list | tuple):
            yield from _times(item)
        elif isinstance(item, str) and (time_text(item) is not None or may_be_time(item)):
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
