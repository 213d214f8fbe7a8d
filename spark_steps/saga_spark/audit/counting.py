"""Checks that are one number over all rows: they ride along in the write pass and cost no pass of their own.

Rows for which a condition is null count as passing, as in SQL's CHECK constraints; `not_null` is there for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from saga_spark.errors import JobFailed
from saga_spark.frames import condition
from saga_spark.hashing import quoted
from saga_spark.job import Check, names
from saga_spark.observing import Known
from saga_spark.sums import summed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

KINDS = ("rows", "sum", "not_null", "accepted_values", "expression")


def counting(checks: Iterable[Check], output: str, frame: DataFrame) -> dict[str, Column | Known]:
    """Aggregates for the write pass by name, see :func:`count_name`; or what that pass counts in any case.

    Raises JobFailed: a check names a column that the output lacks, or its SQL is wrong.
    """
    found: dict[str, Column | Known] = {}
    for check in checks:
        if check.output == output and check.kind in KINDS:
            for name, column in _columns(check, frame):
                _must_resolve(check, frame, column)
                found[name] = _known(check, name, frame) or column
    return found


def count_name(check: Check, part: str = "") -> str:
    """Under which name the number of a check (and of one of its columns) is in the manifest."""
    return f"{check.name}/{part}" if part else check.name


def breaking(check: Check, frame: DataFrame, part: str = "") -> Column:
    """The condition that is true for a row of ``frame`` that breaks the check (of its column ``part``)."""
    from pyspark.sql import functions as F

    match check.kind:
        case "not_null":
            broken = F.col(quoted(part)).isNull()
        case "accepted_values":
            broken = ~_accepted(check, frame)
        case "expression":
            broken = ~F.expr(check.spec)
        case other:
            raise ValueError(f"{other} is not about single rows")
    return F.coalesce(broken & where(check.where), F.lit(False))


def where(filter: Any) -> Column:
    """The filter of a check; true for every row without one."""
    from pyspark.sql import functions as F

    return F.lit(True) if filter is None else condition(filter)


def parts(check: Check) -> tuple[str, ...]:
    """The columns of a check that counts each of them."""
    return names(check.spec) if check.kind == "not_null" else ("",)


def _columns(check: Check, frame: DataFrame) -> Iterator[tuple[str, Column]]:
    from pyspark.sql import functions as F

    match check.kind:
        case "rows":
            if check.where is not None:
                yield count_name(check), F.count_if(where(check.where))
        case "sum":
            column = F.col(quoted(check.spec["column"]))
            yield count_name(check), F.sum(F.when(where(check.where), exact(column, check, frame))).cast("string")
        case _:
            for part in parts(check):
                yield count_name(check, part), F.count_if(breaking(check, frame, part))


def _known(check: Check, name: str, frame: DataFrame) -> Known | None:
    if check.where is not None:
        return None
    if check.kind == "not_null":
        return next(Known(part, "nulls") for part in parts(check) if count_name(check, part) == name)
    if check.kind == "sum" and summed(_type(check, frame)):
        return Known(check.spec["column"], "sum")
    return None


def exact(column: Column, check: Check, frame: DataFrame) -> Column:
    """A number whose sum neither overflows nor rounds, unless it is a floating point number already."""
    from pyspark.sql import types as T

    kind = _type(check, frame)
    match kind:
        case T.ByteType() | T.ShortType() | T.IntegerType() | T.LongType():
            return column.cast("decimal(20,0)")
        case T.DecimalType() | T.FloatType() | T.DoubleType():
            return column
    name = check.spec["column"]
    raise JobFailed(f"the check {check.name} sums {name}, which is no number ({kind.simpleString()})")


def _accepted(check: Check, frame: DataFrame) -> Column:
    """Is the value one of the list? Null for null. Numbers are compared as numbers: 1.5 is 1.50, and 1 is 1.0."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    kind, values = _type(check, frame), check.spec["values"]
    column = F.col(quoted(check.spec["column"]))
    match kind:
        case T.FloatType() | T.DoubleType():
            found = [F.lit(float(one)).cast(kind) for one in _numbers(values)]
        case T.NumericType():
            found = [F.lit(one) for one in _numbers(values)]
        case _:
            column, found = column.cast("string"), [_text(value) for value in values]
    return F.when(column.isNotNull(), column.isin(found))


def _numbers(values: Iterable[Any]) -> Iterator[Decimal]:
    """Those that are numbers; results of steps bring them as texts. No column of numbers has any other value."""
    for value in values:
        with contextlib.suppress(InvalidOperation):
            number = Decimal(str(value))
            if number.is_finite():
                yield number


def _type(check: Check, frame: DataFrame) -> DataType:
    """The type of the column that the check names. Raises JobFailed: there is none."""
    name = check.spec["column"]
    for field in frame.schema.fields:
        if field.name == name:
            return field.dataType
    raise _unknown(check, name, frame)


def _must_resolve(check: Check, frame: DataFrame, column: Column) -> None:
    from pyspark.errors import AnalysisException, ParseException

    for name in _named(check):
        if name not in frame.columns:
            raise _unknown(check, name, frame)
    try:
        _ = frame.agg(column).schema
    except (AnalysisException, ParseException) as error:
        first = (error.getMessage() if hasattr(error, "getMessage") else str(error)).strip().splitlines()[0]
        raise JobFailed(f"the check {check.name} cannot be evaluated: {first}") from None


def _named(check: Check) -> tuple[str, ...]:
    match check.kind:
        case "not_null":
            return names(check.spec)
        case "sum" | "accepted_values":
            return (check.spec["column"],)
    return ()


def _unknown(check: Check, name: str, frame: DataFrame) -> JobFailed:
    return JobFailed(f"the check {check.name} names the column {name}, and the output has {', '.join(frame.columns)}")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
