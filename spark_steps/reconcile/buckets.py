"""Fingerprints of two sides, by bucket of the key: which buckets differ tells where to look, and that is rarely far.

A bucket's fingerprint is a multiset hash: the number of rows and the sums of two 64-bit hashes of every row. Sums, not
XOR: equal rows would cancel each other. The two halves of a hash are added apart, because a sum of 64-bit hashes
overflows. Nulls are hashed by a flag of their own, because the hash function skips them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

BUCKETS = 1024
BUCKET = "bucket"

_HALF = 0xFFFFFFFF
_SEEDS = (0, 1)
_BUCKET_SEED = 2

Sums = tuple[int, ...]
"""Rows, then the low and the high half of each hash, added up."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One side. ``hash`` is 32 hexadecimal digits; equal sides have equal rows and hash."""

    rows: int
    hash: str
    buckets: Mapping[int, Sums]


def fold(buckets: Mapping[int, Sums]) -> Fingerprint:
    """The fingerprint of a side from those of its buckets."""
    totals = [sum(column) for column in zip(*buckets.values(), strict=True)] or [0, 0, 0, 0, 0]
    rows, *halves = totals
    parts = [(halves[at] + (halves[at + 1] << 32)) % (1 << 64) for at in range(0, len(halves), 2)]
    return Fingerprint(rows, "".join(f"{part:016x}" for part in parts), buckets)


def differing(left: Fingerprint, right: Fingerprint) -> list[int]:
    """The buckets in which the sides differ, in order; none: they say the same."""
    if left.rows == right.rows and left.hash == right.hash and left.buckets == right.buckets:
        return []
    return sorted(one for one in left.buckets.keys() | right.buckets.keys()
                  if left.buckets.get(one) != right.buckets.get(one))  # fmt: skip


def bucket_of(key: Iterable[Column]) -> Column:
    return F.pmod(_hash(key, _BUCKET_SEED), F.lit(BUCKETS)).cast("int")


def halves(columns: Iterable[Column]) -> list[Column]:
    """The four halves of a row's two hashes, each from 0 to 2³²-1: safe to add for 2³¹ rows."""
    found: list[Column] = []
    columns = list(columns)
    for seed in _SEEDS:
        whole = _hash(columns, seed)
        found += [whole.bitwiseAND(F.lit(_HALF)), F.shiftrightunsigned(whole, 32)]
    return found


def fingerprint(frame: DataFrame, key: list[Column], columns: list[Column]) -> Fingerprint:
    """Read a side once. ``columns`` are all that counts, the key included."""
    parts = halves(columns)
    rows = (
        frame.select(bucket_of(key).alias(BUCKET), *(part.alias(f"h{at}") for at, part in enumerate(parts)))
        .groupBy(BUCKET)
        .agg(F.count(F.lit(1)), *(F.sum(f"h{at}") for at in range(len(parts))))
        .collect()
    )
    return fold({row[0]: tuple(row[1:]) for row in rows})


def _hash(columns: Iterable[Column], seed: int) -> Column:
    given: list[Column] = [F.lit(seed)]
    for column in columns:
        given += [column.isNull(), column]
    return F.xxhash64(*given)
