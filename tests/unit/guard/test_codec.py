"""Results as JSON, and the address a row is kept under."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from saga_activities.guard import result_codec
from saga_activities.guard.entry_key import EntryKey
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES


@dataclass
class Reservation:
    sku: str
    price: Decimal


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Decimal("123456789012345678901234567890.10"), Decimal("123456789012345678901234567890.10")),
        (2**63, 2**63),
        (0.1, Decimal("0.1")),
        (1e22, Decimal("1E+22")),
        (timedelta(days=40_000, microseconds=1), "P40000DT0.000001S"),
        (timedelta(seconds=-1.5), "-PT1.5S"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        ({"a": (1, 2.5, None, True)}, {"a": [1, Decimal("2.5"), None, True]}),
        (Reservation("x", Decimal("2.00")), {"sku": "x", "price": Decimal("2.00")}),
        ("snow ☃", "snow ☃"),
        ("half a pair \ud800", "half a pair \ud800"),
    ],
)
def test_values_survive(value: Any, plain: Any) -> None:
    decoded = result_codec.decode(result_codec.encode(value))
    assert (decoded, repr(decoded)) == (plain, repr(plain))  # 1.10 equals 1.1, but has another digit


@pytest.mark.parametrize(
    ("value", "problem", "field"),
    [
        (float("nan"), "nan cannot be stored: JSON has no such number, so give null or a string", ""),
        ({"total": Decimal("Infinity")}, "Infinity cannot be stored", "(field total)"),
        ([{"rows": [1, Decimal("NaN")]}], "NaN cannot be stored", "(field [0].rows[1])"),
        ({"n": Decimal("1E+1001")}, "it has a decimal of more than 1,000 digits", "(field n)"),
        ({"token": b"ab"}, "JSON has no form for bytes: give text", "(field token)"),
        ({"n": 10**4001}, "an integer must not have more than 4,000 digits", "(field n)"),
    ],
)
def test_a_number_that_json_does_not_have_is_named(value: Any, problem: str, field: str) -> None:
    with pytest.raises(result_codec.UnusableResult) as refused:
        result_codec.encode(value)
    assert problem in str(refused.value)
    assert str(refused.value).endswith(field)


@pytest.mark.parametrize("value", [float("nan"), object(), "x" * MAX_PAYLOAD_BYTES, {(1, 2): 3}])
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
