from __future__ import annotations

from typing import Any

import pytest

from saga_activities.kafka import record_codec


class Arrived:
    """A record as the library hands it over."""

    def __init__(self, value: bytes | None, key: bytes | None = None, headers: Any = None, stamp: Any = (1, 1500)):
        self.parts = (value, key, headers, stamp)

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 42

    def value(self) -> bytes | None:
        return self.parts[0]

    def key(self) -> bytes | None:
        return self.parts[1]

    def headers(self) -> Any:
        return self.parts[2]

    def timestamp(self) -> Any:
        return self.parts[3]


def read(record: record_codec.EncodedRecord) -> record_codec.DecodedRecord:
    return record_codec.decode(Arrived(record.value, record.key, list(record.headers)))  # pyright: ignore[reportArgumentType]


def test_a_record_has_type_and_source() -> None:
    record = record_codec.encode(
        '{"order": "ü"}', id="e1", type="order.paid", source="saga", time=0.25, key="o-1",
        headers={"team": "finance", "ce_id": "of somebody else"}, saga_id="o-1", step="pay", step_key="o-1/pay",
    )  # fmt: skip
    received = read(record)
    assert received.value == {"order": "ü"}
    assert (received.key, received.id, received.type, received.source) == ("o-1", "e1", "order.paid", "saga")
    assert received.headers == {
        "team": "finance",
        "ce_specversion": "1.0",
        "ce_id": "e1",
        "ce_source": "saga",
        "ce_type": "order.paid",
        "ce_time": "1970-01-01T00:00:00.250Z",
        "content-type": "application/json",
        "sagaid": "o-1",
        "sagastep": "pay",
        "sagakey": "o-1/pay",
    }
    assert received.timestamp == 1500


def test_the_size_counts_bytes_of_everything() -> None:
    record = record_codec.EncodedRecord("ü".encode(), b"key", (("é", b"12"),))
    assert record.size == 2 + 3 + 2 + 2


def test_a_record_without_an_id_is_identified_by_its_offset() -> None:
    received = record_codec.decode(Arrived(b"1", stamp=(0, -1)))  # pyright: ignore[reportArgumentType]
    assert (received.id, received.timestamp, received.key, received.headers) == ("orders/3/42", None, None, {})


def test_a_tombstone_has_no_value() -> None:
    assert record_codec.decode(Arrived(None, b"k")).value is None  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("arrived", "message"),
    [
        (Arrived(b"{"), "the value is not JSON"),
        (Arrived(b""), "the value is not JSON"),
        (Arrived(b'"\xff"'), "the value is not UTF-8 text"),
        (Arrived(b"NaN"), "the value cannot be read: NaN is not a JSON number"),
        (Arrived(b'{"a": 1, "a": 2}'), "the value is not JSON: .*a.* twice"),
        (Arrived(b"[" * 500 + b"]" * 500), "the value cannot be read: it is nested deeper than 100 levels"),
        (Arrived(b"1", b"\xff\xfe"), "the key is not UTF-8 text"),
    ],
)
def test_a_malformed_record_is_reported_with_a_reason(arrived: Any, message: str) -> None:
    with pytest.raises(record_codec.MalformedRecord, match=message):
        record_codec.decode(arrived)


def test_an_invalid_header_does_not_make_an_event_unreadable() -> None:
    received = record_codec.decode(Arrived(b"1", headers=[("a", b"\xff"), ("b", None)]))  # pyright: ignore[reportArgumentType]
    assert received.headers["b"] is None
    assert received.value == 1
