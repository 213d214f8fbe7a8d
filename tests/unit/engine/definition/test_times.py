"""Times that people write."""

from __future__ import annotations

import pytest

from sagas.definition.times import parse_timestamp

NOON = 1777630200.0


@pytest.mark.parametrize(
    "text",
    [
        "2026-05-01T10:10:00Z",
        "2026-05-01t10:10:00z",
        "2026-05-01 10:10:00Z",
        "2026-05-01T12:10:00+02:00",
        "2026-05-01T10:10:00.000Z",
    ],
)
def test_a_time_with_a_zone(text: str) -> None:
    assert parse_timestamp(text) == NOON


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "2026-05-01T10:10:00",
            "'2026-05-01T10:10:00' has no time zone: append Z for UTC, or an offset such as +02:00",
        ),
        ("2026-05-01", "'2026-05-01' has no time zone: append Z for UTC, or an offset such as +02:00"),
        ("tomorrow", "'tomorrow' is not a timestamp such as 2026-05-01T10:30:00Z"),
        ("2026-02-30T10:10:00Z", "'2026-02-30T10:10:00Z' is not a date and time of the calendar"),
        (12, "12 is not a timestamp such as 2026-05-01T10:30:00Z; write it as a string"),
    ],
)
def test_any_other_is_refused_with_what_to_write(value: object, message: str) -> None:
    with pytest.raises(ValueError, match="time") as caught:
        parse_timestamp(value)
    assert str(caught.value) == message
