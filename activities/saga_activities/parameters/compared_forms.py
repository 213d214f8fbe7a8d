"""Parameters that a statement compares or computes with as single values, and lists and objects among them."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from saga_activities.parameters.json_parameters import UnusableParameter, as_json, for_array_column
from saga_activities.parameters.operand_forms import NUMBERS
from saga_activities.parameters.parameter_columns import ParameterColumn, exact_number
from sagas.sql_text.parameters.compared_parameters import ComparedParameter
from sagas.text.exact_json import number_text
from sagas.text.exact_numbers import is_exact_double


def compared_form(name: str, value: Any, place: ComparedParameter, column: ParameterColumn | None, dialect: str) -> Any:
    """The value as it is compared with ``column``. Raises UnusableParameter."""
    if isinstance(value, list | dict):
        return _structured(name, value, column) if place.direct and place.use == "compared" else value
    if column is None or place.use == "computed" or isinstance(value, bool):
        return value
    is_number = isinstance(value, float | Decimal) and math.isfinite(value)
    if dialect == "sqlite" and column.kind == "text" and is_number:
        return number_text(exact_number(value))  # as the column has it
    is_exact = is_number or (isinstance(value, int) and not isinstance(value, bool))
    if dialect in ("mysql", "mariadb") and column.kind == "double" and is_exact and place.direct:
        number = exact_number(value)
        return float(number) if is_exact_double(number) else value  # which may have more digits than a decimal
    is_float = column.kind in ("double", "single") and not column.is_array and place.direct
    if dialect == "postgresql" and is_float and (is_number or isinstance(value, int)):
        return number_text(exact_number(value))  # a number would be compared as a double with all of its digits
    return value


def _structured(name: str, value: Any, column: ParameterColumn | None) -> Any:
    if column is not None and column.is_array:
        return for_array_column(name, value, f"{column.name} ({column.type})", of_text=column.kind == "text")
    return as_json(name, value) if column is not None and column.kind == "json" else value


def refuse_structured(name: str, value: Any, column: ParameterColumn, table: str, dialect: str) -> None:
    """Refuse a list or an object that is assigned to a column of numbers, which would have its text, or 0."""
    if dialect != "postgresql" and isinstance(value, list | dict) and column.kind in NUMBERS:
        kind = "a list" if isinstance(value, list) else "an object"
        raise UnusableParameter(
            f"the parameter {name} is {kind}, and the column {column.name} of {table} ({column.type}) has numbers: give"
            " a number, or change the type of the column"
        )
