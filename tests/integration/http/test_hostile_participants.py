"""Responses made to exhaust or confuse the worker: bounded in memory and time, never taken for more than they say."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from saga_activities.http import HttpConnection
from saga_activities.http import response as http_response
from saga_activities.input_limits import MAX_RESPONSE_BYTES
from sagas.protocol.outcomes import Outcome
from tests.helpers.sampling import mostly_slow
from tests.integration.http.charges import CHARGE, call
from tests.integration.http.conftest import Connect
from tests.integration.http.raw_server import RawServer, raw_server, response

MEGABYTE = 1024 * 1024
BOMB = gzip.compress(bytes(64 * MEGABYTE), 9)


@pytest.fixture
async def participant() -> AsyncIterator[RawServer]:
    async with raw_server() as server:
        yield server


@pytest.fixture
def crm(connect: Connect, participant: RawServer) -> HttpConnection:
    return connect(participant.url)


async def peak_of(connection: HttpConnection, **options: Any) -> tuple[Outcome, int]:
    """The outcome of a call, and the most memory it took at once."""
    tracemalloc.start()
    try:
        outcome = await call(connection, **options)
        return outcome, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("op", ["do", "probe"])
async def test_a_decompression_bomb_is_cut_off(participant: RawServer, crm: HttpConnection, op: str) -> None:
    participant.answer = [response(BOMB, "Content-Encoding: gzip")]
    outcome, peak = await peak_of(crm, op=op)
    assert outcome.kind == "done"
    assert outcome.result["omitted"] == "size"
    assert outcome.result["bytes"] > MAX_RESPONSE_BYTES
    assert peak < 20 * MEGABYTE


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("result", [None, "response.json", "response.status"])
async def test_a_body_of_many_small_values_is_not_kept(
    participant: RawServer, crm: HttpConnection, result: str | None
) -> None:
    """Two megabytes of empty lists took fourteen seconds of CPU: they were read four times, and copied.

    That a body is read once is the next test; what is copied is in the memory.
    """
    body = gzip.compress(b"[" + b"[]," * 690_000 + b"0]")
    participant.answer = [response(body, "Content-Encoding: gzip", "Content-Type: application/json")]
    arguments = {**CHARGE, "rejected_when": "response.status == 299", **({"result": result} if result else {})}
    outcome, peak = await peak_of(crm, arguments=arguments)
    assert outcome.kind == "done"
    assert outcome.result == {"omitted": "values", "bytes": 2_070_003}
    assert peak < 150 * MEGABYTE


async def test_a_body_is_read_once(
    participant: RawServer, crm: HttpConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = http_response.parse_json

    def counted(text: str) -> Any:
        read.append(text)
        return original(text)

    monkeypatch.setattr(http_response, "parse_json", counted)
    participant.answer = [response(b'{"charge": "c-1"}', "Content-Type: application/json")]
    arguments = {**CHARGE, "rejected_when": "response.json.charge == null", "result": "response.json.charge"}
    outcome = await call(crm, arguments)
    assert (outcome.kind, outcome.result) == ("done", "c-1")
    missing = await call(crm, {**arguments, "result": "response.json.refund"})
    assert (missing.kind, missing.retryable) == ("unknown", False)
    assert len(read) == 2


@pytest.mark.sampled(keep=3)
@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (gzip.compress(BOMB, 9), "gzip, gzip"),
        (gzip.compress(zlib.compress(bytes(MEGABYTE))), "deflate, gzip"),
        (zlib.compress(b"{}"), "deflate"),
        (b"x", "br"),
        (b"not gzip", "gzip"),
        (gzip.compress(b'{"id": "ch-1"}')[:-6], "gzip"),
        (gzip.compress(b'{"id": "ch-1"}') + b"and more", "gzip"),
        (gzip.compress(b"{}") + gzip.compress(b" ")[:-1], "gzip"),
        (gzip.compress(b"") * 100_000, "gzip"),
    ],
    ids=[
        "stacked",
        "mixed",
        "deflate",
        "brotli",
        "corrupt",
        "truncated",
        "garbage after it",
        "second member truncated",
        "empty members",
    ],
)
async def test_a_body_that_cannot_be_decoded_leaves_the_effect_in_doubt(
    participant: RawServer, crm: HttpConnection, body: bytes, coding: str
) -> None:
    participant.answer = [response(body, f"Content-Encoding: {coding}")]
    outcome, peak = await peak_of(crm)
    assert (outcome.kind, outcome.retryable) == ("unknown", True)
    assert outcome.failure is not None
    assert outcome.failure.message.startswith("crm responded to POST /charges with a body that cannot be read: ")
    assert peak < 20 * MEGABYTE


@pytest.mark.parametrize(
    "body",
    [
        gzip.compress(b'{"id": "ch-1"}'),
        gzip.compress(b'{"id": ') + gzip.compress(b"") + gzip.compress(b'"ch-1"}'),
        gzip.compress(b'{"id": "ch-1"}') + bytes(600),
    ],
    ids=["one member", "three members", "padding"],
)
async def test_a_compressed_body_is_read(participant: RawServer, crm: HttpConnection, body: bytes) -> None:
    participant.answer = [response(body, "Content-Encoding: gzip")]
    assert (await call(crm)).result == {"id": "ch-1"}
    assert b"accept-encoding: gzip\r\n" in participant.requests[0].lower()


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize(
    ("answer", "forever", "pause"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-Header: y\r\n", 0.0),
        (b"HTTP/1.1 200 OK\r\nX-Header: ", b"y" * 65_536, 0.0),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.0),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x", 0.05),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x" * 65_536, 0.0),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Trailer: y\r\n", 0.0),
    ],
    ids=["headers", "header", "interim responses", "drip", "chunk extension", "trailers"],
)
async def test_a_response_without_end_is_unknown_in_time(
    participant: RawServer, crm: HttpConnection, answer: bytes, forever: bytes, pause: float
) -> None:
    participant.answer, participant.forever, participant.pause = [answer], forever, pause
    started = time.monotonic()
    outcome, peak = await peak_of(crm, timeout=1.0)
    assert (outcome.kind, outcome.retryable) == ("unknown", True)
    assert time.monotonic() - started < 30
    assert peak < 20 * MEGABYTE


@pytest.mark.parametrize(("announced", "told"), [(3_000_000, True), (99_999_999_999_999_999_999, False)])
async def test_only_a_size_that_may_be_true_is_told(
    participant: RawServer, crm: HttpConnection, announced: int, told: bool
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % announced
    participant.answer = [head, b"x" * (MAX_RESPONSE_BYTES + 1)]
    size = (await call(crm)).result["bytes"]
    assert (size == announced) if told else (MAX_RESPONSE_BYTES < size < 2 * MAX_RESPONSE_BYTES)


async def test_a_body_without_end_is_not_kept(participant: RawServer, crm: HttpConnection) -> None:
    participant.answer, participant.forever = [b"HTTP/1.1 200 OK\r\n\r\n"], b"x" * 65_536
    outcome, peak = await peak_of(crm)
    assert (outcome.kind, outcome.result["omitted"]) == ("done", "size")
    assert peak < 20 * MEGABYTE


@pytest.mark.parametrize(
    "charset", mostly_slow(["punycode", "idna", "undefined", "zlib", "unicode_escape", "utf-7", ""], {"zlib", "utf-7"})
)
async def test_a_charset_that_is_none_is_read_as_utf_8(
    participant: RawServer, crm: HttpConnection, charset: str
) -> None:
    text = '{"name": "Zoë", "filler": "%s"}' % ("a-" * 100_000)
    participant.answer = [response(text.encode(), f"Content-Type: application/json; charset={charset}")]
    started = time.monotonic()
    outcome = await call(crm)
    assert outcome.result["name"] == "Zoë"
    assert time.monotonic() - started < 30


JSON = "Content-Type: application/json"


@pytest.mark.sampled(keep=3)
@pytest.mark.parametrize(
    ("body", "content_type", "why"),
    [
        (
            b'{"a":"Z\xfcrich"}',
            JSON,
            "its body is not text in UTF-8 (byte 0xfc at 8); correct the service or the charset",
        ),
        (b"Z\xfcrich", "Content-Type: text/plain", "its body is not text in UTF-8 (byte 0xfc at 2)"),
        (b"Z\xfcrich", "X-Type: none", "its body is not text in UTF-8 (byte 0xfc at 2)"),
        (b'{"a":"Z\xfcrich"}', f"{JSON}; charset=iso-8859-99", "its body is not text in UTF-8"),
        (b'{"a":"\x81"}', f"{JSON}; charset=windows-1252", "not text in windows-1252, which its content-type declares"),
        (b'\xef\xbb\xbf{"a":1.10}', JSON, "its body begins with a byte order mark, which JSON does not allow"),
    ],
)
async def test_a_body_that_is_no_certain_value_has_no_result(
    participant: RawServer, crm: HttpConnection, body: bytes, content_type: str, why: str
) -> None:
    participant.answer = [response(body, content_type)]
    for result in (None, "response.json", "response.json.a", "string(response.json)"):
        outcome = await call(crm, CHARGE if result is None else {**CHARGE, "result": result})
        assert (outcome.kind, outcome.retryable) == ("unknown", False)
        assert outcome.failure is not None
        assert outcome.failure.message.startswith("crm did POST /charges, but its result cannot be computed: ")
        assert why in outcome.failure.message
    assert (await call(crm, {**CHARGE, "result": "response.status"})).result == 200
    refused = await call(crm, {**CHARGE, "rejected_when": "default(response.json.refused, false)"})
    assert (refused.kind, refused.retryable) == ("unknown", False)
    text = await call(crm, {**CHARGE, "result": "response.text"})
    if body.startswith(b"\xef\xbb\xbf"):
        assert text.result == body.decode()
    else:
        assert (text.kind, text.retryable) == ("unknown", False)
    seen = (await call(crm, op="probe")).result
    assert seen["status"] == 200
    assert "json" not in seen
    assert seen.get("text", body.decode("utf-8", "ignore")) == body.decode("utf-8", "ignore")


@pytest.mark.parametrize(
    ("body", "content_type", "result"),
    [
        ('{"a":"Zürich"}'.encode("latin-1"), f"{JSON}; charset=iso-8859-1", {"a": "Zürich"}),
        ("5 €".encode("cp1252"), "Content-Type: text/plain; charset=windows-1252", "5 €"),
        ('{"a":"x"}'.encode("utf-16"), f"{JSON}; charset=utf-16", {"a": "x"}),
        ("\ufeffid;name".encode(), "Content-Type: text/csv", "\ufeffid;name"),
    ],
)
async def test_a_body_is_read_in_its_declared_charset(
    participant: RawServer, crm: HttpConnection, body: bytes, content_type: str, result: Any
) -> None:
    participant.answer = [response(body, content_type)]
    assert (await call(crm)).result == result


@pytest.mark.parametrize("text", ["1e9999", '{"a": -1e9999}'])
async def test_a_number_without_a_finite_value_is_no_json(
    participant: RawServer, crm: HttpConnection, text: str
) -> None:
    participant.answer = [response(text.encode(), "Content-Type: application/json")]
    assert (await call(crm)).result == text


OAUTH2 = {"client_id": "saga", "client_secret": {"env": "CRM_CLIENT_SECRET"}}


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize(
    "answer",
    [
        response(BOMB, "Content-Encoding: gzip"),
        response(gzip.compress(BOMB), "Content-Encoding: gzip, gzip"),
        response(b"[" * 100_000),
        response(json.dumps({"access_token": "x" * 1_000_000}).encode()),
        response(b'{"access_token": "token-1", "expires_in": "nan"}'),
        response(b'{"access_token": ""}'),
        response(b"{}", status="302 Found"),
    ],
    ids=["bomb", "stacked", "nested", "long", "never expires", "empty", "redirect"],
)
async def test_a_hostile_token_endpoint_sends_nothing_to_the_participant(
    participant: RawServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setenv("CRM_CLIENT_SECRET", "secret-of-the-client")
    participant.answer = [answer]
    crm = connect(participant.url, auth={"oauth2": {**OAUTH2, "token_url": f"{participant.url}/token"}})
    outcome, peak = await peak_of(crm)
    assert (outcome.kind, outcome.retryable) == ("failed", True)
    assert outcome.failure is not None
    assert "the token endpoint" in outcome.failure.message
    assert [sent.split()[1] for sent in participant.requests] == [b"/token"]
    assert peak < 20 * MEGABYTE
