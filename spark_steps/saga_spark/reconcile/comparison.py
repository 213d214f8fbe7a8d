"""Compares two tables: by fingerprints first, then key by key in those buckets whose fingerprints differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from saga_spark.column_values import filter_condition
from saga_spark.inputs.frozen_inputs import freeze_inputs, open_inputs
from saga_spark.reconcile.reconcile_spec import ComparisonSpec
from saga_spark.reconcile.row_differences import DIFFERENCE_KINDS, DifferenceKind, difference_kind, same_value
from saga_spark.row_fingerprint import (
    Fingerprint,
    combine,
    fingerprint_aggregates,
    key_bucket,
    read_fingerprint,
    row_hash,
    row_words,
    signed_halves,
)
from saga_spark.runner.task_context import TaskContext
from sagas.errors import UsageError, did_you_mean
from sagas.text.shortening import counted
from sagas.text.sql_names import backquoted

HASH_HALVES = ("low1", "high1", "low2", "high2")


@dataclass(frozen=True, slots=True)
class TableDifference:
    """The keys under which two tables differ. ``rows`` has one row for each: ``kind``, the key ``k0 …``, ``left_rows``
    and ``right_rows`` (the number of rows with the key on each side), ``left`` and ``right`` (the values ``v0 …`` of
    one of these rows).
    """

    left: Fingerprint
    right: Fingerprint
    buckets: int
    rows: DataFrame | None
    aligned: AlignedSides


def find_difference(left: DataFrame, right: DataFrame, spec: ComparisonSpec) -> TableDifference:
    """Find where two sides differ; ``rows`` is None if the fingerprints are equal. Raises UsageError."""
    aligned = align_sides(left, right, spec)
    key, columns = _key_columns(aligned), [*_key_columns(aligned), *_value_columns(aligned)]
    left_buckets, right_buckets = bucket_fingerprints((aligned.left, aligned.right), key, columns)
    differing = differing_buckets(left_buckets, right_buckets)
    rows = _differing_keys(aligned, spec.tolerance, differing) if differing else None
    return TableDifference(
        combine(left_buckets.values()), combine(right_buckets.values()), len(differing), rows, aligned
    )


def compare_tables(left: DataFrame, right: DataFrame, spec: ComparisonSpec) -> dict[str, Any]:
    """The verdict (``equal`` or ``different``) with counts, fingerprints and samples, as JSON. Raises UsageError.

    Each sample has its ``kind``, its ``key``, both sides' values (None: no such row) and the ``columns`` that differ.
    """
    difference = find_difference(left, right, spec)
    counts: dict[DifferenceKind, int] = dict.fromkeys(DIFFERENCE_KINDS, 0)
    samples: list[dict[str, Any]] = []
    if difference.rows is not None:
        with persisted(difference.rows) as rows:
            counts.update({row["kind"]: row["count"] for row in rows.groupBy("kind").count().collect()})
            for kind in DIFFERENCE_KINDS:
                if counts[kind]:
                    sampled = rows.where(F.col("kind") == kind).orderBy(*_key_columns(difference.aligned))
                    samples += [
                        _to_sample(row, difference.aligned, spec.tolerance)
                        for row in sampled.limit(spec.samples).collect()
                    ]
    verdict = "different" if any(counts.values()) else "equal"
    return {
        "verdict": verdict,
        "message": comparison_message(counts, difference.left.rows, difference.right.rows),
        "left": {"rows": difference.left.rows, "fingerprint": difference.left.hex},
        "right": {"rows": difference.right.rows, "fingerprint": difference.right.hex},
        "counts": counts,
        "buckets": {"all": BUCKETS, "different": difference.buckets},
        "key": list(spec.key),
        "compared": list(difference.aligned.values),
        "tolerance": None if spec.tolerance is None else str(spec.tolerance),
        "samples": samples,
    }


def comparison_message(counts: Mapping[DifferenceKind, int], left: int, right: int) -> str:
    """The verdict as a message."""
    if not any(counts.values()):
        return f"both sides are equal: {counted(left, 'row')}"
    labels: Mapping[DifferenceKind, str] = {
        "missing_left": "missing on the left",
        "missing_right": "missing on the right",
        "differing": "with different values",
        "duplicate": "with duplicate keys",
    }
    summary = ", ".join(f"{counts[kind]} {labels[kind]}" for kind in DIFFERENCE_KINDS if counts[kind])
    return f"the sides differ ({left} and {right} rows): {summary}"


@contextmanager
def persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """Persist a frame within the block, so that it is computed once."""
    frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield frame
    finally:
        frame.unpersist()


def _differing_keys(aligned: AlignedSides, tolerance: Decimal | None, buckets: Sequence[int]) -> DataFrame:
    """The differing keys of these buckets.

    Both sides are grouped together: unlike a join this shuffles once, and it sorts only where values must be shown.
    Without values, as many rows on both sides are the same rows, so they need no hash.
    """
    key, values = _key_columns(aligned), _value_columns(aligned)
    both = _rows_of_buckets(aligned.left, aligned, buckets, 1).unionAll(
        _rows_of_buckets(aligned.right, aligned, buckets, -1)
    )
    # As SQL, which Spark parses in one call: Column objects of the same take hundreds.
    counted = ["count_if(side = 1) AS left_rows", "count_if(side = -1) AS right_rows"]
    if values:
        row = f"struct({', '.join(values)})"
        counted += [f"sum({name}) AS {name}" for name in HASH_HALVES]
        counted += [
            f"first(if(side = {sign}, {row}, null), true) AS `{name}`" for sign, name in ((1, "left"), (-1, "right"))
        ]
        # A row cannot be kept in a hash aggregation; repartitioning first avoids a second sort before the shuffle.
        both = both.repartition(*key)
    grouped = both.groupBy(*key).agg(*(F.expr(expression) for expression in counted))
    if not values:
        there = (f"if({name}_rows > 0, struct(true AS there), null) AS `{name}`" for name in ("left", "right"))
        grouped = grouped.selectExpr("*", *there)
    same_rows = " AND ".join(["left_rows = right_rows", *(f"{name} = 0" for name in (HASH_HALVES if values else ()))])
    same_values = [
        same_value(
            *(sides := (f"`left`.{name}", f"`right`.{name}")), _is_close(*sides, tolerance, aligned.numbers.get(index))
        )
        for index, name in enumerate(values)
    ]
    kind = f"{difference_kind(same_rows, same_values)} AS kind"
    classified = grouped.selectExpr(kind, *key, "left_rows", "right_rows", "`left`", "`right`")
    return classified.where(F.col("kind").isNotNull())


def _rows_of_buckets(side: DataFrame, aligned: AlignedSides, buckets: Sequence[int], sign: int) -> DataFrame:
    """The rows of the differing buckets, with ``side``: 1 for the left, -1 for the right.

    With values they have the halves of their hash times ``side``, which add up to zero where both sides have the same
    rows.
    """
    key, values = _key_columns(aligned), _value_columns(aligned)
    if len(buckets) < BUCKETS:
        side = side.where(key_bucket(side.schema, key, BUCKETS).isin(list(buckets)))
    rows = [*key, *values, f"{sign} AS side"]
    if not values:
        return side.selectExpr(*rows)
    words = row_words(side.schema, [*key, *values])
    hashed = side.selectExpr(*rows, *(f"{word} AS word{number}" for number, word in enumerate(words, 1)))
    halves = (half for number in (1, 2) for half in signed_halves(f"word{number}"))
    named = (f"side * {half} AS {name}" for half, name in zip(halves, HASH_HALVES, strict=True))
    return hashed.selectExpr(*key, *values, "side", *named)


def _is_close(left: str, right: str, tolerance: Decimal | None, number: Literal["exact", "float"] | None) -> str | None:
    """Two values differ by at most the tolerance, in Spark's SQL; None if they must be equal."""
    if tolerance is None or number is None:
        return None
    limit = f"{tolerance:f}BD" if number == "exact" else f"double('{float(tolerance)}')"
    return f"abs({left} - {right}) <= {limit}"


