"""States of sagas that any client may have packed: a project with `accept = "any"` takes them without a signature."""

from __future__ import annotations

import base64
from typing import Any

from sagas.input_limits import MAX_JSON_DEPTH, MAX_UNSIGNED_STATE_BYTES, MAX_UNSIGNED_STATE_VALUES
from sagas.protocol.compression import decompress
from sagas.text.exact_json import decode_json
from sagas.text.json_values import has_more_values, json_problem

_MAX_DEPTH = MAX_JSON_DEPTH + 10
"""Levels of a state: those of a value, such as the result of a step, in the record of the step."""


def unpack_unsigned_state(packed: Any) -> dict[str, Any]:
    """The reverse of :func:`sagas.protocol.payloads.pack_state`, within the bounds of an input.

    Raises TypeError if it is not a text, ValueError if it is malformed or out of bounds.
    """
    data = decompress(base64.b85decode(packed), MAX_UNSIGNED_STATE_BYTES)
    if has_more_values(data, MAX_UNSIGNED_STATE_VALUES):
        raise ValueError(f"the state has more than {MAX_UNSIGNED_STATE_VALUES:,} values")
    try:
        state = decode_json(data)
    except RecursionError:
        raise ValueError(f"the state is nested deeper than {_MAX_DEPTH} levels") from None
    if (problem := json_problem(state, max_depth=_MAX_DEPTH, half_pairs=True)) is not None:
        raise ValueError(f"the state: {problem}")
    if not isinstance(state, dict):
        raise ValueError("the state is not an object")
    return state
