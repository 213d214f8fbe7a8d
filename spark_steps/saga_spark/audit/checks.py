"""The checks of the audit: metrics counted in the write pass, checks that read the data, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import reduce
from typing import Any, Literal

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from saga_spark.column_values import filter_condition, has_value
from saga_spark.job.job_spec import Check, as_names, comparison_input_name
from saga_spark.job.sql_parameters import run_sql
from saga_spark.job_errors import first_line
from saga_spark.manifest import Manifest, ManifestMetric, has_exact_sum
from saga_spark.reconcile.comparison import compare_tables
from saga_spark.reconcile.reconcile_spec import ComparisonSpec
from sagas.errors import UsageError
from sagas.text.exact_json import decode_json
from sagas.text.shortening import counted
from sagas.text.sql_names import backquoted

CheckStatus = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check. ``message`` is one sentence, ``details`` are the numbers behind it, ``samples`` some of
    the violating rows.
    """

    check: Check
    violated: bool
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)
    samples: Sequence[Mapping[str, Any]] = ()

    @property
    def status(self) -> CheckStatus:
        if not self.violated:
            return "pass"
        return "warn" if self.check.severity == "warn" else "fail"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.check.name,
            "kind": self.check.kind,
            "output": self.check.output,
            "severity": self.check.severity,
            "status": self.status,
            "message": self.message,
            "details": dict(self.details),
            "samples": [dict(sample) for sample in self.samples],
        }


def overall_verdict(results: Sequence[CheckResult]) -> CheckStatus:
    """The worst status of all results."""
    statuses = {result.status for result in results}
    return "fail" if "fail" in statuses else ("warn" if "warn" in statuses else "pass")


# Checks based on a metric over all rows, which is computed in the write pass at no extra pass over the data.
#
# Rows for which a condition is null count as passing, as in SQL's CHECK constraints; `not_null` covers nulls.
METRIC_CHECKS = ("rows", "sum", "not_null", "accepted_values", "expression")


def metric_aggregates(checks: Iterable[Check], output: str, frame: DataFrame) -> dict[str, Column | ManifestMetric]:
    """The metrics that the checks need, by name (see :func:`metric_name`): aggregates for the write pass, or metrics
    that it computes anyway.

    Raises UsageError if a check refers to a column that the output lacks, or its SQL is invalid.
    """
    metrics: dict[str, Column | ManifestMetric] = {}
    for check in checks:
        if check.output == output and check.kind in METRIC_CHECKS:
            for name, column in _check_metrics(check, frame):
                _check_columns_resolve(check, frame, column)
                metrics[name] = _manifest_metric(check, name, frame) or column
    return metrics


def metric_name(check: Check, part: str = "") -> str:
    """The name in the manifest of the metric of a check (and of one of its columns)."""
    return f"{check.name}/{part}" if part else check.name


def violation_condition(check: Check, frame: DataFrame, part: str = "") -> Column:
    """A condition that is true for the rows of ``frame`` that violate the check (for its column ``part``)."""
    match check.kind:
        case "not_null":
            broken = F.col(backquoted(part)).isNull()
        case "accepted_values":
            broken = ~_is_accepted(check, frame)
        case "expression":
            broken = ~F.expr(check.spec)
        case other:
            raise ValueError(f"{other} does not check single rows")
    return F.coalesce(broken & _row_filter(check, frame), F.lit(False))


def _row_filter(check: Check, frame: DataFrame) -> Column:
    """The filter of a check; true for every row if there is none."""
    return filter_condition(check.where, frame.schema, f"`where` of the check {check.name}")


def checked_columns(check: Check) -> tuple[str, ...]:
    """The columns of a check that counts each of its columns separately."""
    return as_names(check.spec) if check.kind == "not_null" else ("",)


def _check_metrics(check: Check, frame: DataFrame) -> Iterator[tuple[str, Column]]:
    match check.kind:
        case "rows":
            if check.where is not None:
                yield metric_name(check), F.count_if(_row_filter(check, frame))
        case "sum":
            number = exact_number(F.col(backquoted(check.spec["column"])), check, frame)
            yield metric_name(check), F.sum(F.when(_row_filter(check, frame), number)).cast("string")
        case _:
            for part in checked_columns(check):
                yield metric_name(check, part), F.count_if(violation_condition(check, frame, part))


