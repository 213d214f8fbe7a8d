"""Text that is a number where PostgreSQL would take it for a binary float or an integer: sent as numeric.

Text is sent without a type. Functions of numbers such as `abs` exist for several types, and PostgreSQL prefers double
precision, which has at most 17 digits; the places of one parameter have one type, so that `a - :v` computes with a
float as well if there is an `abs(:v)`. Next to an integer, as in `2 * :v`, it would take nothing but an integer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from saga_activities.guard.exact_parameters import ExactStatement
from saga_activities.guard.operand_forms import is_number_text
from saga_activities.guard.parameter_types import parameter_types
from sagas.builtins.compared_parameters import compared_parameters
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.placeholders import cast_parameters
from sagas.text.exact_json import decimal_problem

_DOUBLE, _INTEGERS = 701, (20, 21, 23)
"""The object identifiers of the types."""

_FUNCTIONS = re.compile(
    r"\b(?:abs|ceil(?:ing)?|floor|round|trunc|sign|sqrt|cbrt|pow(?:er)?|exp|ln|log(?:10)?|mod|div|degrees|radians"
    r"|width_bucket)\s*\(",
    re.IGNORECASE,
)


_SMALL_INTEGER = re.compile(r"\s*[-+]?[0-9]{1,4}\s*", re.ASCII)
"""Text that each type of integers takes."""


async def as_numeric(connection: AsyncConnection, exact: ExactStatement) -> ExactStatement:
    """The statement with decimals for such text; a cast of the author decides otherwise. Raises SQLAlchemy's errors."""
    statement, rows = exact.statement, exact.parameters
    names = {name for values in rows for name, value in values.items() if is_number_text(value)}
    operands = names and _operands(statement, rows)
    if not operands and not (names and _FUNCTIONS.search(statement.source)):
        return exact
    cast = cast_parameters(statement)
    types = await parameter_types(connection, statement, rows[0])
    numeric = {name for name in names - cast if types[name] == _DOUBLE}
    numeric |= {name for name in operands - cast if types[name] in _INTEGERS}
    return replace(exact, parameters=[_with_decimals(values, numeric) for values in rows]) if numeric else exact


def _operands(statement: ParsedSql, rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """The parameters with text that is no small integer, if they are compared or computed with and count nothing."""
    names = {name for values in rows for name, value in values.items() if _is_no_integer(value)}
    if not names:
        return names
    uses = compared_parameters(statement)
    counts = {use.parameter for use in uses if use.use == "integer"}
    return names & {use.parameter for use in uses} - counts


def _is_no_integer(value: Any) -> bool:
    return is_number_text(value) and _SMALL_INTEGER.fullmatch(value) is None


def _with_decimals(values: Mapping[str, Any], names: set[str]) -> Mapping[str, Any]:
    return {name: _decimal(value) if name in names else value for name, value in values.items()}


def _decimal(value: Any) -> Any:
    """The decimal of text, unless it has so many digits that the database had better refuse it as text."""
    number = Decimal(value.strip()) if is_number_text(value) else None
    return value if number is None or decimal_problem(number) is not None else number
