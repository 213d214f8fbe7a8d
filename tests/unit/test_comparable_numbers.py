"""The text that equal values share is that of their comparable form, also where it is written without a look at each
number."""

from __future__ import annotations

from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagas.text.exact_json import canonical_json
from sagas.text.exact_numbers import comparable, comparable_json
from tests.helpers.sampling import examples

DECIMALS = st.decimals(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [Decimal(text) for text in ("-0", "0", "-0.0", "1E+2", "1.0", "1e30", "-1E-7", "100", "12345678901234567890123")]
)
INTEGERS = st.integers() | st.integers(18, 24).map(lambda power: 10**power) | st.just(-(10**20))
TEXTS = st.text() | st.sampled_from(["1.0", ":1.0", ",-0", '":1e5', "[123456789012345678901"])
SCALARS = st.none() | st.booleans() | INTEGERS | DECIMALS | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=12
)

LONG = "x" * 5_000
"""In a long text other forms are looked for in another way."""


@examples(100, 10_000)
@given(VALUES | st.dictionaries(TEXTS, VALUES, max_size=4))
def test_the_text_is_that_of_the_comparable_form(value: Any) -> None:
    assert comparable_json(value) == canonical_json(comparable(value))
    long = {"long": LONG, "value": value}
    assert comparable_json(long) == canonical_json(comparable(long))


@pytest.mark.parametrize("number", [-0.0, Decimal("-0"), Decimal("1.50"), 10**20, -(10**20), Decimal("1E+2")])
@pytest.mark.parametrize(
    "around",
    [lambda n: {"a": n}, lambda n: {"a": [n]}, lambda n: {"a": [0, n]}, lambda n: n, lambda n: {"a": n, "b": LONG}],
)
def test_each_number_at_each_place(around: Any, number: Any) -> None:
    value = around(number if isinstance(number, int) else Decimal(str(number)))
    assert comparable_json(value) == canonical_json(comparable(value))


def test_a_mapping_that_is_no_dict() -> None:
    inner = MappingProxyType({"n": Decimal("1.0")})
    assert comparable_json({"a": inner}) == comparable_json(inner | {"n": 1}).join(('{"a":', "}"))
    assert comparable_json(inner) == '{"n":1}'