def _manifest_metric(check: Check, name: str, frame: DataFrame) -> ManifestMetric | None:
    if check.where is not None:
        return None
    if check.kind == "not_null":
        return next(
            ManifestMetric(part, "nulls") for part in checked_columns(check) if metric_name(check, part) == name
        )
    if check.kind == "sum" and has_exact_sum(_column_type(check, frame)):
        return ManifestMetric(check.spec["column"], "sum")
    return None


def exact_number(column: Column, check: Check, frame: DataFrame) -> Column:
    """A number whose sum neither overflows nor rounds, except for floating-point columns."""
    kind = _column_type(check, frame)
    match kind:
        case T.ByteType() | T.ShortType() | T.IntegerType() | T.LongType():
            return column.cast("decimal(20,0)")
        case T.DecimalType() | T.FloatType() | T.DoubleType():
            return column
    name = check.spec["column"]
    raise UsageError(f"the check {check.name} sums {name}, which is not a number but {kind.simpleString()}")


def _is_accepted(check: Check, frame: DataFrame) -> Column:
    """Return whether the value is in the list; null if it is null. Numbers compare by value: 1.5 equals 1.50."""
    name = check.spec["column"]
    accepted = has_value(name, _column_type(check, frame), check.spec["values"], f"the check {check.name}")
    return F.when(F.col(backquoted(name)).isNotNull(), accepted)


def _column_type(check: Check, frame: DataFrame) -> T.DataType:
    """The type of the column that the check names. Raises UsageError if it does not exist."""
    name = check.spec["column"]
    for column in frame.schema.fields:
        if column.name == name:
            return column.dataType
    raise _unknown_column(check, name, frame)


def _check_columns_resolve(check: Check, frame: DataFrame, column: Column) -> None:
    for name in _named_columns(check):
        if name not in frame.columns:
            raise _unknown_column(check, name, frame)
    try:
        _ = frame.agg(column).schema
    except (AnalysisException, ParseException) as error:
        first = (error.getMessage() if hasattr(error, "getMessage") else str(error)).strip().splitlines()[0]
        raise UsageError(f"the check {check.name} cannot be evaluated: {first}") from None


def _named_columns(check: Check) -> tuple[str, ...]:
    match check.kind:
        case "not_null":
            return as_names(check.spec)
        case "sum" | "accepted_values":
            return (check.spec["column"],)
    return ()


def _unknown_column(check: Check, name: str, frame: DataFrame) -> UsageError:
    return UsageError(f"the check {check.name} names the column {name}; the output has {', '.join(frame.columns)}")


def evaluate_metrics(check: Check, manifest: Manifest, previous_rows: int | None) -> CheckResult:
    """Evaluate a check by the metrics of the manifest. ``previous_rows``: the row count of the last publication of this
    output with rows; None if there was none.
    """
    match check.kind:
        case "rows":
            return _evaluate_rows(check, manifest, previous_rows)
        case "sum":
            return _evaluate_sum(check, manifest)
    broken = {part: int(manifest.counts.get(metric_name(check, part)) or 0) for part in checked_columns(check)}
    total = sum(broken.values())
    if check.kind == "not_null":
        where = ", ".join(f"{count} in {name}" for name, count in broken.items() if count)
        message = f"no null in {', '.join(broken)}" if not total else f"{counted(total, 'null')}: {where}"
    elif check.kind == "accepted_values":
        column = check.spec["column"]
        message = (
            f"{column} has accepted values only"
            if not total
            else f"{counted(total, 'row has', 'rows have')} a value in {column} that is not accepted"
        )
    else:
        message = (
            f"{check.spec} holds" if not total else f"{counted(total, 'row violates', 'rows violate')} {check.spec}"
        )
    return CheckResult(check, total > 0, message, {"rows": total, **({} if "" in broken else {"columns": broken})})


