"""Values of `overwrite_where` as an Iceberg table compares them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyiceberg.expressions.visitors import bind
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, DoubleType, IcebergType, LongType, NestedField, StringType, TimestamptzType

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
        (TimestamptzType(), "2026-01-02T05:00:00Z", "2026-01-02T05:00:00+00:00"),
    ],
)
def test_a_value_that_fits(kind: IcebergType, value: Any, expected: Any) -> None:
    found = exact_value("c", kind, value)
    assert (str(found), type(found)) == (str(expected), type(expected))
    schema = Schema(NestedField(1, "c", kind, required=False))
    assert bind(schema, where_expression({"c": [value]}, schema), case_sensitive=True) is not None


@pytest.mark.parametrize(("kind", "value"), [(LongType(), Decimal("2.5")), (DecimalType(12, 2), Decimal("1.105"))])
def test_a_number_that_the_column_cannot_hold_is_refused(kind: IcebergType, value: Any) -> None:
    with pytest.raises(ValueError, match=f"the column c is .* and cannot be {value}"):
        where_expression({"c": value}, Schema(NestedField(1, "c", kind, required=False)))
