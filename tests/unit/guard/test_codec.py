"""Results as JSON, and the address a row is kept under."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from saga_activities.guard import EntryKey, result_codec


@dataclass
class Reservation:
    sku: str
    price: Decimal


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Decimal("1.10"), "1.10"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (b"\x00\xff", "AP8="),
        ({"a": (1, 2.5, None, True)}, {"a": [1, 2.5, None, True]}),
        (Reservation("x", Decimal("2")), {"sku": "x", "price": "2"}),
        ("snow ☃", "snow ☃"),
        ("half a pair \ud800", "half a pair \ud800"),
    ],
)
def test_values_survive(value: Any, plain: Any) -> None:
    assert result_codec.decode(result_codec.encode(value)) == plain


@pytest.mark.parametrize(
    "value", [float("nan"), object(), {"saga:marker": "elsewhere"}, "x" * result_codec.MAX_RESULT_BYTES, {(1, 2): 3}]
)
def test_refused(value: Any) -> None:
    with pytest.raises(result_codec.UnusableResult):
        result_codec.encode(value)


@pytest.mark.parametrize("saga_id", ["", "x" * 513, "ends in a blank ", "nul\0"])
def test_two_sagas_never_share_a_row(saga_id: str) -> None:
    with pytest.raises(ValueError, match="saga id"):
        EntryKey(saga_id, "charge")


def test_generations_start_at_one() -> None:
    with pytest.raises(ValueError, match="generation"):
        EntryKey("saga", "charge", 0)
