"""A packed state of any client is read within the bounds of an input: a few bytes of it may stand for many."""

from __future__ import annotations

import base64
import zlib

import pytest

from sagas.input_limits import MAX_JSON_DEPTH, MAX_UNSIGNED_STATE_BYTES, MAX_UNSIGNED_STATE_VALUES
from sagas.protocol.payloads import pack_state
from sagas.protocol.unsigned_states import unpack_unsigned_state
from tests.helpers.nested_lists import nested_list


def packed(json: bytes) -> str:
    return base64.b85encode(zlib.compress(json, 9)).decode()


@pytest.mark.parametrize(
    ("json", "problem"),
    [
        (b'{"input": "' + b" " * MAX_UNSIGNED_STATE_BYTES + b'"}', "has more than 16,777,216 bytes"),
        (b'{"input": [' + b"0," * MAX_UNSIGNED_STATE_VALUES + b"0]}", "more than 500,000 values"),
        (b'{"input": ' + b"[" * 200 + b"0" + b"]" * 200 + b"}", "nested deeper than 110 levels"),
        (b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper than 110 levels"),
        (b"[]", "is not an object"),
        (b"{", None),
        (b'{"input": ' + b"9" * 5_000 + b"}", "digits"),
    ],
    ids=["bytes", "values", "levels", "very deep", "a list", "no JSON", "an integer"],
)
def test_a_state_out_of_bounds_is_refused(json: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        unpack_unsigned_state(packed(json))


@pytest.mark.parametrize("text", ["", "x", "{", "é" * 9, "0" * 99])
def test_a_malformed_state_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011, it has many texts
        unpack_unsigned_state(text)


def test_a_state_with_the_deepest_values_is_read() -> None:
    state = {
        "input": nested_list(MAX_JSON_DEPTH),
        "records": {"a": {"result": {"body": nested_list(MAX_JSON_DEPTH)}}},
    }
    assert unpack_unsigned_state(pack_state(state)) == state
