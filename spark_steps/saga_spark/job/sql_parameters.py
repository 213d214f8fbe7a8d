"""Parameters of Spark SQL: numbers with all their digits, or refused before the query runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sagas.errors import UsageError
from sagas.sql_text.parsed import parse_sql
from sagas.text.exact_json import number_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_DIGITS = 38
"""Digits of Spark's largest decimal."""

_LONG = 1 << 63


def run_sql(spark: SparkSession, text: str, params: Mapping[str, Any]) -> DataFrame:
    """The rows of a query with the ``params`` that it names; there may be others, for the job.

    Raises UsageError for a value that Spark cannot hold.
    """
    # Spark takes only literals, and neither a null nor numbers of several types in an array: so the arrays are written
    # into the text, and their items are the parameters.
    arguments: dict[str, Any] = {}
    parts: list[str] = []
    for index, piece in enumerate(parse_sql(text, "spark").pieces()):
        parts.append(_expression(piece, params[piece], arguments) if index % 2 else piece)
    return spark.sql("".join(parts), args=arguments)


def _expression(name: str, value: Any, arguments: dict[str, Any]) -> str:
    """The value as SQL, whose scalars are added to the ``arguments``."""
    items = list(_scalars(name, value))
    kinds = {type(item) for item in items if item is not None}
    if len(kinds) > 1 and kinds != {int, Decimal}:
        raise UsageError(f"the param {name} is a list of strings and other values; write all of them as strings")
    kind = _decimal_of(name, items) if isinstance(value, list) and Decimal in kinds else None

    def expression(value: Any) -> str:
        if isinstance(value, list):
            return f"array({', '.join(map(expression, value))})"
        argument = f"p{len(arguments)}"
        [arguments[argument]] = _scalars(name, value)
        return f":{argument}" if kind is None else f"cast(:{argument} as {kind})"

    return expression(value)


def _scalars(name: str, value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _scalars(name, item)
    elif isinstance(value, dict):
        raise UsageError(f"the param {name} is an object, which SQL cannot take; pass its fields, or string(x)")
    elif isinstance(value, bool) or not isinstance(value, int | Decimal):
        yield value
    else:
        yield _number(name, value)


def _number(name: str, value: int | Decimal) -> int | Decimal:
    if isinstance(value, int) and -_LONG <= value < _LONG:
        return value
    digits = number_text(value).lstrip("-0.").replace(".", "")
    _, _, fraction = number_text(value).partition(".")
    if max(len(digits), len(fraction)) > MAX_DIGITS:
        raise UsageError(
            f"the param {name} has more digits than a decimal of Spark can hold ({MAX_DIGITS}); convert it to text with"
            " `string(…)` in the definition"
        )
    return Decimal(value)


def _decimal_of(name: str, items: list[Any]) -> str:
    """The type of Spark that holds all numbers of an array."""
    numbers = [Decimal(item).as_tuple() for item in items if item is not None]
    scale = max(max(0, -int(number.exponent)) for number in numbers)
    whole = max(max(0, len(number.digits) + int(number.exponent)) for number in numbers)
    if whole + scale > MAX_DIGITS:
        raise UsageError(
            f"the param {name} has numbers that no decimal of Spark holds together ({whole} digits before the point, "
            f"{scale} after it, of {MAX_DIGITS}); pass them as text with string(x)"
        )
    return f"decimal({max(1, whole + scale)}, {scale})"
