"""Records as anybody may write them, against everything that decodes them: a value or one reason, nothing else."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga_activities.input_limits import MAX_RESPONSE_BYTES
from saga_activities.kafka.record_codec import (
    LAST_MILLISECOND,
    MalformedRecord,
    check_headers,
    decode_headers,
    raw_headers,
)
from saga_activities.messaging.kafka_request import MalformedReply, decode_reply, outcome_of_reply
from saga_workers.trigger.bridge_function import run_bridge_function
from saga_workers.trigger.consumed_record import ConsumedRecord
from saga_workers.trigger.dead_letters import MAX_REASON_LENGTH, dead_letter
from saga_workers.trigger.retry import AttemptFailed, PoisonMessage, retry_until_done
from sagas.actions.consumers import Bridge, Message
from sagas.actions.events import Event
from sagas.actions.message_headers import UnreadableHeader
from sagas.expressions import ExpressionError, compile_expression
from sagas.text.exact_json import decode_json, encode_json
from sagas.text.json_values import json_problem
from tests.helpers.call_costs import cost_of

ENGINE_HEADERS = ("ce_id", "ce_source", "ce_type", "ce_time", "sagaid", "sagakey", "sagareplyto", "sagaoutcome")
NAMES = st.sampled_from([*ENGINE_HEADERS, "sagabridge", "sagadlqreason", "content-type", "traceparent", ""]) | st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=8
)
TEXTS = st.binary(max_size=30) | st.sampled_from(
    [
        b"",
        b"\0",
        b"a\0b",
        b"\xff",
        b"x~undo",
        b"a/b#0",
        b"\x1b[2J",
        b"rejected",
        b"a" * 5000,
        b"../../etc",
        b"\xed\xa0\x80",
    ]
)
VALUES = (
    st.none()
    | st.binary(max_size=40)
    | st.sampled_from(
        [b'{"order": 1}', b'"\\ud800"', b'{"a\\udc00": 1}', b'"\\ud83d\\ude00"', b"1e999", b"-1E400", b"NaN"]
    )
    | st.sampled_from(
        [b"[" * 3000, b"9" * 5000, b"-1E400", b"\xff\xfe", b"\xef\xbb\xbf1", b'"\\u0000"', b'{"order": 1}\0']
    )
    | st.recursive(st.none() | st.integers() | st.floats() | st.text(max_size=5), st.lists, max_leaves=5).map(
        lambda value: json.dumps(value).encode()
    )
)
STAMPS = st.tuples(st.sampled_from([0, 1, 2]), st.integers(-(2**63), 2**63 - 1))


class Arrived:
    """A record as the client library gives it."""

    def __init__(self, value: bytes | None, key: bytes | None = None, headers: Any = None, stamp: Any = (1, 1500)):
        self.parts = (value, key, stamp)
        self.given = headers

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def value(self) -> bytes | None:
        return self.parts[0]

    def key(self) -> bytes | None:
        return self.parts[1]

    def headers(self) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given

    def set_headers(self, headers: Any) -> None:
        self.given = headers

    def timestamp(self) -> Any:
        return self.parts[2]


HEADERS = st.none() | st.lists(st.tuples(NAMES, st.none() | TEXTS), max_size=6) | st.just(SystemError("no text"))
RECORDS = st.builds(Arrived, VALUES, st.none() | TEXTS, HEADERS, STAMPS)


def upper(message: Message) -> Any:
    return {"was": message.value, "at": message.timestamp}


@given(RECORDS)
def test_a_record_is_decoded_or_refused_with_a_reason(arrived: Any) -> None:
    record = ConsumedRecord(arrived)
    try:
        message = record.message()
    except MalformedRecord as error:
        reason = str(error)
        assert reason
    else:
        # Everything in it can be written to any database, topic or workflow.
        assert json_problem(message.value) is None
        assert decode_json(encode_json(message.value)) == message.value
        assert message.timestamp <= "9999-12-31T23:59:59.999Z"
        kind, milliseconds = arrived.timestamp()
        if kind:  # a binary float has no room for the milliseconds of far years
            since_1970 = datetime.fromisoformat(message.timestamp) - datetime(1970, 1, 1, tzinfo=UTC)
            assert since_1970 // timedelta(milliseconds=1) == milliseconds
    storable = [record.id, *(text for text in record.headers.values() if text is not None)]
    assert all("\0" not in text and text.encode() is not None for text in storable)
    assert len(record.id) <= 200


@given(RECORDS, st.text(st.characters(codec=None), max_size=2000), st.booleans())
def test_every_record_can_become_a_dead_letter(arrived: Any, reason: str, omit: bool) -> None:
    letter = dead_letter(ConsumedRecord(arrived), "group", reason, omit_value=omit)
    headers = dict(letter["headers"])
    assert "\0" not in headers["sagadlqreason"]
    assert len(headers["sagadlqreason"].encode()) <= 10 * MAX_REASON_LENGTH
    assert all(name.encode() is not None for name in headers)
    if omit:
        sizes = [len(letter["key"] or b""), *(len(text or b"") for _, text in letter["headers"])]
        assert sum(sizes) < 100_000


@given(RECORDS)
def test_a_bridge_makes_an_output_or_a_dead_letter_of_every_record(arrived: Any) -> None:
    output = run_bridge_function(Bridge("b", "orders", "out", upper), ConsumedRecord(arrived), "group")
    assert len(output.records) == 1
    assert (output.records[0]["topic"] == "out") is (output.dead_letter_reason is None)


@given(RECORDS)
def test_a_reply_is_decoded_or_refused_with_a_reason(arrived: Any) -> None:
    try:
        reply = decode_reply("replies", decode_headers(raw_headers(arrived)), arrived.value())
    except (MalformedReply, MalformedRecord) as error:
        reason = str(error)
        assert reason
    else:
        assert "\0" not in reply.key + reply.data
        assert (reply.key + reply.data).encode() is not None


@pytest.mark.parametrize(
    ("arrived", "reason"),
    [
        (Arrived(b'{"name": "\\ud800"}'), "half a surrogate pair"),
        (Arrived(b'{"\\udc00": 1}'), "half a surrogate pair"),
        (Arrived(b"[1e9999]"), "has more than 1,000 digits"),
        (Arrived(b"1", stamp=(1, LAST_MILLISECOND + 1)), "the time of the record is out of range"),
        (Arrived(b"1", stamp=(1, -5)), "the time of the record is out of range"),
        (Arrived(b"[" + b"0," * 1_000_000 + b"0]"), "more than 1,000,000 values"),
        (Arrived(b'"' + b"x" * 17_000_000 + b'"'), "17,000,002 bytes, and at most 16,777,216 are read"),
        (Arrived(b"1", headers=SystemError("no text")), "the name of a header is not UTF-8 text"),
    ],
)
def test_a_record_that_nobody_can_store_is_malformed(arrived: Any, reason: str) -> None:
    with pytest.raises(MalformedRecord, match=reason):
        ConsumedRecord(arrived).message()


EQUAL = [(b"1.10", b"1.1"), (b"1.0", b"1"), (b"1E2", b"100"), (b"20", b"20.0"), (b"0.0", b"-0.0"),
         (b'{"a": 1, "b": 2}', b'{"b":2.0,"a":1}'), (b'"\xc3\xa9"', b'"\\u00e9"'), (b"null", None)]  # fmt: skip
DIFFERENT = [(b"1", b'"1"'), (b"1", b"true"), (b"[1, 2]", b"[2, 1]"), (b"{bad", b"{bad "), (b"", b"null")]


def digest_of(value: bytes | None, key: bytes | None = None) -> str:
    record = ConsumedRecord(Arrived(value, key))
    with suppress(MalformedRecord):
        record.message()
    return record.digest


def test_the_digest_of_a_record_is_that_of_its_json() -> None:
    for first, second in EQUAL:
        assert digest_of(first) == digest_of(second), (first, second)
    for first, second in DIFFERENT:
        assert digest_of(first) != digest_of(second), (first, second)


@pytest.mark.parametrize("value", [b"1", b"{bad"])
def test_no_key_is_another_one_than_an_empty_key(value: bytes) -> None:
    """Kafka spreads records without a key, and sends all with an empty one to one partition."""
    assert digest_of(value) != digest_of(value, b"")


NUMBERS = b"[" + b"0.1," * 249_000 + b"0]"
HOSTILE_REPLIES = {
    "many numbers": (b"[" + b"0," * 1_000_000 + b"0]", 2_000_003),
    "no JSON": (b"[" * 3_000_000, 3_000_000),
    "a long text": (b'"' + b"x" * 16_000_000 + b'"', 16_000_002),
    "escaped quotes": (b"[" * 260_000 + b'"' + b'\\"' * 800_000, 1_860_001),
    "decimals": (NUMBERS, 0),
    "objects": (b"[" + b'{"":0},' * 124_000 + b"0]", 0),
    "long decimals": (b"[" + b",".join([b"0." + b"1" * 990] * 2_000) + b"]", 0),
    "escapes": (b'"' + b"\\u00e9" * 340_000 + b'"', 0),
}


@pytest.mark.parametrize("outcome", ["done", "rejected"])
@pytest.mark.parametrize("shape", HOSTILE_REPLIES)
def test_a_hostile_reply_costs_little(shape: str, outcome: str) -> None:
    """2 seconds of CPU and 200 MiB at most; one that is too large for a result is not parsed."""
    value, size = HOSTILE_REPLIES[shape]
    decoding = cost_of(decode_reply, "replies", {"sagakey": "k", "sagaoutcome": outcome}, value)
    reply = decoding.result
    if isinstance(reply, MalformedReply):
        assert not size
        settling = decoding
    else:
        settling = cost_of(outcome_of_reply, reply.outcome, reply.data, 1)
        limit = "size" if size > MAX_RESPONSE_BYTES else "values"
        assert (f'"omitted":"{limit}","bytes":{size}' in reply.data) is bool(size)
    assert decoding.seconds + settling.seconds < 2
    assert max(decoding.mib, settling.mib) < 200


UNREADABLE: list[tuple[list[tuple[bytes | None, ...]], str]] = [
    ([(b"a\xff",)], "is not UTF-8 text"),
    ([(b"\xed\xa0\x80",)], "is not UTF-8 text"),
    ([(b"a\0b",)], "has a NUL, which no database takes"),
    ([(b"first",), (b"second",)], "is there twice with different values: send it once"),
    ([(b"first",), (None,)], "is there twice with different values: send it once"),
]


def carrying(name: str, texts: list[tuple[bytes | None, ...]]) -> Any:
    return Arrived(b"1", headers=[(name, text) for (text,) in texts])


@pytest.mark.parametrize(("texts", "why"), UNREADABLE)
def test_a_header_of_the_engine_that_cannot_be_read_makes_a_dead_letter(texts: Any, why: str) -> None:
    for name in ("ce_id", "ce_type", "sagaid", "sagakey", "sagareplyto", "sagaoutcome"):
        record = ConsumedRecord(carrying(name, texts))
        with pytest.raises(MalformedRecord, match=f"the header {name} {why}"):
            record.message()
        assert record.id.startswith("orders-0-7-")
        output = run_bridge_function(Bridge("b", "orders", "out", upper), record, "group")
        assert output.dead_letter_reason is not None
    for name in ("sagakey", "sagaoutcome", "sagatoken"):
        headers = [("sagakey", b"s/a"), ("sagaoutcome", b"done"), *((name, text) for (text,) in texts)]
        with pytest.raises(MalformedReply, match=f"the header {name} "):
            decode_reply("replies", decode_headers(headers), b"1")


@pytest.mark.parametrize(("texts", "why"), UNREADABLE)
def test_another_header_concerns_only_those_who_read_it(texts: Any, why: str) -> None:
    record = ConsumedRecord(carrying("team", texts))
    message = record.message()
    assert "team" in message.headers
    assert list(message.headers) == ["team"]
    for read in (lambda: message.headers["team"], lambda: message.headers.get("team"), lambda: dict(message.headers)):
        with pytest.raises(UnreadableHeader, match=f"the header team {why}"):
            read()
    unread = run_bridge_function(Bridge("b", "orders", "out", upper), record, "group")
    assert unread.records[0]["headers"] == [("team", text) for (text,) in texts]

    def reading(message: Message) -> Any:
        return message.headers["team"]

    assert why in (run_bridge_function(Bridge("b", "orders", "out", reading), record, "group").dead_letter_reason or "")
    context = {"trigger": message.as_trigger()}
    for expression in ("trigger.headers.team", "default(trigger.headers.team, 1)", "trigger.headers", "trigger"):
        with pytest.raises(ExpressionError, match=f"the header team {why}"):
            compile_expression(expression).evaluate(context)
    for expression in ('"team" in trigger.headers', "has(trigger.headers.team)", "trigger.value == 1"):
        assert compile_expression(expression).evaluate(context) is True


def test_a_null_header_is_null_and_a_repeated_one_has_its_value() -> None:
    headers = [("a", None), ("b", b"x"), ("b", b"x"), ("ce_id", None)]
    record = ConsumedRecord(Arrived(b"1", headers=headers))
    message = record.message()
    assert message.headers == {"a": None, "b": "x", "ce_id": None}
    assert compile_expression("trigger.headers.a == null").evaluate({"trigger": message.as_trigger()}) is True

    def copied(message: Message) -> Any:
        return Event("out", key=None, value=1, headers={**message.headers, "c": "y"})

    output = run_bridge_function(Bridge("b", "orders", "out", copied), record, "group")
    assert output.dead_letter_reason is None
    assert output.records[0]["headers"] == [*headers[:3], ("ce_id", f"{record.id}-0".encode()), ("c", b"y")]
    check_headers(decode_headers([("sagadlqreason", b"\xff")]))


async def test_the_reason_of_a_failed_attempt_can_be_logged_and_stored() -> None:
    for error in (PoisonMessage("a\0b \ud800"), ValueError("a\0b \ud800"), AttemptFailed("a\0b \ud800")):

        async def attempt(_: int, error: Exception = error) -> None:
            raise error

        reason = await retry_until_done(attempt, about={}, stop=asyncio.Event(), max_attempts=1)
        assert reason is not None
        assert reason.endswith("a\\x00b \\ud800")


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert ConsumedRecord(Arrived(b'"\\ud83d\\ude00"')).message().value == "\U0001f600"


def test_headers_that_cannot_be_read_are_not_touched_again() -> None:
    """The client library keeps an invalid tuple after its error; to read it would end the process."""
    arrived: Any = Arrived(b"1", headers=SystemError("no text"))
    with pytest.raises(MalformedRecord):
        raw_headers(arrived)
    assert raw_headers(arrived) == ()
    assert math.isfinite(ConsumedRecord(arrived).timestamp)


def test_a_reply_keeps_the_digits_of_its_numbers() -> None:
    headers = {"sagakey": "s/a", "sagaoutcome": "done"}
    reply = decode_reply(
        "replies", headers, b'{"a": 1.10, "b": 123456789012345678.123456789, "c": 9223372036854775808}'
    )
    assert reply.data == '{"a":1.10,"b":123456789012345678.123456789,"c":9223372036854775808}'
    outcome = outcome_of_reply(reply.outcome, reply.data, 1)
    assert encode_json(outcome.result).decode() == reply.data
    refused = decode_reply(
        "replies", headers | {"sagaoutcome": "rejected"}, b'{"reason": "no", "details": {"a": 1.10}}'
    )
    failure = outcome_of_reply(refused.outcome, refused.data, 1).failure
    assert failure is not None
    assert encode_json(failure.details) == b'{"a":1.10}'