def _to_sample(row: Row, aligned: AlignedSides, tolerance: Decimal | None) -> dict[str, Any]:
    sides = {
        side: {name: to_json_value(row[side][f"v{index}"]) for index, name in enumerate(aligned.values)}
        if row[side]
        else None
        for side in ("left", "right")
    }
    columns: list[str] = []
    if row["kind"] == "differing":
        columns = [
            name
            for index, name in enumerate(aligned.values)
            if not _within_tolerance(
                row["left"][f"v{index}"], row["right"][f"v{index}"], tolerance if index in aligned.numbers else None
            )
        ]
    return {
        "kind": row["kind"],
        "key": {name: to_json_value(row[f"k{index}"]) for index, name in enumerate(aligned.key)},
        **sides,
        "rows": [row["left_rows"], row["right_rows"]],
        "columns": columns,
    }


def _within_tolerance(left: Any, right: Any, tolerance: Decimal | None) -> bool:
    if left == right or (left != left and right != right):  # both are NaN
        return True
    if left is None or right is None or tolerance is None:
        return False
    numbers = Decimal(str(left)), Decimal(str(right))
    return all(number.is_finite() for number in numbers) and abs(numbers[0] - numbers[1]) <= tolerance


def to_json_value(value: Any) -> Any:
    """A value as JSON: exact numbers, timestamps in ISO 8601, bytes in hexadecimal."""
    match value:
        case datetime() | date():
            return value.isoformat()
        case bytes() | bytearray():
            return value.hex()
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
    return value


