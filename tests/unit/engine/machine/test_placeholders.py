"""Values that look like the engine's placeholder for one that was not kept, as a foreign worker may return them."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.machine.expressions.context import readable_result
from sagas.protocol.size_limits import is_omitted, omitted


@pytest.mark.parametrize("value", [omitted(3_000_000), omitted(5, "values"), {"omitted": "unreadable", "reason": "x"}])
def test_a_placeholder_is_no_data(value: dict[str, Any]) -> None:
    assert is_omitted(value)
    assert readable_result("a", value) is not value


@pytest.mark.parametrize(
    "value",
    [
        {"omitted": "size", "bytes": -1},
        {"omitted": "size", "bytes": 0},
        {"omitted": "size", "bytes": "many"},
        {"omitted": "size", "bytes": True},
        {"omitted": "values", "bytes": 1.5},
        {"omitted": "values", "bytes": None},
        {"omitted": ["size"], "bytes": 5},
        {"omitted": "unreadable", "reason": 5},
        {"omitted": "unreadable", "bytes": 5},
        {"omitted": "size", "reason": "x"},
    ],
)
def test_what_the_engine_has_not_written_is_data(value: dict[str, Any]) -> None:
    assert not is_omitted(value)
    assert readable_result("a", value) is value
