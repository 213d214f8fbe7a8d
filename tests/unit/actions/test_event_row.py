"""Rules for an event before its row is written, and the shard that it belongs to."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any
from uuid import RFC_4122, UUID

import pytest

from saga_activities.json_results import UnusableResult
from saga_activities.messaging.outbox import RELAY_HEADER_BYTES, event_row, shard_hash
from sagas.actions.events import Event


def event(**fields: Any) -> Event:
    return Event(**{"topic": "orders", "key": "o-1", "value": {"n": 1}, **fields})


def test_a_plain_event() -> None:
    row = event_row(event(headers={"n": 7, "new": True, "who": "we"}, type="order.placed"))
    assert row["value"] == '{"n":1}'
    assert row["headers"] == '{"n":"7","new":"true","who":"we"}'
    assert (row["status"], row["event_type"], row["event_key"]) == ("NEW", "order.placed", "o-1")
    assert len(row["event_id"]) == 36


def test_numbers_have_their_digits() -> None:
    number = Decimal("123456789012345678.10")
    row = event_row(event(key=number, value={"n": number, "f": 12.5}, headers={"n": number, "e": Decimal("1E+2")}))
    assert row["event_key"] == "123456789012345678.10"
    assert row["value"] == '{"n":123456789012345678.10,"f":12.5}'
    assert row["headers"] == '{"n":"123456789012345678.10","e":"100"}'


def test_ids_begin_with_the_time() -> None:
    """The cost of an unordered id shows only in a large index, so the form of the id is all that a test can see."""
    began = time.time_ns() // 1_000_000
    ids = [UUID(event_row(event())["event_id"]) for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert {(id.version, id.variant) for id in ids} == {(7, RFC_4122)}
    assert all(began <= id.int >> 80 <= time.time_ns() // 1_000_000 for id in ids)


@pytest.mark.parametrize("topic", ["__consumer_offsets_of_mine", "__mine", "...", "a."])
def test_names_similar_to_internal_topics_are_accepted(topic: str) -> None:
    assert event_row(event(topic=topic))["topic"] == topic


def test_a_held_event_with_an_id_of_its_own() -> None:
    row = event_row(event(hold=True, id="e-1"))
    assert (row["status"], row["event_id"]) == ("HELD", "e-1")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"value": object()}, "cannot be written as JSON: JSON has no form for a value of type object"),
        ({"value": float("nan")}, "JSON has no such number"),
        ({"value": "\ud800"}, "text that is not UTF-8"),
        ({"key": "\ud800"}, "text that is not UTF-8"),
        ({"headers": {"a": [1]}}, "a header must be a string; 'a'"),
        ({"headers": {"a": None}}, "a header must be a string; 'a'"),
        ({"topic": ""}, "'' is not a valid topic name: use 1 to 249 letters"),
        ({"topic": "t" * 250}, "t…' is not a valid topic name: use 1 to 249 letters"),
        ({"topic": "or ders"}, "'or ders' is not a valid topic name: use 1 to 249 letters"),
        (
            {"topic": "__consumer_offsets"},
            "'__consumer_offsets' is not a valid topic name: .*no internal topic of Kafka",
        ),
        ({"topic": ".."}, "'..' is not a valid topic name"),
        ({"id": "x" * 37}, "at most 36 characters"),
        ({"type": "x" * 256}, "at most 255 characters"),
    ],
)
def test_unpublishable_events_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UnusableResult, match=message):
        event_row(event(**fields))


def test_the_size_counts_bytes_of_value_key_and_headers() -> None:
    room = 10_000 - RELAY_HEADER_BYTES
    fits = event(value="é" * ((room - 2 - 3 - 2) // 2), headers={})  # two quotes, the key `o-1`, the headers `{}`
    event_row(fits, max_bytes=10_000)
    with pytest.raises(UnusableResult, match="at most 10000 are allowed"):
        event_row(event(value=f"{fits.value}é"), max_bytes=10_000)
    with pytest.raises(UnusableResult, match="at most 10000"):
        event_row(event(value=fits.value, headers={"a": "bcd"}), max_bytes=10_000)


def test_the_shard_of_a_key_never_changes() -> None:
    """The numbers are fixed: an update that changed them would break the order per key of pending events."""
    assert [shard_hash("orders", key, "e") % 4 for key in ("a", "b", "c", "d", "é")] == [1, 3, 1, 2, 1]
    assert shard_hash("orders", None, "e-1") != shard_hash("orders", None, "e-2")
    assert shard_hash("orders", "a", "e-1") == shard_hash("orders", "a", "e-2")
