"""Parameters of Spark SQL: numbers with all their digits, or refused before the query runs."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from sagas.errors import UsageError
from sagas.text.exact_json import number_text

MAX_DIGITS = 38
"""Digits of Spark's largest decimal."""

_LONG = 1 << 63


def sql_parameters(params: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``spark.sql``. Raises UsageError for a number that Spark cannot hold."""
    return {name: _literal(name, value) for name, value in params.items()}


def _literal(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return value
    if isinstance(value, int) and -_LONG <= value < _LONG:
        return value
    digits = number_text(value).lstrip("-0.").replace(".", "")
    _, _, fraction = number_text(value).partition(".")
    if max(len(digits), len(fraction)) > MAX_DIGITS:
        raise UsageError(
            f"the param {name} has more digits than a decimal of Spark can hold ({MAX_DIGITS}); pass it as text with"
            f" string(x)"
        )
    return Decimal(value)
