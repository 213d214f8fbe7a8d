"""Types of extensions of PostgreSQL, of which nothing is known: a value is read as its type, and written again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from saga_activities.parameters.column_catalog import Query
from saga_activities.parameters.json_parameters import UnusableParameter
from saga_activities.parameters.parameter_columns import ParameterColumn, exact_number, is_long_number, needs_care
from sagas.text.exact_json import number_text

_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)


async def refuse_rewritten(name: str, value: Any, column: ParameterColumn, query: Query) -> None:
    """Raise UnusableParameter if the type of the column writes other numbers than it is given."""
    if not (numbers := set(_numbers(value))):
        return
    ((row),) = await query(f"SELECT CAST(:value AS {column.type})::text AS written", {"value": value})
    written = str(row["written"])
    if numbers <= {abs(Decimal(number)) for number in _NUMBER.findall(written)}:
        return
    if isinstance(value, str) and re.sub(r"\D", "", value) == re.sub(r"\D", "", written):
        return  # in groups of digits, such as an ISBN
    raise UnusableParameter(
        f"the parameter {name} is {str(value)[:80]}, and the type {column.type} makes {written[:80]} of it: give a"
        f" value that it holds, or write the cast `:{name}::{column.type}` to have it rounded"
    )


def _numbers(value: Any) -> Iterator[Decimal]:
    """The numbers that a type may round, without their signs, which may also be between two of them."""
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, list | tuple):
            yield from _numbers(item)
        elif isinstance(item, str):
            yield from (abs(Decimal(number)) for number in _NUMBER.findall(item) if is_long_number(number))
        elif needs_care(item) and not isinstance(item, bool):
            yield abs(Decimal(number_text(exact_number(item))))
