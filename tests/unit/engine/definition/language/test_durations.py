"""Durations in the written form."""

from __future__ import annotations

import pytest

from sagas.builtins.registry import DURATION
from sagas.definition.schema_mismatches import JsonNode, mismatches
from sagas.definition.times import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("90s", 90),
        ("10m", 600),
        ("2h", 7200),
        ("7d", 604800),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("0s", 0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "10 m", "m", "-1s", "1w", "PT5M", "1s\n", "1,5h", "00:00:03", "٣s"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration such as 3s, 10m or 1h30m"):
        parse_duration(text)
    [(_, message)] = mismatches(JsonNode(text, "for"), DURATION, DURATION)
    assert message.endswith("is not a duration such as 3s, 10m or 1h30m")


@pytest.mark.parametrize("text", ["500ms", "90s", "10m", "2h", "7d", "1500ms"])
def test_written_back(text: str) -> None:
    assert parse_duration(format_duration(parse_duration(text))) == parse_duration(text)
