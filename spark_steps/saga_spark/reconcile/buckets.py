"""Fingerprints of two sides, by bucket of the key: which buckets differ tells where to look, and that is rarely far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from saga_spark.hashing import Fingerprint, aggregates, bucket, fingerprint, row_hash

BUCKETS = 1024

Buckets = Mapping[int, Fingerprint]


def differing(left: Buckets, right: Buckets) -> list[int]:
    """The buckets in which the sides differ, in order; none: they say the same."""
    if left == right:
        return []
    return sorted(one for one in left.keys() | right.keys() if left.get(one) != right.get(one))


def fingerprints(sides: Sequence[DataFrame], key: Sequence[str], columns: Sequence[str]) -> list[Buckets]:
    """Read all sides once, in one job. ``columns`` are all that counts, the key included."""
    parts = []
    for number, side in enumerate(sides):
        first, second = row_hash(side.schema, columns)
        where = bucket(side.schema, key, BUCKETS)
        # Each side is summed before the union: until then a row never leaves the code that was compiled for its scan.
        words = side.select(where.alias("bucket"), first.alias("first"), second.alias("second"))
        sums = words.groupBy("bucket").agg(*aggregates((F.col("first"), F.col("second"))))
        parts.append(sums.withColumn("side", F.lit(number)))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionAll(part)
    found: list[dict[int, Fingerprint]] = [{} for _ in sides]
    for row in whole.collect():
        found[row["side"]][row["bucket"]] = fingerprint(row.asDict())
    return list(found)
