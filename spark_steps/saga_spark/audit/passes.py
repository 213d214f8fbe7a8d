"""Checks that need a pass of their own over the staged files, and the sample rows of those that broke."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from saga_spark.audit.counting import breaking, parts, where
from saga_spark.audit.result import CheckResult
from saga_spark.audit.sides import side_name
from saga_spark.errors import JobFailed
from saga_spark.hashing import quoted
from saga_spark.job import Check, names
from saga_spark.reconcile.compare import compare
from saga_spark.reconcile.spec import Spec

SAMPLES = 5
"""How many breaking rows a report shows of each check."""


KNOWN = "saga_known"
"""The other side's column, under a name that no output has."""


def run_pass(check: Check, frames: Mapping[str, DataFrame], inputs: Mapping[str, DataFrame]) -> CheckResult:
    """``frames`` are the staged outputs by name. Raises JobFailed, UsageError."""
    frame = frames[check.output]
    try:
        match check.kind:
            case "unique":
                return _unique(check, frame)
            case "relationships":
                return _relationships(check, frame, inputs[side_name(check)])
            case "sql":
                return _sql(check, frame, frames, inputs)
            case "reconcile":
                return _reconcile(check, frame, inputs[side_name(check)])
    except (AnalysisException, ParseException) as error:
        first = str(error).strip().splitlines()[0]
        raise JobFailed(f"the check {check.name} cannot be evaluated: {first}") from None
    raise ValueError(f"{check.kind} is counted in the write pass")


def samples(check: Check, frame: DataFrame) -> list[dict[str, Any]]:
    """Some of the rows that break a check which the write pass has counted."""
    if check.kind not in ("not_null", "accepted_values", "expression"):
        return []
    conditions = [breaking(check, frame, part) for part in parts(check)]
    return rows_of(frame.where(reduce(lambda one, other: one | other, conditions)))


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """At most ``SAMPLES`` rows as JSON values."""
    return [
        json.loads(row)
        for row in frame.limit(SAMPLES)
        .select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}))
        .toPandas()
        .iloc[:, 0]
    ]


def _unique(check: Check, frame: DataFrame) -> CheckResult:
    """Rows with a null in the columns are left to `not_null`, as in SQL's UNIQUE."""
    columns = [quoted(name) for name in names(check.spec)]
    _must_have(check, frame, names(check.spec))
    present = reduce(lambda one, other: one & other, (F.col(name).isNotNull() for name in columns))
    doubled = (
        frame.where(where(check.where) & present)
        .groupBy(*columns)
        .agg(F.count("*").alias("rows"))
        .where(F.col("rows") > 1)
    )
    found = doubled.agg(F.count("*"), F.sum("rows")).collect()[0]
    count, rows = found[0], found[1] or 0
    told = ", ".join(names(check.spec))
    if not count:
        return CheckResult(check, False, f"{told} is unique")
    message = f"{count} values of {told} are there more than once ({rows} rows)"
    return CheckResult(check, True, message, {"values": count, "rows": rows}, rows_of(doubled))


def _relationships(check: Check, frame: DataFrame, other: DataFrame) -> CheckResult:
    column, field = check.spec["column"], check.spec["field"]
    _must_have(check, frame, (column,))
    _must_have(check, other, (field,), "the other side")
    known = other.select(F.col(quoted(field)).alias(KNOWN)).distinct()
    own = frame.where(where(check.where) & F.col(quoted(column)).isNotNull())
    orphans = own.join(known, F.col(quoted(column)) == F.col(KNOWN), "left_anti")
    count = orphans.count()
    if not count:
        return CheckResult(check, False, f"every {column} is known")
    message = f"{count} rows with a {column} that the other side does not have as {field}"
    return CheckResult(check, True, message, {"rows": count}, rows_of(orphans))


def _sql(
    check: Check, frame: DataFrame, frames: Mapping[str, DataFrame], inputs: Mapping[str, DataFrame]
) -> CheckResult:
    for name, one in {**inputs, **frames, "output": frame}.items():
        one.createOrReplaceTempView(quoted(name))
    found = frame.sparkSession.sql(check.spec)
    count = found.count()
    if not count:
        return CheckResult(check, False, "the query found no row")
    return CheckResult(
        check, True, f"the query found {count} rows, and must find none", {"rows": count}, rows_of(found)
    )


def _reconcile(check: Check, frame: DataFrame, other: DataFrame) -> CheckResult:
    """The staged output is the left side."""
    spec = Spec.parse({**check.spec, "filter": check.where})
    told = compare(frame, other, spec)
    broken = told["verdict"] != "equal"
    details = {name: told[name] for name in ("counts", "left", "right", "tolerance")}
    return CheckResult(check, broken, told["message"], details, told["samples"][:SAMPLES])


def _must_have(check: Check, frame: DataFrame, columns: tuple[str, ...], who: str = "the output") -> None:
    for name in columns:
        if name not in frame.columns:
            raise JobFailed(f"the check {check.name} names the column {name}, and {who} has {', '.join(frame.columns)}")
