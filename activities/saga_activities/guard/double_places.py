"""Text that is a number where PostgreSQL would take it for a binary float, with at most 17 digits: sent as numeric.

Text is sent without a type. Functions of numbers such as `abs` exist for several types, and PostgreSQL prefers double
precision; the places of one parameter have one type, so that `a - :v` computes with a float beside `abs(:v)`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from saga_activities.guard.exact_parameters import ExactStatement
from saga_activities.guard.operand_forms import is_number_text
from saga_activities.guard.parameter_types import parameter_types
from sagas.sql_text.placeholders import cast_types, placeholder_names
from sagas.text.exact_json import decimal_problem

_DOUBLE = 701
"""The object identifier of the type."""

_FUNCTIONS = re.compile(
    r"\b(?:abs|ceil(?:ing)?|floor|round|trunc|sign|sqrt|cbrt|pow(?:er)?|exp|ln|log(?:10)?|mod|div|degrees|radians"
    r"|width_bucket)\s*\(",
    re.IGNORECASE,
)


async def as_numeric(connection: AsyncConnection, exact: ExactStatement) -> ExactStatement:
    """The statement with decimals for such text; a cast of the author decides otherwise. Raises SQLAlchemy's errors."""
    statement, rows = exact.statement, exact.parameters
    names = {name for values in rows for name, value in values.items() if is_number_text(value)}
    if not names or not _FUNCTIONS.search(statement.source):
        return exact
    cast = {name for name, type in zip(placeholder_names(statement), cast_types(statement), strict=True) if type}
    types = await parameter_types(connection, statement, rows[0])
    doubles = {name for name in names - cast if types[name] == _DOUBLE}
    return replace(exact, parameters=[_with_decimals(values, doubles) for values in rows]) if doubles else exact


def _with_decimals(values: Mapping[str, Any], names: set[str]) -> Mapping[str, Any]:
    return {name: _decimal(value) if name in names else value for name, value in values.items()}


def _decimal(value: Any) -> Any:
    """The decimal of text, unless it has so many digits that the database had better refuse it as text."""
    number = Decimal(value.strip()) if is_number_text(value) else None
    return value if number is None or decimal_problem(number) is not None else number
