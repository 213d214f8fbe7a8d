"""Parameters of Spark SQL as a real Spark takes them."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from saga_spark.job.sql_parameters import run_sql
from sagas.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

D = Decimal


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (12, "int"),
        (2**62, "bigint"),
        (2**70, "decimal(22,0)"),
        (D("1.10"), "decimal(3,2)"),
        (D("12345678901234567890.123456789012345678"), "decimal(38,18)"),
        ("x", "string"),
        ("", "string"),
        (True, "boolean"),
        (None, "void"),
        ([1, 2], "array<int>"),
        ([D("1.10"), 2, None], "array<decimal(3,2)>"),
        ([D("1.10"), D(10**35)], "array<decimal(38,2)>"),
        ([1, 2**70], "array<decimal(22,0)>"),
        ([D("0.00"), D("1E+5")], "array<decimal(8,2)>"),
        (["a", None], "array<string>"),
        ([True, False], "array<boolean>"),
        ([None], "array<void>"),
        ([], "array<void>"),
        ([[1], [2, 3]], "array<array<int>>"),
    ],
)
def test_a_parameter_keeps_its_value(value: Any, kind: str, spark: SparkSession) -> None:
    frame = run_sql(spark, "select :v as v /* :w */", {"v": value, "unused": {}})
    assert frame.schema["v"].dataType.simpleString() == kind
    assert frame.collect()[0].v == value


def test_placeholders_are_replaced_where_spark_sees_them(spark: SparkSession) -> None:
    text = """select ':v' as a, :v::string as b, array_contains(:list, cast(:v as decimal(20, 5))) as c /* :v */
              from identifier(:view) where :v > 1 limit :n"""
    spark.sql("select 1").createOrReplaceTempView("p1")
    params = {"v": D("1.10"), "list": [2, None, D("1.1")], "view": "p1", "n": 1}
    assert [tuple(row) for row in run_sql(spark, text, params).collect()] == [(":v", "1.10", True)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (D("1." + "1" * 38), "the param v has more digits than a decimal of Spark can hold"),
        ([1, 10**40], "the param v has more digits than a decimal of Spark can hold"),
        ([D("1.10"), D(10**37)], "no decimal of Spark holds together .38 digits before the point, 2 after it"),
        ([1, "2"], "the param v is a list of strings and other values"),
        ([1, True], "the param v is a list of strings and other values"),
        ({"a": 1}, "the param v is an object"),
        ([{"a": 1}], "the param v is an object"),
    ],
)
def test_a_parameter_that_spark_cannot_hold_is_refused(value: Any, message: str, spark: SparkSession) -> None:
    with pytest.raises(UsageError, match=message):
        run_sql(spark, "select :v", {"v": value})
