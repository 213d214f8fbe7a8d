"""Exact numbers in DuckDB, of any number of digits, as text: its decimals have at most 38 digits.

The canonical form of a number has no exponent, no leading or trailing zeros and no sign of zero, so that equal numbers
are equal texts. What is not a finite number (``NaN``, ``Infinity``, other text) equals only itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import duckdb

from sagas.text.exact_json import number_text

_NEARLY_CANONICAL = r"-?[1-9][0-9]*(\.[0-9]+)?|-?0\.[0-9]*[1-9][0-9]*|0(\.0+)?"
"""Canonical but for trailing zeros, as databases and results write nearly all numbers."""

_CANONICAL = r"-?[0-9]+(\.[0-9]+)?"
_NUMBER = r"\s*([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,5}))?\s*"
_DIGITS = 9
"""Fraction digits of the decimals that are added as numbers of DuckDB; such a sum cannot overflow before 10⁹ rows."""

_MACROS = (
    # With p digits before the point. Zeros that the exponent adds are bounded by its five digits.
    "placed(sign, digits, p) AS"
    " signed_number(sign, CASE WHEN p <= 0 THEN '' ELSE rpad(left(digits, p), p::INTEGER, '0') END,"
    " CASE WHEN p <= 0 THEN repeat('0', -p) || digits ELSE substr(digits, p + 1) END)",
    "of_parts(parts) AS placed(parts.sign, parts.whole || parts.fraction,"
    " length(parts.whole) + coalesce(TRY_CAST(parts.exponent AS INTEGER), 0))",
    "exact_number(t) AS"
    f" CASE WHEN regexp_full_match(t, '{_NEARLY_CANONICAL}')"
    " THEN CASE WHEN contains(t, '.') THEN rtrim(rtrim(t, '0'), '.') ELSE t END"
    f" WHEN regexp_full_match(t, '{_NUMBER}') AND regexp_matches(t, '^\\s*[+-]?\\.?[0-9]')"
    f" THEN of_parts(regexp_extract(t, '^{_NUMBER}$', ['sign', 'whole', 'fraction', 'exponent']))"
    " WHEN lower(t) = 'nan' THEN 'NaN' WHEN lower(t) IN ('inf', 'infinity', '+inf', '+infinity') THEN 'Infinity'"
    " WHEN lower(t) IN ('-inf', '-infinity') THEN '-Infinity' ELSE t END",
    "is_canonical(t) AS regexp_full_match(t, '" + _CANONICAL + "')",
    "scale_of(t) AS CASE WHEN contains(t, '.') THEN strlen(t) - strpos(t, '.') ELSE 0 END",
    "unscaled(t, scale) AS TRY_CAST(replace(t, '.', '') || repeat('0', scale - scale_of(t)) AS BIGNUM)",
    "scaled(digits, scale) AS placed(CASE WHEN starts_with(digits, '-') THEN '-' ELSE '' END, ltrim(digits, '-'),"
    " length(ltrim(digits, '-')) - scale)",
    f"is_small(t) AS strlen(t) <= 20 AND scale_of(t) <= {_DIGITS}"
    f" AND TRY_CAST(t AS DECIMAL(38, {_DIGITS})) IS NOT NULL",
    # What is not a number is kept as it is, so that no sum hides it.
    "sum_of_list(texts) AS CASE WHEN len(list_filter(texts, lambda t: NOT is_canonical(t))) > 0"
    " THEN array_to_string(list_sort(texts), ' + ')"
    " ELSE scaled(list_aggregate(list_transform(texts, lambda t: unscaled(t,"
    " list_max(list_transform(texts, lambda u: scale_of(u))))), 'sum')::VARCHAR,"
    " list_max(list_transform(texts, lambda u: scale_of(u)))) END",
    "is_within(l, r, scale, tolerance) AS"
    " unscaled(l, scale) - unscaled(r, scale) BETWEEN unscaled('-' || tolerance, scale) AND unscaled(tolerance, scale)",
    "exact_within(l, r, tolerance) AS CASE WHEN is_canonical(l) AND is_canonical(r)"
    " THEN is_within(l, r, greatest(scale_of(l), scale_of(r), scale_of(tolerance)), tolerance) ELSE false END",
)
_SIGNED = (
    "signed_number(sign, whole, fraction) AS CASE WHEN ltrim(whole, '0') = '' AND rtrim(fraction, '0') = '' THEN '0'"
    " ELSE CASE WHEN sign = '-' THEN '-' ELSE '' END"
    " || CASE WHEN ltrim(whole, '0') = '' THEN '0' ELSE ltrim(whole, '0') END"
    " || CASE WHEN rtrim(fraction, '0') = '' THEN '' ELSE '.' || rtrim(fraction, '0') END END"
)


def define_exact_numbers(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the macros that the functions of this module use."""
    for macro in (_SIGNED, *_MACROS):
        connection.execute(f"CREATE TEMP MACRO {macro}")


def exact_number(text: str) -> str:
    """The canonical form of a number in a column of text, as SQL."""
    return f"exact_number({text})"


def exact_sums(rows: str, key: str, numbers: Sequence[str]) -> str:
    """A query for ``key`` and the sums of columns of canonical numbers; a sum without numbers is null."""
    # Few numbers are large, and only these are kept in memory.
    parts = "".join(
        f", sum(CASE WHEN is_small({name}) THEN {name}::DECIMAL(38, {_DIGITS}) END)::VARCHAR AS small_{name},"
        f" list({name}) FILTER ({name} IS NOT NULL AND NOT is_small({name})) AS other_{name}"
        for name in numbers
    )
    sums = "".join(
        f", CASE WHEN other_{name} IS NULL THEN exact_number(small_{name})"
        f" ELSE sum_of_list(list_append(other_{name}, coalesce(exact_number(small_{name}), '0'))) END AS {name}"
        for name in numbers
    )
    return f"SELECT {key}{sums} FROM (SELECT {key}{parts} FROM {rows} GROUP BY {key})"


def exact_within(left: str, right: str, tolerance: Decimal) -> str:
    """Two canonical numbers differ by at most the tolerance, as SQL; false if one is not a finite number."""
    return f"exact_within({left}, {right}, '{number_text(tolerance)}')"
