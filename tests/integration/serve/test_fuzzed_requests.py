"""Random bytes as requests for `saga serve`: each gets an HTTP response or a closed connection; nothing is logged."""

from __future__ import annotations

import asyncio
import logging
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga_workers.runtime import http_server
from saga_workers.runtime.http_server import HttpServer, http_app, json_response
from tests.helpers.failure_records import FailureRecords
from tests.helpers.sampling import examples

HOST = "127.0.0.1"
ANSWER = re.compile(rb"HTTP/1\.1 (200|400|404|405|431|503) ")

LINES = st.one_of(
    st.builds(
        lambda method, path, version: b"%s %s %s" % (method, path, version),
        st.sampled_from([b"GET", b"GET", b"HEAD", b"POST", b"CONNECT", b"get", b"PRI", b""]),
        st.one_of(
            st.sampled_from(
                [b"/sagas/a", b"/sagas/%2F", b"/sagas/%zz", b"//x", b"*", b"http://h/sagas/a", b"/..", b""]
            ),
            st.binary(max_size=20),
        ),
        st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2", b"HTTP/1.10", b""]),
    ),
    st.binary(max_size=30),
)
HEADERS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *(b"Host: a", b"Host: a", b"Host: b", b"Connection: close", b"Connection: upgrade", b"Upgrade: h2c"),
                *(b"Content-Length: 0", b"Content-Length: 5", b"Content-Length: 5, 6", b"Content-Length: -1"),
                *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Expect: 100-continue"),
                *(b"Authorization: Bearer \xff", b"Authorization:", b" folded", b"X: " + b"y" * 20_000),
            ]
        ),
        st.binary(max_size=20),
    ),
    max_size=5,
)


IDS = st.sampled_from([b"a", b"%2F", b"%zz", b"%ff%00", b"..", b"%2e%2e", b"a/notifications", b"a?x=%00", b"\xc3\xa9"])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One or more requests, mostly with few parts wrong, perhaps with a body, or cut off somewhere."""

    def rarely() -> bool:
        return draw(st.integers(0, 5)) == 0

    sent = b""
    for _ in range(draw(st.integers(1, 3))):
        head = [draw(LINES) if rarely() else b"GET /sagas/%s HTTP/1.1" % draw(IDS)]
        head += [] if rarely() else [b"Host: a"]
        head += draw(HEADERS) if draw(st.booleans()) else []
        sent += (b"\n" if rarely() else b"\r\n").join([*head, b"", b""])
        sent += draw(st.sampled_from([b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n", b"\x00"])) if rarely() else b""
    return sent[: draw(st.integers(0, len(sent)))] if rarely() else sent


async def show(request: Request) -> Response:
    return json_response(200, {"id": request.path_params["id"]})


async def ask(server: HttpServer, sent: bytes) -> bytes:
    """Everything the server answers until it closes the connection."""
    reader, writer = await asyncio.open_connection(HOST, server.port)
    try:
        writer.write(sent)
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_random_requests_are_answered_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT", 0.05)  # the idle time after which a connection is closed
    records, app = FailureRecords(), http_app([Route("/sagas/{id}", show)])
    logging.getLogger().addHandler(records)
    server = HttpServer(f"{HOST}:0", app, option="--listen", description="the endpoint")
    with asyncio.Runner() as runner:
        runner.run(server.__aenter__())

        @examples(60, 5_000)
        @given(sent=requests())
        @example(
            sent=b"GET /sagas/a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        )
        @example(sent=b"GET /sagas/%ff%00 HTTP/1.1\r\nHost: a\r\n\r\n" * 50)
        def check_answer(sent: bytes) -> None:
            started = time.monotonic()
            answer = runner.run(ask(server, sent))
            assert time.monotonic() - started < 15
            assert not answer or ANSWER.match(answer), answer[:200]
            assert b"Traceback" not in answer
            assert records.bad == []

        try:
            check_answer()
            healthy = runner.run(ask(server, b"GET /sagas/a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
            assert healthy.startswith(b"HTTP/1.1 200 ")
        finally:
            logging.getLogger().removeHandler(records)
            runner.run(server.__aexit__(None, None, None))
