"""Checks over real rows: what they count as broken, whatever the columns are called and typed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from saga_spark.audit.counting import breaking, counting
from saga_spark.audit.passes import run_pass
from saga_spark.audit.sides import side_name
from saga_spark.job import Check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check(kind: str, spec: Any, **more: Any) -> Check:
    return Check.parse(1, {"name": "c", kind: spec, **more}, ["output"])


def test_a_relationship_of_an_output_with_a_column_called_known(spark: SparkSession) -> None:
    one = check("relationships", {"column": "product", "to": {}, "field": "id"})
    frame = spark.createDataFrame([(1, True), (2, True), (None, False)], "product int, known boolean")
    other = spark.createDataFrame([(1,)], "id int")
    found = run_pass(one, {"output": frame}, {side_name(one): other})
    assert (found.broken, found.details) == (True, {"rows": 1})


@pytest.mark.parametrize(
    ("column", "values", "broken"),
    [
        ("decimal(12,2)", [1.5, 2], 1),
        ("double", [2, "3.0"], 1),
        ("int", [1, "2"], 1),
        ("string", [1, 2], 3),  # text is text: 1.50 is not 1.5, and neither is 1.0 one
    ],
)
def test_accepted_numbers_are_numbers_however_they_are_written(
    spark: SparkSession, column: str, values: list[Any], broken: int
) -> None:
    one = check("accepted_values", {"column": "v", "values": values})
    texts = {"int": ["1", "2", "3"], "string": ["1.50", "2.0", "x"]}.get(column, ["1.50", "2", "3"])
    frame = spark.createDataFrame([(text,) for text in [*texts, None]], "v string")
    frame = frame.withColumn("v", frame["v"].cast(column))
    [(_, counted)] = counting([one], "output", frame).items()
    [row] = frame.agg(counted).collect()
    assert (row[0], frame.where(breaking(one, frame)).count()) == (broken, broken)
