"""Checks over real rows: violations, independent of column names and types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from saga_spark.audit.checks import metric_aggregates, run_data_check, violation_condition
from saga_spark.job.job_spec import Check, comparison_input_name
from saga_spark.manifest import ManifestMetric

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check(kind: str, spec: Any, **more: Any) -> Check:
    return Check.parse(1, {"name": "c", kind: spec, **more}, ["output"])


def test_a_relationship_check_with_a_column_named_known(spark: SparkSession) -> None:
    relationship = check("relationships", {"column": "product", "to": {}, "field": "id"})
    frame = spark.sql("SELECT * FROM VALUES (1, true), (2, true), (null, false) AS t(product, known)")
    other = spark.sql("SELECT 1 AS id")
    data_check = run_data_check(relationship, {"output": frame}, {comparison_input_name(relationship): other}, {})
    assert (data_check.violated, data_check.details) == (True, {"rows": 1})


@pytest.mark.parametrize(
    ("column", "values", "broken"),
    [
        ("decimal(12,2)", [1.5, 2], 1),
        ("double", [2, "3.0"], 1),
        ("int", [1, "2"], 1),
        ("string", ["1.5", "2.0", None], 2),  # text is text: 1.50 is not 1.5
    ],
)
def test_accepted_values_compare_numbers_by_value(
    spark: SparkSession, column: str, values: list[Any], broken: int
) -> None:
    accepted = check("accepted_values", {"column": "v", "values": values})
    texts = {"int": ["1", "2", "3"], "string": ["1.50", "2.0", "x"]}.get(column, ["1.50", "2", "3"])
    rows = ", ".join(f"('{text}')" for text in texts)
    frame = spark.sql(f"SELECT cast(v AS {column}) AS v FROM VALUES {rows}, (null) AS t(v)")
    [(_, counted)] = metric_aggregates([accepted], "output", frame).items()
    assert not isinstance(counted, ManifestMetric)
    [row] = frame.agg(counted).collect()
    assert (row[0], frame.where(violation_condition(accepted, frame)).count()) == (broken, broken)