def _evaluate_rows(check: Check, manifest: Manifest, previous: int | None) -> CheckResult:
    rows = manifest.rows if check.where is None else int(manifest.counts[metric_name(check)] or 0)
    spec = check.spec
    details: dict[str, Any] = {"rows": rows}
    problems = _limit_problems(check, Decimal(rows), "rows", details)
    accepted = _limit_value(check, "accept") if spec.get("accept") is not None else None
    level = (previous or None) if accepted is None else accepted
    if "change" in spec and level is not None:
        allowed = Decimal(str(spec["change"]).rstrip("%"))
        change = abs(Decimal(rows) - level) * 100 / level if level else Decimal(0 if rows == 0 else 100)
        details |= {"previous": previous, "change": f"{change:.1f}%"}
        if accepted is not None:
            details["accepted"] = format(accepted, "f")
        if change > allowed:
            origin = "in the last publication with rows" if accepted is None else "that `accept` names"
            problems.append(
                f"{counted(rows, 'row')} after {Decimal(level):f} {origin}, a change of "
                f"{change:.1f}% (allowed {allowed}%); "
                f"if {rows} is right, start the saga again with `accept: {rows}` in this check"
            )
        elif accepted is not None:
            return CheckResult(
                check,
                bool(problems),
                "; ".join(problems) or f"{counted(rows, 'row')}, {accepted:f} were accepted",
                details,
            )
    return CheckResult(check, bool(problems), "; ".join(problems) or counted(rows, "row"), details)


def _evaluate_sum(check: Check, manifest: Manifest) -> CheckResult:
    column = check.spec["column"]
    total = Decimal(manifest.counts.get(metric_name(check)) or 0)
    details: dict[str, Any] = {"sum": format(total, "f")}
    if not total.is_finite():
        return CheckResult(
            check, True, f"the sum of {column} is not a number, because rows have NaN or infinity", details
        )
    problems = _limit_problems(check, total, f"as the sum of {column}", details)
    return CheckResult(check, bool(problems), "; ".join(problems) or f"the sum of {column} is {total:f}", details)


def _limit_problems(check: Check, actual: Decimal, measure: str, details: dict[str, Any]) -> list[str]:
    tolerance = _limit_value(check, "tolerance") or Decimal(0)
    problems = []
    for name, wording, breaks in (
        ("equals", "expected", lambda limit: abs(actual - limit) > tolerance),
        ("min", "at least", lambda limit: actual < limit),
        ("max", "at most", lambda limit: actual > limit),
    ):
        limit = _limit_value(check, name)
        if limit is not None:
            details[name] = format(limit, "f")
            if breaks(limit):
                noun = "row" if (measure, limit) == ("rows", 1) else measure
                problems.append(f"{wording} {limit:f} {noun}, found {actual:f}")
    return problems


def _limit_value(check: Check, name: str) -> Decimal | None:
    """A limit as a number, which may be written as a string."""
    if name not in check.spec:
        return None
    value: Mapping[str, Any] | Any = check.spec[name]
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        number = Decimal("NaN")
    if isinstance(value, bool) or not number.is_finite():
        raise UsageError(f"the check {check.name}: `{name}` must be a number, not {value!r}")
    return number


# Checks that need their own pass over the staged files, and sample rows of failed checks.
SAMPLE_ROWS = 5
"""Maximum number of violating rows that a report shows per check."""


KNOWN_VALUES = "saga_known"
"""Name of the other side's column, which no output uses."""


def run_data_check(
    check: Check, frames: Mapping[str, DataFrame], inputs: Mapping[str, DataFrame], params: Mapping[str, Any]
) -> CheckResult:
    """Run a data check of the project. ``frames`` are the staged outputs by name, ``params`` those of the step. Raises
    UsageError.
    """
    frame = frames[check.output]
    try:
        match check.kind:
            case "unique":
                return _check_unique(check, frame)
            case "relationships":
                return _check_relationships(check, frame, inputs[comparison_input_name(check)])
            case "sql":
                return _check_sql(check, frame, frames, inputs, params)
            case "reconcile":
                return _check_reconcile(check, frame, inputs[comparison_input_name(check)])
    except (AnalysisException, ParseException) as error:
        raise UsageError(f"the check {check.name} cannot be evaluated: {first_line(error)}") from None
    raise ValueError(f"{check.kind} is counted in the write pass")


