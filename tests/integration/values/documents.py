"""Hypothesis strategies for JSON documents whose numbers and strings are hard to pass on."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.integration.values.oracle import Json, Number

_EDGES = [2**31, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**64 + 1, 10**38, 10**39 + 1]

_integers = st.one_of(
    st.integers(-20, 20),
    st.sampled_from(_EDGES),
    st.sampled_from(_EDGES).map(lambda n: -n),
    st.integers(-(10**40), 10**40),
).map(str)
_signs = st.sampled_from(["", "", "-"])
_digits = st.text("0123456789", min_size=1, max_size=20)
_whole = st.one_of(st.just("0"), _digits.map(lambda text: text.lstrip("0") or "0"))
_fractions = st.one_of(
    st.sampled_from(["0", "00", "10", "50", "000", "1", "10000000000000000"]),
    _digits,
    st.tuples(_digits, _digits).map("".join),
)
_decimals = st.tuples(_signs, _whole, st.just("."), _fractions).map("".join)
_powers = st.tuples(st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), st.integers(0, 30).map(str)).map("".join)
_exponents = st.tuples(st.one_of(_decimals, st.tuples(_signs, _whole).map("".join)), _powers).map("".join)
FAMOUS = (
    "-0.0",
    "0.0",
    "12.0",
    "1e2",
    "1E+2",
    "1.0e2",
    "1.10",
    "0.1",
    "12.50",
    "1e-7",
    "9007199254740993.0",
    "0.30000000000000004",
    "123456789012345678901234567890.1234567890",
    "18446744073709551617.0",
    "0e0",
    "1e22",
    "1e23",
    "100.00",
)
"""Numbers that are easily changed on the way."""

_famous = st.sampled_from(FAMOUS)
numbers: st.SearchStrategy[Number] = st.one_of(_integers, _decimals, _exponents, _famous).map(Number)

_characters = st.characters(exclude_categories=["Cs"])
FAMOUS_TEXTS = (
    *("\0", "a\0b", "1234567 ", "12345678   ", "123456789"),
    *("12.345", "32767.5", "9007199254740993", "12345678901234567890", "1e-30", "1e400"),
    *("2026-01-01 10:00:00", "2026-01-01 10:00:00.123", "2026-01-01 10:00:00.1234567", "2026-01-01 23:59:59.9999"),
)
"""Texts of which a column may store only a part, or another number."""

_times = st.tuples(st.just("2026-01-01 10:00:00."), st.text("0123456789", min_size=1, max_size=9)).map("".join)
_blanks = st.tuples(st.text("abc ", max_size=8), st.sampled_from(["", " ", "  "])).map("".join)

strings = st.one_of(
    st.sampled_from(FAMOUS_TEXTS),
    _times,
    _blanks,
    st.sampled_from(
        [
            "",
            "0012",
            "12.0",
            "1e2",
            "null",
            "true",
            "ÄÖ ß",
            "a\u2028b",
            "\u2029",
            "\x85",
            "日本",
            "🦊",
            "a b",
            "x&y=z",
            "a/b%2F",
            "'",
            '"',
            "\\n",
            "\n",
            "\t",
            "~",
            "- a",
            "a: b",
            "# c",
            "2026-01-01",
            "NaN",
            "Infinity",
            ":v",
            "%s",
            "?",
            "\u202e",
            "\ufeff",
            "e\u0301",
            "é",
            "o\u0302\u0323",
            "\u1100\u1161\u11a8",
            "👩\u200d👩\u200d👧",
            "long " * 400,
            "9" * 400,
        ]
    ),
    st.text(_characters, max_size=12),
)
scalars: st.SearchStrategy[Json] = st.one_of(numbers, numbers, numbers, strings, st.booleans(), st.none())


def _is_key(text: str) -> bool:
    return len(text) <= 1000  # YAML allows 1,024 characters before the colon


_names = st.one_of(
    st.sampled_from(
        [
            "a",
            "b",
            "amount",
            "ä",
            "",
            "a.b",
            "1",
            "\u2028",
            "null",
            "items",
            "a.b.c",
            "a[0]",
            'a"b',
            "a'b",
            "o\u0302",
            "size",
            "k" * 120,
        ]
    ),
    strings.filter(_is_key),
)
_inner: st.SearchStrategy[Json] = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_names, inner, max_size=4)),
    max_leaves=8,
)
KINDS: tuple[st.SearchStrategy[Json], ...] = (
    numbers,
    strings,
    st.one_of(st.booleans(), st.none(), st.lists(_inner, max_size=4)),
    st.dictionaries(_names, _inner, min_size=1, max_size=4),
)
"""Documents by their type: of one strategy for all of them, Hypothesis draws mostly numbers."""
