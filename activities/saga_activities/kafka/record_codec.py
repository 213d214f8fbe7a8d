"""Encodes and decodes records: a JSON value, CloudEvents attributes in binary mode, and the saga's own headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

from saga_activities.input_limits import MAX_RECORD_BYTES, MAX_RECORD_VALUES
from saga_activities.json_results import UnusableResult, to_json_value
from sagas.actions.message_headers import PartlyReadableHeaders
from sagas.input_limits import MAX_JSON_DEPTH
from sagas.text.exact_json import RepeatedName, decode_json, encode_json
from sagas.text.json_mistakes import InvalidJson
from sagas.text.json_values import has_more_values, json_problem, parse_json

if TYPE_CHECKING:
    from confluent_kafka import Message

SAGA_ID_HEADER = "sagaid"
STEP_HEADER = "sagastep"
STEP_KEY_HEADER = "sagakey"
UNDOES_HEADER = "sagaundoes"
CONFIRMS_HEADER = "sagaconfirms"
REPLY_TO_HEADER = "sagareplyto"
REPLY_TOKEN_HEADER = "sagatoken"  # noqa: S105, the name of the header
OUTCOME_HEADER = "sagaoutcome"
TRACEPARENT_HEADER = "traceparent"
CONTENT_TYPE_HEADER = "content-type"

RecordHeaders = Sequence[tuple[str, bytes]]
RawHeaders = Sequence[tuple[str, bytes | None]]
"""Headers of a record as a consumer has read it."""


class MalformedRecord(Exception):
    """A record that no attempt can read; the message says why."""


class EncodedRecord(NamedTuple):
    """A record as a producer takes it."""

    value: bytes
    key: bytes | None = None
    headers: RecordHeaders = ()

    @property
    def size(self) -> int:
        """Bytes of key, value and headers: what ``max_message_bytes`` limits."""
        return (
            len(self.value) + len(self.key or b"") + sum(len(name.encode()) + len(text) for name, text in self.headers)
        )


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """A record as a consumer has read it.

    ``id`` is the CloudEvents ``id``, or ``topic/partition/offset`` for records without one; ``timestamp`` is
    milliseconds since the epoch, None if the broker gives none. ``headers``: see :func:`decode_headers`.
    """

    topic: str
    partition: int
    offset: int
    id: str
    value: Any
    key: str | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)
    timestamp: int | None = None

    @property
    def type(self) -> str | None:
        """The CloudEvents type."""
        return self.headers.get("ce_type")

    @property
    def source(self) -> str | None:
        return self.headers.get("ce_source")


def encode(
    value: str,
    *,
    id: str,
    type: str,
    source: str,
    time: float,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    saga_id: str | None = None,
    step: str | None = None,
    step_key: str | None = None,
    traceparent: str | None = None,
) -> EncodedRecord:
    """``value`` is JSON text, ``time`` is seconds since the epoch. The engine's own headers override ``headers``."""
    # No loop: the relay runs this for each event.
    own: list[tuple[str, bytes]] = [
        ("ce_id", id.encode()),
        _time_header(round(time * 1_000_000) // 1000),
        *_common_headers(type, source, step),
    ]
    if saga_id is not None:
        own.append((SAGA_ID_HEADER, saga_id.encode()))
    if step_key is not None:
        own.append((STEP_KEY_HEADER, step_key.encode()))
    if traceparent is not None:
        own.append((TRACEPARENT_HEADER, traceparent.encode()))
    if headers:
        reserved = {name for name, _ in own}
        own += [(name, str(text).encode()) for name, text in headers.items() if name not in reserved]
    return EncodedRecord(value.encode(), None if key is None else key.encode(), own)


@lru_cache(1024)
def _common_headers(type: str, source: str, step: str | None) -> Sequence[tuple[str, bytes]]:
    """The headers that are the same in all events of a step."""
    common = [
        ("ce_specversion", b"1.0"),
        ("ce_source", source.encode()),
        ("ce_type", type.encode()),
        (CONTENT_TYPE_HEADER, b"application/json"),
    ]
    return tuple(common if step is None else [*common, (STEP_HEADER, step.encode())])


@lru_cache(1024)
def _time_header(millisecond: int) -> tuple[str, bytes]:
    return "ce_time", format_time(millisecond)


def format_time(millisecond: int) -> bytes:
    """RFC 3339 in UTC of milliseconds since the epoch."""
    return b"%b.%03dZ" % (_format_second(millisecond // 1000), millisecond % 1000)


@lru_cache(1024)
def _format_second(number: int) -> bytes:
    return datetime.fromtimestamp(number, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


def decode(message: Message) -> DecodedRecord:
    """Read a record that has no error.

    Raises:
        MalformedRecord: the value is not JSON or too large or deep, the key is not UTF-8, a header that the engine
            reads cannot be read, or the record has what cannot be stored anywhere: half a surrogate pair, an infinite
            number, a time after the year 9999.
    """
    topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
    headers = decode_headers(raw_headers(message))
    check_headers(headers)
    raw_key: Any = message.key()
    raw_value: Any = message.value()
    try:
        key = raw_key.decode() if isinstance(raw_key, bytes) else raw_key
    except UnicodeDecodeError:
        raise MalformedRecord("the key is not UTF-8 text") from None
    try:
        value = None if raw_value is None else parse_value(raw_value)
    except UnicodeDecodeError:
        raise MalformedRecord("the value is not UTF-8 text") from None
    except (InvalidJson, RepeatedName) as error:
        raise MalformedRecord(f"the value is not JSON: {error}") from None
    except ValueError as error:
        raise MalformedRecord(f"the value cannot be read: {error}") from None
    kind, milliseconds = message.timestamp()
    if kind and not 0 <= milliseconds <= LAST_MILLISECOND:
        raise MalformedRecord(f"the time of the record is out of range: {milliseconds} ms since 1970")
    return DecodedRecord(
        topic=topic,
        partition=partition,
        offset=offset,
        id=headers.get("ce_id") or f"{topic}/{partition}/{offset}",
        value=value,
        key=key,
        headers=headers,
        timestamp=milliseconds if kind else None,
    )


def record_value(value: Any) -> str:
    """A value as the JSON text of a record, with exact numbers. Raises UnusableResult."""
    text = encode_json(to_json_value(value)).decode()
    if "\\ud" in text and json_problem(decode_json(text), max_depth=MAX_JSON_DEPTH + 1) is not None:
        raise UnusableResult("text that is not UTF-8: half a surrogate pair")
    return text


def parse_value(raw: bytes) -> Any:
    """The value of a record from anywhere. Raises as :func:`parse_json`, before it parses what is too large."""
    if len(raw) > MAX_RECORD_BYTES:
        raise ValueError(f"it has {len(raw):,} bytes, and at most {MAX_RECORD_BYTES:,} are read")
    if has_more_values(raw, MAX_RECORD_VALUES):
        raise ValueError(f"it has more than {MAX_RECORD_VALUES:,} values")
    return parse_json(raw)


LAST_MILLISECOND = 253_402_300_799_999
"""The end of the year 9999; a producer may set any time."""


_get_headers = methodcaller("headers")
"""The library returns a result although it has set an exception. Calls from C, as this one, check for that; the
interpreter's own calls do not once they are optimised, and the exception appears somewhere else."""


def raw_headers(message: Message) -> RawHeaders:
    """The headers as they are.

    Raises:
        MalformedRecord: the name of a header is not UTF-8, which the client library cannot represent. After that the
            message has no headers.
    """
    try:
        headers: Any = _get_headers(message)
    except (SystemError, UnicodeError):
        message.set_headers([])  # the library has kept an invalid tuple, which must not be touched
        raise MalformedRecord("the name of a header is not UTF-8 text") from None
    return tuple(headers or ())


def decode_headers(headers: RawHeaders) -> Mapping[str, str | None]:
    """Headers as strings, null as None.

    One that is not UTF-8, has a NUL, which no database takes, or is there twice with different values raises
    UnreadableHeader where it is read.
    """
    texts: dict[str, str | None] = {}
    problems: dict[str, str] = {}
    for name, raw in headers:
        text = None
        try:
            text = None if raw is None else raw.decode()
        except UnicodeDecodeError:
            problems[name] = f"the header {name} is not UTF-8 text: correct its producer"
        if text is not None and "\0" in text:
            problems[name] = f"the header {name} has a NUL, which no database takes: correct its producer"
        if name not in problems and texts.setdefault(name, text) != text:
            problems[name] = f"the header {name} is there twice with different values: send it once"
    return PartlyReadableHeaders(texts, problems) if problems else texts


def check_headers(headers: Mapping[str, str | None]) -> None:
    """Raise MalformedRecord if a header of CloudEvents or of the engine, which it reads itself, cannot be read."""
    if isinstance(headers, PartlyReadableHeaders):
        for name, problem in headers.problems.items():
            if name.startswith(("ce_", "saga")) and not name.startswith("sagadlq"):
                raise MalformedRecord(problem)


def known_headers(message: Message) -> dict[str, str]:
    """The headers as strings, escaped where they are not UTF-8, for readers of any records, which must not fail.

    Of several with one name it is the last; none if their names cannot be read.
    """
    try:
        raw = raw_headers(message)
    except MalformedRecord:
        return {}
    return {name: (text or b"").decode(errors="backslashreplace").replace("\0", "\\x00") for name, text in raw}
