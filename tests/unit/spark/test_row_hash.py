"""The hash of a multiset of rows against its traps: what must be equal, what must differ."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from saga_spark.manifest import ManifestMetric
from saga_spark.row_fingerprint import (
    Fingerprint,
    combine,
    fingerprint_aggregates,
    key_bucket,
    read_fingerprint,
    row_hash,
    row_words,
)
from saga_spark.staging.write_metrics import WriteMetrics

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN, MAX = -(2**63), 2**63 - 1

SAME = {
    "integers of all sizes": ("(1Y), (-2Y)", "(1S), (-2S)", "(1), (-2)", "(1L), (-2L)"),
    "float and double": ("(float(0.5))", "(0.5D)"),
    "zeros": ("(0D)", "(-0D)"),
    "not a number": ("(double('NaN'))", "(float('NaN'))", "(0D * double('Infinity'))"),
    "decimals of any scale": (
        "(1.5BD)", "(1.50BD)", "(cast(1.5 as decimal(38,18)))", "(cast(1.5 as decimal(38,2)))",
        "(cast(1.5 as decimal(38,30)))",
    ),
    "decimals too large for a bigint": (
        "(cast(123456789012345.25 as decimal(18,2)))", "(cast(123456789012345.25 as decimal(38,10)))",
        "(cast(123456789012345.25 as decimal(38,2)))",
    ),
    "decimals too large for decimal(38, 18)": (
        "(cast('123456789012345678901234567890.5' as decimal(38,1)))",
        "(cast('123456789012345678901234567890.5' as decimal(38,3)))",
    ),
    "order of rows": ("(1, 'a'), (2, 'b'), (null, 'c')", "(null, 'c'), (2, 'b'), (1, 'a')"),
    "order in a map": ("(map('a', 1, 'b', null))", "(map('b', null, 'a', 1L))"),
    "numbers inside": (
        "(named_struct('x', 1, 'y', array(1.5BD)))", "(named_struct('x', 1L, 'y', array(1.50BD)))",
    ),
    "zeros inside": ("(array(0D))", "(array(-0D))"),
    "times at one instant": ("(timestamp'2026-01-01 00:00:00Z')", "(timestamp'2026-01-01 01:00:00+01:00')"),
}  # fmt: skip

DIFFERENT = {
    "where the null is": ("(null, 'a')", "('a', null)"),
    "null and empty text": ("('')", "(cast(null as string))"),
    "null and zero": ("(0)", "(cast(null as int))"),
    "where one text ends": ("('ab', 'c')", "('a', 'bc')"),
    "ten rows and eight others": (
        ", ".join(["(1)"] * 10), ", ".join(["(2)"] * 8), "(1)", "(1), (1), (1)", "(2), (2)",
    ),
    "pairs that XOR would forget": ("(1), (1), (2)", "(2)", "(3), (3), (2)"),
    "nulls in an array": ("(array(null, 1))", "(array(1, null))", "(array(1))", "(array(null, null, 1))"),
    "nothing, null, and null inside": (
        "(cast(null as array<int>))", "(cast(array() as array<int>))", "(cast(array(null) as array<int>))",
    ),
    "where an array ends": ("(array(array(), array(1)))", "(array(array(1), array()))"),
    "nulls in a struct": (
        "(named_struct('a', null, 'b', 'x'))", "(named_struct('a', 'x', 'b', null))",
        "(named_struct('a', cast(null as string), 'b', cast(null as string)))",
        "(cast(null as struct<a:string,b:string>))",
    ),
    "nulls in a map": (
        "(map('a', cast(null as int)))", "(map('a', 0))", "(cast(map() as map<string,int>))",
        "(cast(null as map<string,int>))",
    ),
    "a row of nulls more": ("(1)", "(1), (null)", "(1), (null), (null)"),
    "true and false": ("(true)", "(false)", "(cast(null as boolean))"),
    "negative decimals": ("(1.5BD)", "(-1.5BD)", "(15BD)", "(0.15BD)"),
    "which column": ("(1, 2)", "(2, 1)"),
    "the ends of bigint": (f"({MAX}L)", f"(cast('{MIN}' as bigint))"),
}  # fmt: skip


def hashes(spark: SparkSession, all_values: Sequence[str]) -> set[str]:
    """Hashes of the rows of each ``VALUES …``, from one query without an aggregation in Spark: it has no job."""
    from pyspark.sql import functions as F

    frames = [spark.sql(f"SELECT * FROM VALUES {values}") for values in all_values]
    hashed = [frame.select(F.lit(at), *row_hash(frame.schema)) for at, frame in enumerate(frames)]
    rows = functools.reduce(lambda frame, other: frame.union(other), hashed).collect()
    return {
        combine(Fingerprint(1, row[1] % 2**64, row[2] % 2**64) for row in rows if row[0] == at).hex
        for at in range(len(frames))
    }


@pytest.mark.parametrize("values", SAME.values(), ids=SAME.keys())
def test_the_same_rows_have_one_hash(spark: SparkSession, values: tuple[str, ...]) -> None:
    assert len(hashes(spark, values)) == 1


@pytest.mark.parametrize("values", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_other_rows_have_another_hash(spark: SparkSession, values: tuple[str, ...]) -> None:
    assert len(hashes(spark, values)) == len(values)


def test_aggregates_add_up_over_any_split_and_never_overflow(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    frame = spark.range(2_000).select("id", F.lit("the same in all rows").alias("t"), (F.col("id") % 3).alias("k"))
    sums = fingerprint_aggregates(row_words(frame.schema, ["id", "t"]), "h_")
    whole = read_fingerprint(frame.agg(*sums).first().asDict(), "h_")  # pyright: ignore[reportOptionalMemberAccess]
    parts = [read_fingerprint(row.asDict(), "h_") for row in frame.groupBy("k").agg(*sums).collect()]
    assert len(parts) == 3
    assert combine(parts) == whole
    assert whole.rows == 2_000
    shuffled = frame.repartition(3, "k").agg(*sums).first()
    assert shuffled is not None
    assert read_fingerprint(shuffled.asDict(), "h_") == whole
    equal = frame.select("t").agg(*fingerprint_aggregates(row_words(frame.select("t").schema))).first()
    assert equal is not None
    assert read_fingerprint(equal.asDict()).rows == 2_000


def test_a_write_pass_counts_what_a_pass_over_the_rows_counts(spark: SparkSession) -> None:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    frame = spark.range(2_000).selectExpr("id", "cast(id as int) as n", "if(id % 3 = 0, array(id), null) as a")
    metrics = WriteMetrics(frame.schema, {"odd": F.count_if(F.col("id") % 2 == 1), "n": ManifestMetric("n", "sum")})
    own, asked = Observation(), Observation()
    metrics.observe(frame, own, asked, classic=True).write.format("noop").mode("append").save()
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    seen = metrics.to_observed(metrics.observed_values(own, asked), {"id": 0, "n": 0})
    row = frame.agg(*metrics.expressions()).first()
    assert row is not None
    assert seen == metrics.to_observed(row.asDict(), {"id": 0, "n": 0})
    assert [column.nulls for column in seen.columns] == [0, 0, 1_333]
    assert seen.counts == {"odd": 1_000, "n": str(sum(range(2_000)))}


def test_columns_are_taken_in_the_order_given_and_buckets_by_the_key_alone(spark: SparkSession) -> None:
    frame = spark.sql("SELECT * FROM VALUES (1, 'a', 2), (5, 'b', 2) AS t(k, `odd.name`, v)")
    turned = frame.select("v", "`odd.name`", "k")

    def words(frame: object, columns: list[str]) -> list[tuple[int, int]]:
        return [tuple(row) for row in frame.select(*row_hash(frame.schema, columns)).collect()]  # type: ignore[attr-defined]

    assert words(frame, ["k", "odd.name"]) == words(turned, ["k", "odd.name"])
    assert words(frame, ["k", "v"]) != words(frame, ["v", "k"])
    first = [row[0] for row in frame.select(key_bucket(frame.schema, ["k"], 16)).collect()]
    other = spark.sql("SELECT * FROM VALUES (1L), (5L) AS t(k)")
    assert [row[0] for row in other.select(key_bucket(other.schema, ["k"], 16)).collect()] == first
    assert all(0 <= bucket < 16 for bucket in first)


def test_more_columns_than_flags_fit_into_one_number(spark: SparkSession) -> None:
    def row_with_null(at: int) -> str:
        return "(" + ", ".join("cast(null as int)" if place == at else "7" for place in range(70)) + ")"

    assert len(hashes(spark, [row_with_null(at) for at in (0, 1, 61, 62, 69)])) == 5


def test_a_field_is_not_the_column_of_a_table_that_is_called_like_its_struct(spark: SparkSession) -> None:
    frame = spark.sql("select * from values (named_struct('f', 1), 7), (named_struct('f', 2), 7) as t(t, f)")
    first, second = frame.select(*row_hash(frame.schema, ["t"])).collect()
    assert first != second
