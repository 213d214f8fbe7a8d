"""Lists and objects as parameters of a statement: refused at places that would compare or compute with their text."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from saga_activities.parameters.column_catalog import Query, read_columns
from saga_activities.parameters.json_parameters import UnusableParameter, is_array
from saga_activities.parameters.parameter_columns import ParameterColumn, Parameters
from sagas.sql_text.parameters.assigned_parameters import AssignedParameter
from sagas.sql_text.parameters.compared_parameters import compared_parameters
from sagas.sql_text.parameters.structured_parameters import (
    PLACES,
    StructuredPlace,
    instead_of_structured,
    structured_places,
)
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.placeholders import numbered, place_of, placeholder_names


async def check_structured(statement: ParsedSql, parameters: Sequence[Parameters], query: Query) -> None:
    """Raise UnusableParameter for a list or an object at a place that does not take it."""
    names, apart = placeholder_names(statement), numbered(statement)
    # The first analysis imports a large parser, for which the other attempts of the worker must not wait.
    is_loaded = "sqlglot" in sys.modules
    places = structured_places(apart) if is_loaded else await asyncio.to_thread(structured_places, apart)
    problems = [
        (name, values[name], place)
        for place in places
        for name in [names[place_of(place.parameter)]]
        for values in parameters
        if isinstance(values.get(name), list | dict) and not (place.use == "array" and _is_list(values[name]))
    ]
    if not problems:
        return
    compared = {
        each.parameter: each.column
        for each in compared_parameters(apart)
        if each.column is not None and each.direct and each.use == "compared"
    }
    wanted = [compared[place.parameter] for _, _, place in problems if place.parameter in compared]
    columns = dict(await read_columns(wanted, statement.dialect, query))
    for name, value, place in problems:
        column = _column(place, compared, columns)
        if place.use != "compared" or column is None or not (column.is_array or column.kind == "json"):
            raise UnusableParameter(_refusal(name, value, place, column, statement.dialect))


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and is_array(value)


def _column(
    place: StructuredPlace,
    compared: Mapping[str, AssignedParameter],
    columns: Mapping[AssignedParameter, ParameterColumn],
) -> ParameterColumn | None:
    target = compared.get(place.parameter) if place.direct else None
    return columns.get(target) if target is not None else None


def _refusal(name: str, value: Any, place: StructuredPlace, column: ParameterColumn | None, dialect: str) -> str:
    kind = "a list" if isinstance(value, list) else "an object"
    if place.use == "array" and isinstance(value, list):
        kind = "a list of different types"
    with_ = f" of the column {column.name} ({column.type})" if column and place.use in ("element", "compared") else ""
    instead = instead_of_structured(name, place.use, dialect)
    return f"the parameter {name} is {kind}, and its place is {PLACES[place.use]}{with_}: {instead}"
