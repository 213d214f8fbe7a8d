"""Parameters that a statement compares or computes with as single values, and lists and objects among them."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from saga_activities.guard.json_parameters import UnusableParameter, as_json, for_array_column
from saga_activities.guard.operand_forms import NUMBERS
from saga_activities.guard.parameter_columns import ParameterColumn, exact_number
from sagas.builtins.compared_parameters import ComparedParameter, instead_of_structured
from sagas.text.exact_json import number_text


def compared_form(name: str, value: Any, place: ComparedParameter, column: ParameterColumn | None, dialect: str) -> Any:
    """The value as it is compared with ``column``. Raises UnusableParameter for a list or an object without a form."""
    if isinstance(value, list | dict):
        if not place.direct or place.use == "integer":
            return value
        return _structured(name, value, place, column, dialect)
    is_text = column is not None and column.kind == "text" and place.use != "computed"
    if dialect == "sqlite" and is_text and isinstance(value, float | Decimal) and math.isfinite(value):
        return number_text(exact_number(value))  # as the column has it
    return value


def _structured(name: str, value: Any, place: ComparedParameter, column: ParameterColumn | None, dialect: str) -> Any:
    if place.use == "compared" and column is not None:
        if column.is_array:
            shown = f"{column.name} ({column.type})"
            return for_array_column(name, value, shown, of_text=column.kind == "text")
        if column.kind == "json":
            return as_json(name, value)
    kind = "a list" if isinstance(value, list) else "an object"
    what = {
        "element": "an element of `in (…)`, which is a single value",
        "compared": "compared with a single value",
        "computed": "an operand, which is a single value",
    }[place.use]
    with_ = f" of the column {column.name} ({column.type})" if column is not None and place.use != "computed" else ""
    raise UnusableParameter(
        f"the parameter {name} is {kind}, and its place is {what}{with_}: {instead_of_structured(name, place, dialect)}"
    )


def refuse_structured(name: str, value: Any, column: ParameterColumn, table: str, dialect: str) -> None:
    """Refuse a list or an object that is assigned to a column of numbers, which would have its text, or 0."""
    if dialect != "postgresql" and isinstance(value, list | dict) and column.kind in NUMBERS:
        kind = "a list" if isinstance(value, list) else "an object"
        raise UnusableParameter(
            f"the parameter {name} is {kind}, and the column {column.name} of {table} ({column.type}) has numbers: give"
            " a number, or change the type of the column"
        )
