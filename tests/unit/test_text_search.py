"""The search for many texts at once: what it finds, and what it takes."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sagas.text.masked_texts import MAX_LOOKUPS, TextMask, mask_in_attempt, mask_texts, masking, texts_of_attempt
from sagas.text.text_search import QUOTED, TextSearch

TEXTS = st.lists(st.text("ab_ -ü", min_size=1, max_size=4), max_size=8)
MESSAGES = st.text("ab_ -ü", max_size=60)


def expected(message: str, texts: list[str], *, whole: bool) -> str:
    """The masked message, by searching for each text at each place."""
    spans: list[tuple[int, int]] = []
    for text in texts:
        pattern = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)" if whole else re.escape(text))
        spans += [(start, start + len(text)) for start in range(len(message)) if pattern.match(message, start)]
    masked, end = "", 0
    for first, last in sorted(spans):
        if first >= end:
            masked += message[end:first] + "•••"
        end = max(end, last)
    return masked + message[end:]


@pytest.mark.parametrize("whole", [True, False])
@given(texts=TEXTS, message=MESSAGES)
@example(texts=["a b", "b a b"], message="a b a b")
@example(texts=["a", "ab"], message="ab a")
@example(texts=["", "-"], message="--")
def test_nothing_that_a_text_covers_is_left(texts: list[str], message: str, whole: bool) -> None:
    texts = [text for text in texts if text]
    masked, _ = TextSearch(texts, whole=whole).masked(message, MAX_LOOKUPS)
    assert masked == expected(message, texts, whole=whole)


@given(st.lists(st.text("ab", min_size=35, max_size=90), max_size=6), st.text("ab", max_size=200))
def test_long_texts_are_found_within_words(texts: list[str], message: str) -> None:
    masked, _ = TextSearch(texts, whole=False).masked(message, MAX_LOOKUPS)
    assert masked == expected(message, texts, whole=False)


def test_many_texts_take_no_more_than_few() -> None:
    message = "a1 b2 c3 4711 0abcd " * 400
    few = TextSearch(["4711", "0abcd"], whole=True).masked(message, MAX_LOOKUPS)
    texts = [f"{number:05x}" for number in range(110_000)]
    many = TextSearch([*texts, "4711"], whole=True).masked(message, MAX_LOOKUPS)
    assert few[0] == many[0]
    assert many[1] < 10 * few[1]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a" * 900 + str(number) for number in range(1_050)], "a" * 8_192),
        (["-" * length for length in range(1, QUOTED)], "- " * 100_000),
    ],
)
def test_what_takes_too_much_is_masked_as_a_whole(texts: list[str], message: str) -> None:
    assert mask_texts(message, texts) == "•••"
    mask = TextMask(texts)
    assert [mask.text(message), mask.text("free")] == ["•••", "•••"]


def test_texts_that_an_attempt_learns_are_masked_before_all_others() -> None:
    with masking([f"value-{number}" for number in range(2_000)]):
        mask_in_attempt("http://a/b?c")
        assert mask_texts("see http%3A%2F%2Fa%2Fb%3Fc", texts_of_attempt()) == "see •••"
    mask_in_attempt("http://a/b?c")
    assert texts_of_attempt() == ()
