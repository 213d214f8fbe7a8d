"""Compares two tables of a reconciliation: by hashes first, then key by key in those buckets whose hashes differ.

A hash costs a fraction of a join, and equal sides need nothing else. Sums over the hashes of all rows of a bucket do
not depend on their order, and each hash is hashed once more, so that nothing cancels out between rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from saga_spark.reconcile.comparison_database import ComparisonDatabase
from saga_spark.reconcile.exact_numbers import exact_within
from saga_spark.reconcile.row_differences import difference_kind, same_value

BUCKETS = 1024

FEW_BUCKETS = BUCKETS // 8
"""If the rows of more buckets were grouped by their keys, that would cost more than to look for the keys by their
hashes first."""


def find_differing_keys(
    database: ComparisonDatabase,
    left: str,
    right: str,
    key: Sequence[str],
    amounts: Sequence[str] = (),
    tolerance: Decimal | None = None,
) -> bool:
    """Compare two views; returns whether any key differs. Both have the columns of ``key`` and ``amounts``.

    With a ``tolerance`` the amounts are texts in the canonical form of :mod:`~saga_spark.reconcile.exact_numbers`.

    The table ``differing`` then has one row for each differing key: its columns, ``kind``, ``left_rows``,
    ``right_rows`` (the number of rows with the key on each side), ``left_a0`` and ``right_a0`` for an amount ``a0``
    (its value in one of these rows, null if there is none).
    """
    keys, row = ", ".join(key), ", ".join([*key, *amounts])
    # The words of both sides add up to zero where the sides have the same rows.
    sides = " UNION ALL ".join(
        f"SELECT {row}, hash({keys}) AS key_hash, {sign} (hash(hash({row})) >> 1)::BIGINT AS word, {is_left} AS is_left"
        f" FROM {name}"
        for name, sign, is_left in ((left, "", "true"), (right, "-", "false"))
    )
    buckets = database.run(
        f"SELECT key_hash % {BUCKETS} AS bucket FROM ({sides}) GROUP BY bucket HAVING sum(word) <> 0"
    )
    if not buckets:
        return False
    if len(buckets) <= FEW_BUCKETS:
        rows = f"FROM ({sides}) WHERE key_hash % {BUCKETS} IN ({', '.join(str(bucket) for (bucket,) in buckets)})"
    else:
        database.table("key_hashes", f"SELECT key_hash FROM ({sides}) GROUP BY key_hash HAVING sum(word) <> 0")
        rows = f"FROM ({sides}) SEMI JOIN key_hashes USING (key_hash)"
    same = [same_amount(name, tolerance) for name in amounts]
    values = "".join(
        f", first({name}) FILTER ({where}) AS {side}_{name}"
        for name in amounts
        for side, where in (("left", "is_left"), ("right", "NOT is_left"))
    )
    kind = difference_kind("left_rows = right_rows AND words = 0", same)
    differing = database.table(
        "differing",
        f"SELECT * EXCLUDE words FROM (SELECT *, {kind} AS kind FROM (SELECT {keys},"
        " count(*) FILTER (is_left) AS left_rows, count(*) FILTER (NOT is_left) AS right_rows,"
        f" sum(word) AS words{values} {rows} GROUP BY {keys})) WHERE kind IS NOT NULL",
    )
    return differing > 0


def same_amount(name: str, tolerance: Decimal | None) -> str:
    """An amount of a row of ``differing`` is the same on both sides, as SQL."""
    left, right = f"left_{name}", f"right_{name}"
    return same_value(left, right, None if tolerance is None else exact_within(left, right, tolerance))
