"""How the rows of two sides under one key differ, in SQL that DuckDB and Spark read alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

DifferenceKind = Literal["missing_left", "missing_right", "differing", "duplicate"]
DIFFERENCE_KINDS: tuple[DifferenceKind, ...] = ("missing_left", "missing_right", "differing", "duplicate")
"""``missing_left``: the left side has no row with this key. ``duplicate``: a side has several rows with the key, and
the sides do not have the same rows under it."""


def difference_kind(same_rows: str, same_values: Sequence[str]) -> str:
    """The kind of difference of one key, null if there is none, from ``left_rows`` and ``right_rows``.

    ``same_rows`` is true if both sides have the same rows under the key; ``same_values`` are true if the values of two
    single rows are the same.
    """
    return (
        "CASE WHEN left_rows = 0 THEN 'missing_left' WHEN right_rows = 0 THEN 'missing_right'"
        f" WHEN left_rows > 1 OR right_rows > 1 THEN CASE WHEN NOT ({same_rows}) THEN 'duplicate' END"
        f" WHEN NOT ({' AND '.join(same_values) or 'true'}) THEN 'differing' END"
    )


def same_value(left: str, right: str, is_close: str | None) -> str:
    """True if two values are equal, also if both are null or NaN, or if ``is_close``, a condition in SQL, is true."""
    equal = f"{left} IS NOT DISTINCT FROM {right}"
    return equal if is_close is None else f"(CASE WHEN {equal} THEN true ELSE coalesce({is_close}, false) END)"
