"""Which columns of an output have a sum in any case."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

MAX_PRECISION = 28
"""Digits of a decimal whose sum can not overflow Spark's 38."""


def summed(kind: DataType) -> bool:
    """Does a column of this type have a sum in any case, exact and without overflow?"""
    from pyspark.sql import types as T

    if isinstance(kind, T.DecimalType):
        return kind.precision <= MAX_PRECISION
    return isinstance(kind, T.IntegralType)