def _key_columns(aligned: AlignedSides) -> list[str]:
    return [f"k{index}" for index in range(len(aligned.key))]


def _value_columns(aligned: AlignedSides) -> list[str]:
    return [f"v{index}" for index in range(len(aligned.values))]


# Type alignment of two sides, so that equal values have equal forms and hashes, whatever system they come from.
_INTEGER_DIGITS = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 19}
_STRING_TYPES = (T.StringType, T.CharType, T.VarcharType)
_TIME_TYPES = (T.DateType, T.TimestampNTZType, T.TimestampType)
_NESTED_TYPES = (T.ArrayType, T.StructType)
_MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class AlignedSides:
    """Both sides with columns ``k0 …`` (the key) and ``v0 …`` (the compared values), in the same types.

    ``numbers`` are the positions of the values to which a tolerance applies.
    """

    left: DataFrame
    right: DataFrame
    key: tuple[str, ...]
    values: tuple[str, ...]
    numbers: Mapping[int, Literal["exact", "float"]]


def align_sides(left: DataFrame, right: DataFrame, spec: ComparisonSpec) -> AlignedSides:
    """Raises UsageError if a column is missing, or two columns have types that cannot be compared."""
    right = _apply_mapping(right, spec)
    compare = spec.compare
    if compare is None:
        compare = tuple(name for name in left.columns if name in right.columns and name not in spec.key)
    for name in (*spec.key, *compare):
        for side, frame in (("left", left), ("right", right)):
            if name not in frame.columns:
                hint = did_you_mean(name, tuple(frame.columns))
                raise UsageError(f"the {side} side has no column {name}{hint}")
    if spec.filter is not None:
        left, right = (side.where(filter_condition(spec.filter, side.schema, "`filter`")) for side in (left, right))
    types = {
        name: common_type(name, left.schema[name].dataType, right.schema[name].dataType)
        for name in (*spec.key, *compare)
    }

    def select_columns(frame: DataFrame) -> DataFrame:
        columns = [(f"k{index}", name) for index, name in enumerate(spec.key)]
        columns += [(f"v{index}", name) for index, name in enumerate(compare)]
        return frame.select(
            *(
                _cast(F.col(backquoted(name)), frame.schema[name].dataType, types[name], name).alias(to)
                for to, name in columns
            )
        )

    numbers: dict[int, Literal["exact", "float"]] = {}
    for index, name in enumerate(compare):
        if isinstance(types[name], T.NumericType):
            numbers[index] = "float" if isinstance(types[name], T.DoubleType) else "exact"
    return AlignedSides(select_columns(left), select_columns(right), spec.key, compare, numbers)


def common_type(name: str, left: T.DataType, right: T.DataType) -> T.DataType:
    """The type in which both sides' values of a column are compared. Raises UsageError if there is none."""
    if isinstance(left, T.NullType):
        return right
    if isinstance(right, T.NullType):
        return left
    pair = (left, right)
    if all(type(data_type) in _INTEGER_DIGITS for data_type in pair):
        return T.LongType()
    if all(isinstance(data_type, T.NumericType) for data_type in pair):
        exact = all(isinstance(data_type, T.DecimalType) or type(data_type) in _INTEGER_DIGITS for data_type in pair)
        return _common_decimal(left, right) if exact else T.DoubleType()
    if all(isinstance(data_type, _STRING_TYPES) or type(data_type) in _INTEGER_DIGITS for data_type in pair):
        return T.StringType()  # a number stored as a string, as ids often are
    if all(isinstance(data_type, _TIME_TYPES) for data_type in pair):
        return max(pair, key=lambda type_: _TIME_TYPES.index(type(type_)))
    for plain in (T.BooleanType, T.BinaryType):
        if all(isinstance(data_type, plain) for data_type in pair):
            return plain()
    if all(isinstance(data_type, _NESTED_TYPES) for data_type in pair) and type(left) is type(right):
        return T.StringType()  # as JSON, including nulls
    raise UsageError(
        f"the column {name} is {left.simpleString()} on the left and {right.simpleString()} on the right, "
        "which cannot be compared",
        help="cast one of them, with `query` or in the job",
    )


