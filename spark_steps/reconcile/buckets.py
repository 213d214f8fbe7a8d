"""Fingerprints of two sides, by bucket of the key: which buckets differ tells where to look, and that is rarely far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from spark_steps.hashing import Fingerprint, aggregates, bucket, fingerprint, row_hash

BUCKETS = 1024
BUCKET = "bucket"

Buckets = Mapping[int, Fingerprint]


def differing(left: Buckets, right: Buckets) -> list[int]:
    """The buckets in which the sides differ, in order; none: they say the same."""
    if left == right:
        return []
    return sorted(one for one in left.keys() | right.keys() if left.get(one) != right.get(one))


def fingerprints(frame: DataFrame, key: Sequence[str], columns: Sequence[str]) -> Buckets:
    """Read a side once. ``columns`` are all that counts, the key included."""
    where = bucket(frame.schema, key, BUCKETS).alias(BUCKET)
    rows = frame.groupBy(where).agg(*aggregates(row_hash(frame.schema, columns))).collect()
    return {row[BUCKET]: fingerprint(row.asDict()) for row in rows}
