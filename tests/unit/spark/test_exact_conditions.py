"""Values of `overwrite_where` as an Iceberg table compares them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest
from pyiceberg.expressions.visitors import bind
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from saga_spark.sinks.iceberg.copy_on_write import exact_value, where_expression


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (LongType(), Decimal("2.0"), 2),
        (LongType(), 2, 2),
        (DecimalType(12, 2), Decimal("1.1"), Decimal("1.10")),
        (DecimalType(12, 2), 3, Decimal("3.00")),
        (DoubleType(), Decimal("1.5"), 1.5),
        (StringType(), "1.10", "1.10"),
        (LongType(), "9007199254740993", 9007199254740993),
        (DecimalType(12, 2), "1.1", Decimal("1.10")),
        (DoubleType(), "0.1", 0.1),
        (FloatType(), Decimal("0.10"), 0.1),
        (BooleanType(), "true", True),
        (DateType(), "2026-01-02", "2026-01-02"),
        (TimestampType(), "2026-01-02 05:00", "2026-01-02T05:00:00"),
        (TimestamptzType(), "2026-01-02T05:00:00Z", "2026-01-02T05:00:00+00:00"),
        (TimestamptzType(), "2026-01-02 05:00:00.000001", "2026-01-02T05:00:00.000001+00:00"),
        (TimestamptzType(), "2026-11-01t01:30:00-04:00", "2026-11-01T05:30:00+00:00"),
    ],
)
def test_a_value_that_fits(kind: IcebergType, value: Any, expected: Any) -> None:
    exact = exact_value("c", kind, value)
    assert (str(exact), type(exact)) == (str(expected), type(expected))
    schema = Schema(NestedField(1, "c", kind, required=False))
    assert bind(schema, where_expression({"c": [value]}, schema), case_sensitive=True) is not None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (LongType(), Decimal("2.5")),
        (LongType(), "2.5"),
        (LongType(), True),
        (LongType(), "x"),
        (DecimalType(12, 2), Decimal("1.105")),
        (DecimalType(12, 2), "1.105"),
        (DoubleType(), Decimal("1e400")),
        (DoubleType(), "NaN"),
        (DoubleType(), 2**53 + 1),
        (FloatType(), 16777217),
        (StringType(), 5),
        (DateType(), 5),
        (DateType(), "2026-02-30"),
        (BooleanType(), 1),
        (TimestampType(), "2026-01-02T05:00:00Z"),
        (TimestamptzType(), "2026-01-02T05:00:00.0000001Z"),
        (TimestamptzType(), 5),
    ],
)
def test_a_value_that_the_column_cannot_hold_is_refused(kind: IcebergType, value: Any) -> None:
    with pytest.raises(ValueError, match=f"the column c is .* and cannot be {re.escape(str(value))}"):
        where_expression({"c": value}, Schema(NestedField(1, "c", kind, required=False)))
