"""Bytes after the end of a response are not an answer to another request, whenever they arrive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from saga_activities.http import run_http
from sagas.protocol.outcomes import Outcome
from tests.integration.http.conftest import Connect
from tests.integration.http.raw_server import HOST, response

FORGED = response(b'{"answer": "forged"}', "Content-Type: application/json")
TRUE = response(b'{"answer": "true"}', "Content-Type: application/json")

ANSWERS = {
    "two responses": TRUE + FORGED,
    "a longer body than announced": response(b" " * 10) + FORGED,
    "204 with a body": b"HTTP/1.1 204 No Content\r\n\r\n" + FORGED,
    "chunks, and then more": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + FORGED,
}


class Participant:
    """Answers the first request with ``first``, and later, while the connection is idle, with ``later``."""

    def __init__(self, first: bytes, later: bytes = b"") -> None:
        self.first, self.later = first, later
        self.requests = 0
        self.connections = 0
        self.sent_later = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
                )
                await reader.readexactly(length)
                self.requests += 1
                writer.write(self.first if self.requests == 1 else TRUE)
                await writer.drain()
                if self.requests == 1:
                    await asyncio.sleep(0.05)
                    with contextlib.suppress(ConnectionError):
                        writer.write(self.later)
                        await writer.drain()
                    self.sent_later.set()
        writer.close()


@contextlib.asynccontextmanager
async def serving(participant: Participant) -> AsyncIterator[str]:
    listening = await asyncio.start_server(participant.serve, HOST, 0)
    async with listening:
        yield f"http://{HOST}:{listening.sockets[0].getsockname()[1]}"


async def two_sagas(connect: Connect, participant: Participant, *, method: str = "POST") -> Outcome:
    """The outcome of the second saga's call."""
    async with serving(participant) as url:
        crm = connect(url)
        arguments = {"path": "/charges", "method": method}
        for key in ("checkout-1/charge", "checkout-2/charge"):
            outcome = await run_http(arguments, key=key, connection=crm, timeout=5.0)
            await participant.sent_later.wait()
        await crm.aclose()
    return outcome


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("first", ANSWERS.values(), ids=ANSWERS)
async def test_bytes_behind_a_response_answer_no_other_request(connect: Connect, first: bytes, method: str) -> None:
    participant = Participant(first)
    outcome = await two_sagas(connect, participant, method=method)
    assert participant.requests == 2
    assert outcome.result == {"answer": "true"}


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_response_that_comes_later_answers_no_other_request(connect: Connect, method: str) -> None:
    participant = Participant(TRUE, later=FORGED)
    outcome = await two_sagas(connect, participant, method=method)
    assert participant.requests == 2
    assert participant.connections == 2
    assert outcome.result == {"answer": "true"}
