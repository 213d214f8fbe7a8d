"""Do two tables say the same? Fingerprints first; only the buckets in which they differ are read again, key by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from typing import Any, Literal

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from saga_spark.hashing import Fingerprint, bucket, combine, row_hash, signed_halves
from saga_spark.reconcile.buckets import BUCKETS, differing, fingerprints
from saga_spark.reconcile.canonical import Aligned, align
from saga_spark.reconcile.spec import Spec

Kind = Literal["missing_left", "missing_right", "differing", "duplicate"]
KINDS: tuple[Kind, ...] = ("missing_left", "missing_right", "differing", "duplicate")
"""``missing_left``: the left has no row of this key. ``duplicate``: a side has the key more than once, and the sides do
not have the same rows under it."""


HALVES = ("low1", "high1", "low2", "high2")


@dataclass(frozen=True, slots=True)
class Difference:
    """``rows`` has one row for each key that differs: ``kind``, the key ``k0 …``, ``left_rows`` and ``right_rows`` (how
    often a side has the key), ``left`` and ``right`` (the values ``v0 …`` of one of these rows)."""

    left: Fingerprint
    right: Fingerprint
    buckets: int
    rows: DataFrame | None
    aligned: Aligned


def difference(left: DataFrame, right: DataFrame, spec: Spec) -> Difference:
    """Find where two sides differ; ``rows`` is None where even the fingerprints are equal. Raises UsageError."""
    aligned = align(left, right, spec)
    key, columns = _key(aligned), [*_key(aligned), *_values(aligned)]
    ours, theirs = fingerprints((aligned.left, aligned.right), key, columns)
    bad = differing(ours, theirs)
    rows = _by_key(aligned, bad, spec.tolerance) if bad else None
    return Difference(combine(ours.values()), combine(theirs.values()), len(bad), rows, aligned)


def compare(left: DataFrame, right: DataFrame, spec: Spec) -> dict[str, Any]:
    """The verdict (``equal`` or ``different``) with counts, fingerprints and samples, as JSON. Raises UsageError.

    Each sample has its ``kind``, its ``key``, both sides' values (None: no such row) and the ``columns`` that differ.
    """
    found = difference(left, right, spec)
    counts: dict[Kind, int] = dict.fromkeys(KINDS, 0)
    samples: list[dict[str, Any]] = []
    if found.rows is not None:
        with kept(found.rows) as rows:
            counts.update({row["kind"]: row["count"] for row in rows.groupBy("kind").count().collect()})
            for kind in KINDS:
                if counts[kind]:
                    some = rows.where(F.col("kind") == kind).orderBy(*_key(found.aligned)).limit(spec.samples)
                    samples += [_sample(row, found.aligned, spec.tolerance) for row in some.collect()]
    verdict = "different" if any(counts.values()) else "equal"
    return {
        "verdict": verdict,
        "message": sentence(counts, found.left.rows, found.right.rows),
        "left": {"rows": found.left.rows, "fingerprint": found.left.hex},
        "right": {"rows": found.right.rows, "fingerprint": found.right.hex},
        "counts": counts,
        "buckets": {"all": BUCKETS, "different": found.buckets},
        "key": list(spec.key),
        "compared": list(found.aligned.values),
        "tolerance": None if spec.tolerance is None else str(spec.tolerance),
        "samples": samples,
    }


def sentence(counts: Mapping[Kind, int], left: int, right: int) -> str:
    """The verdict in words."""
    if not any(counts.values()):
        return f"both sides say the same: {left} rows"
    words: Mapping[Kind, str] = {
        "missing_left": "missing on the left",
        "missing_right": "missing on the right",
        "differing": "with other values",
        "duplicate": "there more than once",
    }
    told = ", ".join(f"{counts[kind]} {words[kind]}" for kind in KINDS if counts[kind])
    return f"the sides differ ({left} and {right} rows): {told}"


@contextmanager
def kept(frame: DataFrame) -> Iterator[DataFrame]:
    """Compute a frame once, however often it is read inside the block."""
    frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield frame
    finally:
        frame.unpersist()


def _by_key(aligned: Aligned, bad: Sequence[int], tolerance: Decimal | None) -> DataFrame:
    """The keys of the buckets that differ, as far as they differ. Both sides are grouped together: unlike a join, that
    shuffles once, and sorts only where values must be shown."""
    key, values = _key(aligned), _values(aligned)
    both = _side(aligned.left, aligned, bad, 1).unionAll(_side(aligned.right, aligned, bad, -1))
    left, right = F.col("side") == 1, F.col("side") == -1
    counted = [F.count_if(left).alias("left_rows"), F.count_if(right).alias("right_rows")]
    counted += [F.sum(name).alias(name) for name in HALVES]
    if values:
        row = F.struct(*(F.col(name) for name in values))
        counted += [
            F.first(F.when(side, row), ignorenulls=True).alias(name)
            for side, name in ((left, "left"), (right, "right"))
        ]
        # A row cannot be kept in a hash aggregation; this way it is sorted once, not before the shuffle too.
        both = both.repartition(*key)
    grouped = both.groupBy(*key).agg(*counted)
    if not values:
        there = F.struct(F.lit(True).alias("there"))
        for name in ("left", "right"):
            grouped = grouped.withColumn(name, F.when(F.col(f"{name}_rows") > 0, there))
    several = (F.col("left_rows") > 1) | (F.col("right_rows") > 1)
    same_rows = reduce(Column.__and__, (F.col(name) == 0 for name in HALVES), F.col("left_rows") == F.col("right_rows"))
    same_values = reduce(
        Column.__and__,
        (
            _same(F.col(f"left.v{at}"), F.col(f"right.v{at}"), aligned.numbers.get(at), tolerance)
            for at in range(len(values))
        ),
        F.lit(True),
    )
    kind = (
        F.when(F.col("left_rows") == 0, "missing_left")
        .when(F.col("right_rows") == 0, "missing_right")
        .when(several, F.when(~same_rows, "duplicate"))
        .when(~same_values, "differing")
    )
    told = grouped.select(kind.alias("kind"), *key, "left_rows", "right_rows", "left", "right")
    return told.where(F.col("kind").isNotNull())


def _side(side: DataFrame, aligned: Aligned, bad: Sequence[int], sign: int) -> DataFrame:
    """The rows of the buckets that differ, with the halves of their hash: positive on the left, negative on the right,
    so that they add up to zero where both sides have the same rows."""
    key, values = _key(aligned), _values(aligned)
    if len(bad) < BUCKETS:
        side = side.where(bucket(side.schema, key, BUCKETS).isin(list(bad)))
    words = row_hash(side.schema, [*key, *values])
    halves = [one * F.lit(sign) for word in words for one in signed_halves(word)]
    named = [half.alias(name) for half, name in zip(halves, HALVES, strict=True)]
    return side.select(*key, *values, F.lit(sign).alias("side"), *named)


def _same(left: Column, right: Column, number: str | None, tolerance: Decimal | None) -> Column:
    equal = left.eqNullSafe(right)
    if tolerance is None or number is None:
        return equal
    limit = F.lit(tolerance if number == "exact" else float(tolerance))
    return equal | F.coalesce(F.abs(left - right) <= limit, F.lit(False))


def _sample(row: Row, aligned: Aligned, tolerance: Decimal | None) -> dict[str, Any]:
    sides = {
        side: {name: plain(row[side][f"v{at}"]) for at, name in enumerate(aligned.values)} if row[side] else None
        for side in ("left", "right")
    }
    columns: list[str] = []
    if row["kind"] == "differing":
        columns = [
            name
            for at, name in enumerate(aligned.values)
            if not _near(row["left"][f"v{at}"], row["right"][f"v{at}"], tolerance if at in aligned.numbers else None)
        ]
    return {
        "kind": row["kind"],
        "key": {name: plain(row[f"k{at}"]) for at, name in enumerate(aligned.key)},
        **sides,
        "rows": [row["left_rows"], row["right_rows"]],
        "columns": columns,
    }


def _near(left: Any, right: Any, tolerance: Decimal | None) -> bool:
    if left == right or left is None or right is None or tolerance is None:
        return left == right
    return abs(Decimal(str(left)) - Decimal(str(right))) <= tolerance


def plain(value: Any) -> Any:
    """A value as JSON: decimals as text, moments in ISO 8601, bytes in hexadecimal."""
    match value:
        case Decimal():
            return format(value, "f")
        case datetime() | date():
            return value.isoformat()
        case bytes() | bytearray():
            return value.hex()
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
    return value


def _key(aligned: Aligned) -> list[str]:
    return [f"k{at}" for at in range(len(aligned.key))]


def _values(aligned: Aligned) -> list[str]:
    return [f"v{at}" for at in range(len(aligned.values))]