def violating_rows(check: Check, frame: DataFrame) -> list[dict[str, Any]]:
    """Samples of the rows that violate a check whose metric the write pass has counted."""
    if check.kind not in ("not_null", "accepted_values", "expression"):
        return []
    conditions = [violation_condition(check, frame, part) for part in checked_columns(check)]
    return sample_rows(frame.where(reduce(lambda condition, other: condition | other, conditions)))


def sample_rows(frame: DataFrame) -> list[dict[str, Any]]:
    """At most ``SAMPLE_ROWS`` rows as JSON values."""
    return [
        decode_json(row)
        for row in frame.limit(SAMPLE_ROWS)
        .select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}))
        .toPandas()
        .iloc[:, 0]
    ]


def _check_unique(check: Check, frame: DataFrame) -> CheckResult:
    """Rows with a null in the columns are ignored, as in SQL's UNIQUE; `not_null` covers them."""
    columns = [backquoted(name) for name in as_names(check.spec)]
    _require_columns(check, frame, as_names(check.spec))
    present = reduce(lambda condition, other: condition & other, (F.col(name).isNotNull() for name in columns))
    duplicates = (
        frame.where(_row_filter(check, frame) & present)
        .groupBy(*columns)
        .agg(F.count("*").alias("rows"))
        .where(F.col("rows") > 1)
    )
    totals = duplicates.agg(F.count("*"), F.sum("rows")).collect()[0]
    count, rows = totals[0], totals[1] or 0
    key_text = ", ".join(as_names(check.spec))
    if not count:
        return CheckResult(check, False, f"{key_text} is unique")
    message = (
        f"{counted(count, 'value')} of {key_text} {'occurs' if count == 1 else 'occur'} "
        f"more than once ({counted(rows, 'row')})"
    )
    return CheckResult(check, True, message, {"values": count, "rows": rows}, sample_rows(duplicates))


def _check_relationships(check: Check, frame: DataFrame, other: DataFrame) -> CheckResult:
    column, field = check.spec["column"], check.spec["field"]
    _require_columns(check, frame, (column,))
    _require_columns(check, other, (field,), "the other side")
    existing = other.select(F.col(backquoted(field)).alias(KNOWN_VALUES)).distinct()
    own = frame.where(_row_filter(check, frame) & F.col(backquoted(column)).isNotNull())
    orphans = own.join(existing, F.col(backquoted(column)) == F.col(KNOWN_VALUES), "left_anti")
    count = orphans.count()
    if not count:
        return CheckResult(check, False, f"every {column} exists on the other side")
    message = f"{counted(count, 'row has', 'rows have')} a {column} that does not exist on the other side as {field}"
    return CheckResult(check, True, message, {"rows": count}, sample_rows(orphans))


def _check_sql(
    check: Check,
    frame: DataFrame,
    frames: Mapping[str, DataFrame],
    inputs: Mapping[str, DataFrame],
    params: Mapping[str, Any],
) -> CheckResult:
    for name, table in {**inputs, **frames, "output": frame}.items():
        table.createOrReplaceTempView(backquoted(name))
    violations = run_sql(frame.sparkSession, check.spec, params)
    count = violations.count()
    if not count:
        return CheckResult(check, False, "the query found no row")
    return CheckResult(
        check,
        True,
        f"the query found {counted(count, 'row')} and must find none",
        {"rows": count},
        sample_rows(violations),
    )


def _check_reconcile(check: Check, frame: DataFrame, other: DataFrame) -> CheckResult:
    """Compare with the other table; the staged output is the left side."""
    spec = ComparisonSpec.parse({**check.spec, "filter": check.where})
    comparison = compare_tables(frame, other, spec)
    broken = comparison["verdict"] != "equal"
    details = {name: comparison[name] for name in ("counts", "left", "right", "tolerance")}
    return CheckResult(check, broken, comparison["message"], details, comparison["samples"][:SAMPLE_ROWS])


def _require_columns(check: Check, frame: DataFrame, columns: tuple[str, ...], side: str = "the output") -> None:
    for name in columns:
        if name not in frame.columns:
            raise UsageError(f"the check {check.name} names the column {name}; {side} has {', '.join(frame.columns)}")
