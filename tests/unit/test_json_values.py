"""The bounds of JSON from outside, at their edges, wherever such a value comes in, and the JSON that is printed."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from saga_activities.guard import result_codec
from saga_activities.kafka import record_codec
from saga_activities.messaging import kafka_request
from sagas.input_limits import MAX_JSON_DEPTH
from sagas.text.json_values import has_more_values, json_problem
from sagas.text.printable import printable_json
from tests.helpers.nested_lists import nested_list
from tests.helpers.quiet_cpu import is_short


def text(levels: int) -> bytes:
    return b"[" * levels + b"1" + b"]" * levels


TOO_DEEP = "nested deeper than 100 levels"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (nested_list(MAX_JSON_DEPTH, 1), None),
        (nested_list(MAX_JSON_DEPTH + 1, 1), f"it is {TOO_DEEP}"),
        (nested_list(100_000, 1), f"it is {TOO_DEEP}"),
        ({"a": [0.5, float("nan")]}, "nan is not a JSON number"),
        ([float("-inf")], "-inf is not a JSON number"),
        (10**4000 - 1, None),
        (1 - 10**4000, None),
        (10**4000, "it has an integer of more than 4,000 digits"),
        ({"a": ["\ud800"]}, "it contains half a surrogate pair"),
        ([{"\udc00": 1}], "it contains half a surrogate pair"),
        ({"ä": ["€", "\U0001f600"]}, None),
    ],
    ids=["at the bound", "beyond it", "far beyond it", "nan", "inf", "digits", "digits and a sign",
         "too many digits", "half a pair", "half a pair in a key", "characters of all lengths"],
)  # fmt: skip
def test_a_value_is_refused_with_a_reason(value: Any, problem: str | None) -> None:
    assert json_problem(value) == problem


def test_half_a_pair_is_kept_where_an_effect_has_returned_it() -> None:
    assert json_problem({"\ud800": ["\udc00"]}, half_pairs=True) is None


def test_values_are_counted_where_that_is_a_limit() -> None:
    assert json_problem([1, 2], max_values=3) is None
    assert json_problem([1, 2, 3], max_values=3) == "it has more than 3 values"


def test_a_result_has_the_same_depth() -> None:
    assert result_codec.to_json_value(nested_list(MAX_JSON_DEPTH, 1)) == nested_list(MAX_JSON_DEPTH, 1)
    with pytest.raises(result_codec.UnusableResult, match=TOO_DEEP):
        result_codec.to_json_value(nested_list(MAX_JSON_DEPTH + 1, 1))
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    with pytest.raises(result_codec.UnusableResult, match=TOO_DEEP):
        result_codec.to_json_value(cyclic)


def test_a_record_and_a_reply_have_the_same_depth() -> None:
    for levels in (MAX_JSON_DEPTH, MAX_JSON_DEPTH + 1, 5_000):
        message: Any = SimpleNamespace(
            topic=lambda: "t", partition=lambda: 0, offset=lambda: 1, key=lambda: None, headers=lambda: None,
            timestamp=lambda: (0, -1), value=lambda levels=levels: text(levels),
        )  # fmt: skip
        if levels == MAX_JSON_DEPTH:
            assert record_codec.decode(message).value == nested_list(levels, 1)
            assert kafka_request._kept_value(text(levels)) == nested_list(levels, 1)
            continue
        with pytest.raises(record_codec.MalformedRecord, match=r"nested deeper|recursion"):
            record_codec.decode(message)
        with pytest.raises(kafka_request.MalformedReply, match="nested"):
            kafka_request._kept_value(text(levels))


def refuse(constant: str) -> None:
    raise ValueError(constant)


def test_what_is_printed_is_json_for_every_reader() -> None:
    value = {"a": [float("nan"), {"b": float("inf")}], "c": float("-inf"), "d": "\ud800", float("inf"): 1.5}
    printed = printable_json(value)
    assert printed.encode()
    read = json.loads(printed, parse_constant=refuse)
    assert read == {"a": ["NaN", {"b": "Infinity"}], "c": "-Infinity", "d": "\ud800", "Infinity": 1.5}
    assert "\\ud800" in printed


@pytest.mark.parametrize("value", [{1: "a", "1": "b"}, [{"a": ({"1": "b", 1: "a"},)}]])
def test_keys_with_one_name_are_no_json(value: Any) -> None:
    assert "have the same name in JSON" in str(json_problem(value))


def test_numbers_in_tuples_are_checked() -> None:
    assert json_problem({"a": (1, float("nan"))}) == "nan is not a JSON number"


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (b"[1, 2, 3]", True),
        (b'["1, 2, [3", {}]', True),
        (b'["1, 2, [3"]', False),
        (b'["\\", [[["]', False),
        (b'[", [[[', False),
        (b'[", [[[\\', False),
    ],
)
def test_separators_outside_of_strings_are_counted(text: bytes, more: bool) -> None:
    assert has_more_values(text, 2) is more


def test_a_string_without_an_end_is_searched_once() -> None:
    """Each of its escaped quotes could begin a string, which would take hours."""
    text = b"[" * 300_000 + b'"' + b'\\"' * 800_000
    assert has_more_values(text, 250_000)
    assert is_short(lambda: has_more_values(text, 250_000), 2)
