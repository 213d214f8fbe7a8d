"""Text that is a number where PostgreSQL would take it for a binary float or an integer: sent as numeric. Pure.

Text is sent without a type. Functions of numbers such as `abs` exist for several types, and PostgreSQL prefers double
precision, which has at most 17 digits; the places of one parameter have one type, so that `a - :v` computes with a
float as well if there is an `abs(:v)`. Next to an integer, as in `2 * :v`, it would take nothing but an integer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from saga_activities.parameters.operand_forms import is_number_text
from saga_activities.parameters.parameter_columns import ParameterColumn
from sagas.sql_text.calls import enclosing_calls
from sagas.sql_text.parameters.compared_parameters import compared_parameters
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.placeholders import cast_parameters, placeholder_names
from sagas.text.exact_json import decimal_problem

_FUNCTIONS = frozenset([
    "abs", "ceil", "ceiling", "floor", "round", "trunc", "sign", "sqrt", "cbrt", "pow", "power", "exp", "ln", "log",
    "log10", "mod", "div", "degrees", "radians", "width_bucket",
])  # fmt: skip

_SMALL_INTEGER = re.compile(r"\s*[-+]?[0-9]{1,4}\s*", re.ASCII)
"""Text that each type of integers takes."""


@dataclass(frozen=True, slots=True)
class NumericOperands:
    """The parameters with such text: in ``functions`` that exist for several types, and other ``operands``."""

    functions: frozenset[str]
    operands: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        return self.functions | self.operands

    def of_types(self, columns: Mapping[str, ParameterColumn | None]) -> frozenset[str]:
        """The parameters for which PostgreSQL takes a type that has fewer digits."""
        kinds = {name: column.kind for name, column in columns.items() if column is not None and not column.is_array}
        return frozenset(
            name
            for name in self.names
            if (name in self.functions and kinds.get(name) == "double")
            or (name in self.operands and kinds.get(name) == "integer")
        )


def numeric_operands(statement: ParsedSql, rows: Sequence[Mapping[str, Any]]) -> NumericOperands:
    """A cast of the author decides otherwise."""
    names = {name for values in rows for name, value in values.items() if is_number_text(value)}
    if names := names - cast_parameters(statement) if names else names:
        calls = zip(placeholder_names(statement), enclosing_calls(statement), strict=True)
        functions = {name for name, around in calls if any(call.name in _FUNCTIONS for call in around)}
        return NumericOperands(frozenset(names & functions), frozenset(names & _operands(statement, rows)))
    return NumericOperands(frozenset(), frozenset())


def _operands(statement: ParsedSql, rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """The parameters with text that is not a small integer, if they are compared or computed with and count nothing."""
    names = {name for values in rows for name, value in values.items() if _is_no_integer(value)}
    if not names:
        return names
    uses = compared_parameters(statement)
    counts = {use.parameter for use in uses if use.use == "integer"}
    return names & {use.parameter for use in uses} - counts


def _is_no_integer(value: Any) -> bool:
    return is_number_text(value) and _SMALL_INTEGER.fullmatch(value) is None


def with_decimals(values: Mapping[str, Any], names: frozenset[str]) -> Mapping[str, Any]:
    return {name: _decimal(value) if name in names else value for name, value in values.items()}


def _decimal(value: Any) -> Any:
    """The decimal of text, unless it has so many digits that the database had better refuse it as text."""
    number = Decimal(value.strip()) if is_number_text(value) else None
    return value if number is None or decimal_problem(number) is not None else number
