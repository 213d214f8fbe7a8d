"""Parameters that reach a column through another column of the same statement, as `set total = excluded.price`.

The value has the type of the first column on its way, and the database converts it for the second one in its own way.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from saga_activities.parameters.operand_forms import NUMBERS, is_number_text
from saga_activities.parameters.parameter_columns import InexactNumber, ParameterColumn, exact_number
from sagas.sql_text.parameters.assigned_parameters import AssignedParameter
from sagas.text.exact_json import number_text
from sagas.text.shortening import shorten

_DOUBLE_DIGITS, _SINGLE_DIGITS = 15, 6
"""The digits of binary floats that PostgreSQL gives a decimal, and SQLite a text."""


def check_carried(
    target: AssignedParameter,
    column: ParameterColumn,
    value: Any,
    receivers: Sequence[tuple[AssignedParameter, ParameterColumn]],
) -> None:
    """Refuse a value that would be another one in the last column. ``receivers`` are all columns of the parameter.

    Raises :class:`InexactNumber`.
    """
    others = [(other, between) for other, between in receivers if other != target]
    between = [between for _, between in others if between.name.lower() == target.via]
    if not between and any(isinstance(other.column, int) for other, _ in others):
        return  # an insert without names has given the column another parameter
    column.check_loss(target, value)
    if any(_is_changed(first, column, value) for first in between):
        raise InexactNumber(
            f"the parameter {target.parameter} is {shorten(str(value))}, the column {target.via} ({between[0].type})"
            f" gives it on to the column {column.name} of {target.name} ({column.type}), and it would be another value"
            " there: give the column the parameter itself, or write the cast that is wanted"
        )


def _is_changed(first: ParameterColumn, column: ParameterColumn, value: Any) -> bool:
    """Return whether a value of the first column is another one in a column of another type."""
    if first.kind == "enum" and column.kind in (*NUMBERS, "bits"):
        return True  # the position of the member
    if first.time is not None and column.time is None and column.kind in NUMBERS:
        return not isinstance(value, int | Decimal)  # 10:00:00 would be 100000
    if first.time is not None and column.time is not None:
        # A time has 10:00 of 2 days 10:00, and MariaDB makes the 10:00 of today of a time.
        return first.time.is_interval != column.time.is_interval or (column.time.date and not first.time.date)
    number = exact_number(Decimal(value.strip()) if is_number_text(value) else value)
    if not isinstance(number, int | Decimal) or not Decimal(number).is_finite() or first.kind == column.kind:
        return False
    digits = len(Decimal(number).normalize().as_tuple().digits)
    is_text = column.kind not in NUMBERS
    if first.kind in ("single", "double") and column.length is not None and len(number_text(number)) > column.length:
        return True  # of 1.005, a varchar(3) of MariaDB has 1
    match first.kind:
        case "single":
            # A text as well: the `coalesce(values(r), 1)` of MariaDB is a double.
            return digits > _SINGLE_DIGITS or not _is_binary(number)
        case "double" | "number" if number != int(number) or first.kind == "double":
            return (is_text or column.kind == "decimal") and digits > _DOUBLE_DIGITS
        case "other":  # without a type on SQLite, so a number with a fraction is a binary float there
            return column.kind == "text" and not isinstance(value, str) and digits > _DOUBLE_DIGITS
    return False


def _is_binary(number: int | Decimal) -> bool:
    """Return whether a float of four bytes is the number itself, and not only written like it."""
    (nearest,) = struct.unpack("f", struct.pack("f", float(number)))
    return Decimal(nearest) == number
