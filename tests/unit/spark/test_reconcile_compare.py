"""Comparison of two sides: which buckets are joined, in which types values are compared, and what is reported."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from saga_spark.reconcile.comparison import (
    common_type,
    compare_tables,
    differing_buckets,
)
from saga_spark.reconcile.reconcile_spec import ComparisonSpec
from saga_spark.row_fingerprint import Fingerprint
from sagas.errors import UsageError

A, B = Fingerprint(1, 7, 8), Fingerprint(1, 7, 9)


@pytest.mark.parametrize(
    ("left", "right", "buckets"),
    [
        ({}, {}, []),
        ({3: A, 9: B}, {9: B, 3: A}, []),
        ({3: A, 9: B}, {3: A, 9: A}, [9]),
        ({3: A}, {3: A, 1000: B}, [1000]),  # only the right has rows there
        ({0: A, 3: A}, {3: A}, [0]),  # only the left has
        ({0: A, 1: B}, {0: B, 1: A}, [0, 1]),  # the sums of the whole are equal, the buckets are not
    ],
)
def test_only_buckets_that_differ_are_joined(left: Any, right: Any, buckets: list[int]) -> None:
    assert differing_buckets(left, right) == buckets


@pytest.mark.parametrize(
    ("left", "right", "wanted"),
    [
        (T.IntegerType(), T.LongType(), T.LongType()),
        (T.DecimalType(10, 1), T.DecimalType(10, 2), T.DecimalType(11, 2)),
        (T.IntegerType(), T.DecimalType(12, 2), T.DecimalType(12, 2)),
        (T.LongType(), T.DecimalType(38, 10), T.DecimalType(38, 10)),
        (T.FloatType(), T.DecimalType(12, 2), T.DoubleType()),
        (T.StringType(), T.IntegerType(), T.StringType()),
        (T.DateType(), T.TimestampNTZType(), T.TimestampNTZType()),
        (T.TimestampType(), T.TimestampNTZType(), T.TimestampType()),
        (T.NullType(), T.BooleanType(), T.BooleanType()),
        (T.ArrayType(T.LongType()), T.ArrayType(T.IntegerType()), T.StringType()),
    ],
)
def test_values_are_compared_in_a_common_type(left: Any, right: Any, wanted: Any) -> None:
    assert common_type("x", left, right) == wanted
    assert common_type("x", right, left) == wanted


@pytest.mark.parametrize(
    ("left", "right"), [(T.StringType(), T.DoubleType()), (T.BooleanType(), T.LongType()), (T.DateType(), T.LongType())]
)
def test_incomparable_types_are_refused(left: Any, right: Any) -> None:
    with pytest.raises(UsageError, match=r"the column x is .* which cannot be compared"):
        common_type("x", left, right)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs `key`"),
        ({"key": "a", "tolerance": "much"}, "`tolerance` must be a number"),
        ({"key": "a", "tolerance": -1}, "`tolerance` must be a number"),
    ],
)
def test_wrong_arguments_give_a_one_line_error(arguments: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ComparisonSpec.parse(arguments)


# The same facts as two systems hold them: other types, other names, another order.
LEFT = "select id, cast(id * 1.5 as decimal(10,1)) amount, cast(null as string) note from range(40)"
RIGHT = (
    "select cast(id as int) id, cast(id * 1.5 as decimal(12,2)) total, cast(null as string) note from range(39, -1, -1)"
)
NAMES = {"key": "id", "mapping": {"amount": "total"}}
CORRUPTIONS = """
select id, case when id = 7 then 10.51 else id * 1.5 end total, case when id = 9 then 'x' end note from range(1, 41)
union all select 5, 7.5, null union all select 6, 9.0, null
"""


def test_equal_sides(spark: SparkSession) -> None:
    tables = compare_tables(spark.sql(LEFT), spark.sql(RIGHT), ComparisonSpec.parse(NAMES))
    assert tables["verdict"] == "equal"
    assert tables["buckets"] == {"all": 1024, "different": 0}
    assert tables["left"] == tables["right"]
    assert tables["compared"] == ["amount", "note"]


@pytest.mark.slow
def test_each_kind_of_difference_is_counted_and_shown(spark: SparkSession) -> None:
    left = spark.sql(LEFT + " union all select 6, 9.0, null")  # the same key twice on both sides is not a difference
    tables = compare_tables(left, spark.sql(CORRUPTIONS), ComparisonSpec.parse(NAMES))
    assert tables["verdict"] == "different"
    assert tables["counts"] == {"missing_left": 1, "missing_right": 1, "differing": 2, "duplicate": 1}
    assert tables["buckets"]["different"] <= 5
    by_key = {sample["key"]["id"]: sample for sample in tables["samples"]}
    assert by_key[40]["kind"] == "missing_left"
    assert by_key[40]["left"] is None
    assert by_key[0]["kind"] == "missing_right"
    assert (by_key[7]["columns"], by_key[7]["left"]["amount"], by_key[7]["right"]["amount"]) == (
        ["amount"],
        Decimal("10.50"),
        Decimal("10.51"),
    )
    assert by_key[9]["columns"] == ["note"]
    assert (by_key[5]["kind"], by_key[5]["rows"]) == ("duplicate", [1, 2])
    assert "1 missing on the left" in tables["message"]


@pytest.mark.slow
def test_tolerance_filter_and_nulls(spark: SparkSession) -> None:
    near = {**NAMES, "compare": "amount", "tolerance": Decimal("0.01"), "filter": "id between 7 and 8"}
    assert compare_tables(spark.sql(LEFT), spark.sql(CORRUPTIONS), ComparisonSpec.parse(near))["verdict"] == "equal"
    exact = {**near, "tolerance": None, "filter": {"id": [7, 8]}}
    assert (
        compare_tables(spark.sql(LEFT), spark.sql(CORRUPTIONS), ComparisonSpec.parse(exact))["counts"]["differing"] == 1
    )
    ours = spark.sql("select * from values (cast(null as int), 'a', 0.0D), (1, null, -0.0D) as t(k, a, b)")
    theirs = spark.sql("select * from values (cast(null as int), 'a', -0.0D), (1, null, 0.0D) as t(k, a, b)")
    assert compare_tables(ours, theirs, ComparisonSpec.parse({"key": "k"}))["verdict"] == "equal"
    shifted = spark.sql("select * from values (cast(null as int), null, 0.0D), (1, 'a', 0.0D) as t(k, a, b)")
    assert compare_tables(ours, shifted, ComparisonSpec.parse({"key": "k"}))["counts"]["differing"] == 2


def test_a_missing_column_gives_a_one_line_error(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="the right side has no column amount"):
        compare_tables(spark.sql(LEFT), spark.sql(RIGHT), ComparisonSpec.parse({"key": "id", "compare": "amount"}))
    with pytest.raises(UsageError, match="the left side has no column nr"):
        compare_tables(spark.sql(LEFT), spark.sql(RIGHT), ComparisonSpec.parse({"key": "nr"}))


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("digits", [7, 19, 26, 27, 32, 36])
def test_decimals_differ_in_any_digit(spark: SparkSession, digits: int) -> None:
    left = spark.sql("select 1 id, cast(1 as decimal(38, 18)) n")
    right = spark.sql(f"select 1 id, cast('1.{'0' * (digits - 1)}1' as decimal(38, {digits})) n")
    assert compare_tables(left, right, ComparisonSpec.parse({"key": "id"}))["verdict"] == "different"
    assert compare_tables(right, right, ComparisonSpec.parse({"key": "id"}))["verdict"] == "equal"


def test_a_decimal_that_no_common_type_holds_is_refused_with_its_column(spark: SparkSession) -> None:
    left = spark.sql("select 1 id, cast('12345678901234567890' as decimal(38, 18)) n")
    right = spark.sql("select 1 id, cast('1.5' as decimal(38, 32)) n")
    with pytest.raises(Exception, match="the column n has a value with more than 6 digits before its point"):
        compare_tables(left, right, ComparisonSpec.parse({"key": "id"}))


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("tolerance", [None, "0.5"])
def test_values_that_are_no_finite_numbers_equal_only_themselves(spark: SparkSession, tolerance: str | None) -> None:
    numbers = ("NaN", "Infinity", "-Infinity", "1")
    pairs = [(left, right) for left in numbers for right in numbers]

    def side(position: int) -> str:
        rows = (f"({key}, double('{pair[position]}'), {key % 3})" for key, pair in enumerate(pairs))
        return f"select * from values {', '.join(rows)} as t(id, n, m)"

    spec = ComparisonSpec.parse({"key": "id", "compare": ["n", "m"], "tolerance": tolerance})
    compared = compare_tables(spark.sql(side(0)), spark.sql(side(1)), spec)
    assert {sample["key"]["id"] for sample in compared["samples"]} == {
        key for key, (left, right) in enumerate(pairs) if left != right
    }
    assert all(sample["columns"] == ["n"] for sample in compared["samples"])
    differing = spark.sql("select 1 id, double('NaN') n, 2 m")
    compared = compare_tables(differing, spark.sql("select 1 id, double('NaN') n, 3 m"), spec)
    assert [sample["columns"] for sample in compared["samples"]] == [["m"]]
