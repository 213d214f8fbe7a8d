"""Text that is taken for a name or an id is nothing else to any of the other checks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga_activities.parameters.exact_parameters import may_be_another
from saga_activities.parameters.iso_times import CLOCK_WORDS, DATE_WORDS, may_be_time
from saga_activities.parameters.number_notations import notations
from saga_activities.parameters.parameter_columns import has_numbers, is_long_number, is_rewritten
from saga_activities.parameters.plain_texts import is_plain
from saga_activities.parameters.time_columns import time_text
from tests.helpers.sampling import examples

WORDS = [word.removesuffix("[a-z]*") for word in f"{DATE_WORDS}|{CLOCK_WORDS}".split("|")]
PIECES = st.sampled_from([*WORDS, "T10", "t1030", "1_0", "0x1f", "e1", "E5", "-", "_", "12", "2026", "x", "infinity"])
NAMES = st.lists(PIECES | st.text("abcdefstTEX019-_", max_size=3), min_size=1, max_size=5).map("".join)
UUIDS = st.uuids().map(str) | st.from_regex(
    r"[0-9abcdef]{8}-[0-9d]{4}-[0-9bc]{4}-[0-9d]{4}-[0-9ad]{12}", fullmatch=True, alphabet=st.characters(codec="ascii")
)


@examples(150, 20_000)
@given(NAMES | UUIDS | NAMES.map(str.upper) | UUIDS.map(str.upper))
def test_plain_text_is_no_other_value(text: str) -> None:
    if not is_plain(text):
        return
    assert not may_be_time(text)
    assert time_text(text) is None
    assert not is_long_number(text)
    assert not is_rewritten(text)
    assert not has_numbers(text)
    assert not any(notations(text))
    for dialect in ("mysql", "mariadb", "sqlite"):
        assert not may_be_another(text, dialect)
    assert not text.endswith(" ")


@pytest.mark.parametrize(
    "text", ["a123", "sku-17", "order_7", "Ada", "cafebabe-0000-7000-8000-000000000000", "none", "a"]
)
def test_names_and_ids_are_plain(text: str) -> None:
    assert is_plain(text)


@pytest.mark.parametrize(
    "text",
    [
        *WORDS,
        *("", " a", "a ", "a,1", "T10", "dec-12", "e1_0", "xT1030", "12", "a\n", "é1"),
        *("d0000000-0000-7000-8000-000000000000", "01880000-0000-7000-8000-000000000000"),
    ],
)
def test_other_text_is_looked_at(text: str) -> None:
    assert not is_plain(text)


def test_no_text_takes_long() -> None:
    assert not is_plain("a" * 200_000 + ".")
    assert not is_plain("0" * 200_000)
