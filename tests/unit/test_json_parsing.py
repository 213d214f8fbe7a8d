"""JSON from outside is read with msgspec where that is safe: with the values and errors of Python's module."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagas.input_limits import MAX_DECIMAL_DIGITS, MAX_INTEGER_DIGITS
from sagas.text import exact_json
from sagas.text.exact_json import RepeatedName, decode_unambiguous
from sagas.text.json_values import parse_json
from tests.helpers.quiet_cpu import is_short

NAMES = ["a", "b", "", "a:b", "é", '":', "\\u0061", "\U0001f600"]


def outcome(read: Callable[[Any], Any], data: str | bytes) -> str:
    """The value with the types and digits of its numbers, or the error."""
    try:
        return repr(read(data))
    except (ValueError, RecursionError) as error:
        return f"{type(error).__name__}: {error}"


def read_slowly(data: str | bytes) -> Any:
    return exact_json._decode_or_explain(data, object_pairs_hook=exact_json._without_repetition)


@st.composite
def strings(draw: st.DrawFn) -> str:
    """A string of JSON, some of whose characters are escapes; a few are half a surrogate pair."""
    text = draw(st.sampled_from(NAMES) | st.text(max_size=5) | st.just("\ud83d"))
    written = json.dumps(text, ensure_ascii=draw(st.booleans()))
    escape = draw(st.sampled_from(["a", ":", ": "]))
    replaced = draw(st.sampled_from(["\\u{:04x}", "\\u{:04X}", "{}"]))
    return written if replaced == "{}" else written.replace(escape[0], replaced.format(ord(escape[0])))


NUMBERS = st.sampled_from(
    ["0", "-0", "1e5", "1E400", "-0.0", "1.10", "0e9", "1e1000", "1e999", "9007199254740993.0", "18446744073709551616",
     "-9223372036854775809", "1e99999999999999999999", "NaN", "-Infinity", "01", "1.", "0." + "1" * MAX_DECIMAL_DIGITS,
     "9" * (MAX_INTEGER_DIGITS - 1), "9" * MAX_INTEGER_DIGITS, "-" + "9" * MAX_INTEGER_DIGITS,
     "9" * (MAX_INTEGER_DIGITS + 1), "-" + "9" * (MAX_INTEGER_DIGITS + 1), "9" * (MAX_INTEGER_DIGITS + 299)]
) | st.integers().map(str)  # fmt: skip

SPACES = st.sampled_from(["", " ", "\n", "\t\r"])


def containers(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.builds(lambda name, before, after, value: name + before + ":" + after + value, strings(), SPACES, SPACES,
                      values)  # fmt: skip
    objects = st.lists(pairs, max_size=4).map(lambda written: "{" + ",".join(written) + "}")
    return objects | st.lists(values, max_size=4).map(lambda written: "[" + " ,".join(written) + "]")


JSON = st.recursive(strings() | NUMBERS | st.sampled_from(["null", "true", "false"]), containers, max_leaves=12)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A text of JSON, in which a character may be missing, or another one be inserted."""
    text = draw(JSON)
    place = draw(st.integers(0, len(text)))
    mistake = draw(st.sampled_from(["", "", "", *'",:{}[]\\0 \x00\ufeff\ud800']))
    return text[:place] + mistake + text[place + draw(st.sampled_from([0, 0, 0, 1])) :]


@given(texts())
def test_every_text_is_read_as_by_pythons_module(text: str) -> None:
    assert outcome(decode_unambiguous, text) == outcome(read_slowly, text)
    data = text.encode("utf-8", "surrogatepass")
    assert outcome(decode_unambiguous, data) == outcome(read_slowly, data)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        '{"a": 1, "\\u0061": 2}',
        '{"a": ":", "a": "\\u003a"}',
        '{"a": 1, "a": "\\u003a"}',
        '{"a": 1, "a": "\\u003A"}',
        '[{"b": {"a": {}, "a": {"x": 1}}}]',
        '{"a": "é:", "a": 1}',
    ],
)
def test_a_repeated_name_is_found(text: str) -> None:
    with pytest.raises(RepeatedName):
        decode_unambiguous(text)
    with pytest.raises(RepeatedName):
        decode_unambiguous(text.encode())


@pytest.mark.parametrize("text", ['{"a:b": "c:d"}', '{"a": "\\u003a"}', '"\\"a\\":"', '{"a": {"a": {"a": 1}}}', ":"])
def test_a_colon_in_a_string_is_no_repeated_name(text: str) -> None:
    assert outcome(decode_unambiguous, text) == outcome(read_slowly, text)


@pytest.mark.parametrize("data", [b'"\xff"', b'"\xed\xa0\x80"', b"\xef\xbb\xbf1", "[1]".encode("utf-16"), b"[" * 5_000])
def test_bytes_of_other_forms_are_read_as_by_pythons_module(data: bytes) -> None:
    assert outcome(decode_unambiguous, data) == outcome(read_slowly, data)


@pytest.mark.parametrize(
    "text",
    [
        '{"rows":[' + ",".join(['{"a":{}}'] * 80_000) + "]}",
        "{" + ",".join(f'"{number}":{number}' for number in range(80_000)) + "}",
        '{"data":[' + ",".join(["[" * 95 + "]" * 95] * 2_500) + "]}",
        '{"data":[' + ",".join(["0.1"] * 240_000) + "]}",
        '{"data":[' + ",".join(["9" * 3_900] * 250) + "]}",
        '{"data":[' + ",".join(['""'] * 240_000) + "]}",
        '{"data":"' + "\\n" * 500_000 + '"}',
        '{"data":"' + "\\u003a" * 170_000 + '"}',
        '{"data":"' + '\\":' * 330_000 + '"}',
        '{"data":"' + "\\ud83d\\ude00" * 85_000 + '"}',
    ],
    ids=["objects", "names", "levels", "decimals", "digits", "strings", "escapes", "colons", "quotes", "pairs"],
)
def test_a_megabyte_is_read_in_a_fraction_of_a_second(text: str) -> None:
    assert is_short(lambda: parse_json(text), 0.5)