def _common_decimal(left: T.DataType, right: T.DataType) -> T.DecimalType:
    """One decimal type that holds both: decimal(10,1) and decimal(10,2) hash differently."""
    sizes = [_digits(data_type) for data_type in (left, right)]
    scale = max(scale for _, scale in sizes)
    whole = max(whole for whole, _ in sizes)
    return T.DecimalType(min(_MAX_PRECISION, whole + scale), scale)


def _digits(data_type: T.DataType) -> tuple[int, int]:
    """The digits of an exact number before its point and after it."""
    if isinstance(data_type, T.DecimalType):
        return data_type.precision - data_type.scale, data_type.scale
    return _INTEGER_DIGITS[type(data_type)], 0


def _holds_all(target: T.DecimalType, source: T.DataType) -> bool:
    return isinstance(source, T.NullType) or _digits(source)[0] <= target.precision - target.scale


def _cast(column: Column, source: T.DataType, target: T.DataType, name: str) -> Column:
    """The column in the type in which it is compared. A decimal that does not fit into it is refused with its name."""
    if isinstance(source, _NESTED_TYPES):
        return F.to_json(column, {"ignoreNullFields": "false"})
    if isinstance(target, T.DecimalType) and not _holds_all(target, source):
        refusal = (
            f"the column {name} has a value with more than {target.precision - target.scale} digits before its point,"
            f" and the other side has {target.scale} after it, which no decimal of {_MAX_PRECISION} digits holds;"
            " round the column in the `query`, or compare it as text"
        )
        fitting = column.try_cast(target)
        return F.when(column.isNotNull() & fitting.isNull(), F.raise_error(F.lit(refusal))).otherwise(fitting)
    column = column.cast(target)
    if isinstance(target, T.DoubleType):  # -0.0 equals 0.0 but has different bits
        return F.when(column == F.lit(0.0), F.lit(0.0)).otherwise(column)
    return column


def _apply_mapping(right: DataFrame, spec: ComparisonSpec) -> DataFrame:
    for to, name in spec.mapping.items():
        if name not in right.columns:
            hint = did_you_mean(name, tuple(right.columns))
            raise UsageError(f"`mapping`: the right side has no column {name}{hint}")
        if to != name and to in right.columns:
            right = right.drop(to)
        right = right.withColumnRenamed(name, to)
    return right


# Fingerprints of two sides by bucket of the key, which narrow a difference down to few rows.
BUCKETS = 1024

BucketFingerprints = Mapping[int, Fingerprint]


def differing_buckets(left: BucketFingerprints, right: BucketFingerprints) -> list[int]:
    """The buckets in which the sides differ, in order; empty if the sides are equal."""
    if left == right:
        return []
    return sorted(bucket for bucket in left.keys() | right.keys() if left.get(bucket) != right.get(bucket))


def bucket_fingerprints(
    sides: Sequence[DataFrame], key: Sequence[str], columns: Sequence[str]
) -> list[BucketFingerprints]:
    """Read all sides once, in one job. ``columns`` are all compared columns, including the key."""
    parts = []
    for number, side in enumerate(sides):
        first, second = row_hash(side.schema, columns)
        where = key_bucket(side.schema, key, BUCKETS)
        # Each side is aggregated before the union, which keeps its rows within the code generated for its scan.
        words = side.select(where.alias("bucket"), first.alias("first"), second.alias("second"))
        sums = words.groupBy("bucket").agg(*fingerprint_aggregates(("first", "second")))
        parts.append(sums.withColumn("side", F.lit(number)))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionAll(part)
    fingerprints: list[dict[int, Fingerprint]] = [{} for _ in sides]
    for row in whole.collect():
        fingerprints[row["side"]][row["bucket"]] = read_fingerprint(row.asDict())
    return list(fingerprints)


def compare_inputs(context: TaskContext, request: dict[str, Any]) -> dict[str, Any]:
    """The runner task `reconcile`: compare two sides. ``inputs`` (left and right), ``folder`` and ``known`` are as for
    `freeze`, ``arguments`` as in :class:`~saga_spark.reconcile.reconcile_spec.ComparisonSpec`. Returns the result of
    :func:`compare_tables`.
    """
    spec = ComparisonSpec.parse(request["arguments"])
    given = {name: request[name] for name in ("inputs", "folder", "known")}
    frozen = freeze_inputs(context, given, spec.needed_columns())["inputs"]
    sides = open_inputs(context.spark, frozen)
    return compare_tables(sides["left"], sides["right"], spec)
