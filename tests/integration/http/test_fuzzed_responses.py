"""Random responses from a socket: every attempt ends in time with an outcome that the response justifies."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
import time
import zlib
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from saga_activities.http import HttpConnection, HttpSettings, run_http
from sagas.protocol.outcomes import Outcome
from sagas.text.exact_json import decode_json, encode_json
from tests.helpers.failure_records import FailureRecords
from tests.helpers.sampling import examples
from tests.integration.http.raw_server import RawServer, raw_server

TIMEOUT = 1.0

STATUS_LINES = st.one_of(
    st.builds(
        lambda version, status, reason: b"HTTP/%s %d %s" % (version, status, reason),
        st.sampled_from([b"1.1", b"1.1", b"1.0", b"2", b"9.9", b""]),
        st.one_of(st.sampled_from([200, 201, 204, 302, 304, 409, 422, 429, 503]), st.integers(0, 1000)),
        st.binary(max_size=10),
    ),
    st.binary(max_size=30),
)
NAMES = st.sampled_from(
    [
        *(b"Content-Length", b"Content-Encoding", b"Content-Type", b"Transfer-Encoding", b"Retry-After", b"Location"),
        *(b"Connection", b"Set-Cookie", b"X-Other", b"content-length", b"Upgrade", b"Trailer"),
    ]
)
VALUES = st.one_of(
    st.sampled_from(
        [
            *(
                b"0",
                b"5",
                b"-1",
                b"9" * 30,
                b"5, 5",
                b"gzip",
                b"gzip, gzip",
                b"deflate",
                b"br",
                b"identity",
                b"chunked",
            ),
            *(b"chunked, chunked", b"close", b"keep-alive", b"application/json", b"text/html; charset=idna"),
            *(b'text/plain; charset="\\"', b"/x", b"http://[::1", b"Sat, 21 Nov 2026 12:00:30 +9999999999"),
            *(b"Sat, 99 Nov 99999999999 12:00:30 GMT", b"1e9", b"\xd9\xa3"),
        ]
    ),
    st.binary(max_size=20),
)
HEADERS = st.lists(st.builds(lambda name, value: name + b": " + value, NAMES, VALUES), max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())
PLAIN = st.one_of(
    JSON, st.binary(max_size=200), st.just(b"[" * 5_000), st.just(b'{"a": 1e9999}'), st.just(b'"\\ud800"')
)
BODIES = st.one_of(
    PLAIN,
    PLAIN.map(gzip.compress),
    PLAIN.map(zlib.compress),
    PLAIN.map(lambda body: gzip.compress(gzip.compress(body))),
    PLAIN.map(lambda body: b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)),
    st.just(gzip.compress(bytes(10_000_000))),
)


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """A response, mostly with few of its parts wrong, perhaps after interim ones, cut off, or followed by more."""

    def rarely() -> bool:
        return draw(st.integers(0, 5)) == 0

    status = draw(st.sampled_from([200, 201, 302, 409, 422, 429, 503]))
    head = [draw(STATUS_LINES) if rarely() else b"HTTP/1.1 %d Yes" % status]
    head += draw(HEADERS) if draw(st.booleans()) else []
    body = draw(BODIES)
    if not rarely():
        head.append(b"Content-Length: %d" % len(body))
    if draw(st.booleans()) or body[:2] == b"\x1f\x8b":
        head.append(b"Content-Encoding: gzip")
    sent = (
        draw(st.sampled_from([b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 \r\nA: b\r\n\r\n"])) if rarely() else b""
    )
    sent += (draw(st.sampled_from([b"\n", b"\r"])) if rarely() else b"\r\n").join([*head, b"", body])
    if rarely():
        sent = sent[: draw(st.integers(0, len(sent)))]
    return sent + (draw(st.binary(max_size=5)) if rarely() else b"")


def justified(outcome: Outcome, sent: bytes) -> bool:
    statuses = {int(status) for status in re.findall(rb"HTTP/\d\.\d (\d{3})", sent)}
    match outcome.kind:
        case "done":
            return any(200 <= status < 300 for status in statuses)
        case "rejected":
            return bool(statuses & {409, 422})
        case "failed":
            return 429 in statuses
    return outcome.kind == "unknown"


def check(responses: st.SearchStrategy[bytes], corpus: tuple[bytes, ...]) -> None:
    """Make one attempt for each response, on one server and one connection, as a worker does."""
    records, served, stack = FailureRecords(), RawServer(), raw_server()
    logging.getLogger().addHandler(records)
    with asyncio.Runner() as runner:
        served = runner.run(stack.__aenter__())
        crm = HttpConnection(HttpSettings("crm", served.url))

        async def attempt(op: Any) -> Outcome:
            arguments = {"method": "POST", "path": "/charges", "json": {}} if op == "do" else {"path": "/charges"}
            return await run_http(arguments, key="s-1/a", connection=crm, timeout=TIMEOUT, op=op)

        @examples(40, 20_000)
        @given(sent=responses, op=st.sampled_from(["do", "probe"]))
        def check_response(sent: bytes, op: str) -> None:
            served.answer = [sent]
            started = time.monotonic()
            outcome = runner.run(attempt(op))
            assert time.monotonic() - started < TIMEOUT + 5
            assert outcome.kind in ("done", "unknown") if op == "probe" else justified(outcome, sent)
            assert decode_json(encode_json(outcome.result)) == outcome.result
            assert records.bad == []

        for sent in corpus:
            check_response = example(sent=sent, op="do")(check_response)
        try:
            check_response()
        finally:
            logging.getLogger().removeHandler(records)
            runner.run(crm.aclose())
            runner.run(stack.__aexit__(None, None, None))


CORPUS = (
    b"",
    b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    b"HTTP/1.1 503 \xff\r\nRetry-After: Sat, 21 Nov 2026 12:00:30 +9999999999\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 503 Busy\r\nRetry-After: " + b"9" * 5000 + b"\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 409 Conflict\r\nContent-Type: text/plain; charset=idna\r\nContent-Length: 2\r\n\r\n\xff\xff",
    b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n" + b'"\\ud800"',
    b"\x15\x03\x01\x00\x02\x02F",
)


def test_an_outcome_is_what_the_response_justifies() -> None:
    check(responses(), CORPUS)
