"""Responses that say little and cost much to read: they end early, and the event loop does other work meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from saga_activities.http import run_http
from saga_activities.http.bounded_stream import ResponseCost
from sagas.protocol.outcomes import Outcome
from tests.integration.http.conftest import Connect
from tests.integration.http.raw_server import RawServer, raw_server

CHARGE = {"path": "/charges", "method": "POST", "json": {"account": "h-1"}}
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
LONG = 60.0
"""Seconds that nothing here takes: an attempt that ends earlier was not ended by its timeout."""


@pytest.fixture
async def participant() -> AsyncIterator[RawServer]:
    async with raw_server() as server:
        yield server


def chunks(size: int, count: int) -> bytes:
    return (b"%x\r\n%s\r\n" % (size, b"x" * size)) * count


async def call(connect: Connect, participant: RawServer, **options: object) -> Outcome:
    connection = connect(participant.url, **options)
    return await run_http(CHARGE, key="checkout-1/charge", connection=connection, timeout=LONG)


SMALL_PARTS = "a body that cannot be read: it arrives in too many small parts; send chunks of 256 bytes or more"
FRAMING = "a body that cannot be read: most of its bytes are chunk headers or trailers"
HEADS = "its head, with the interim responses before it, is too large"


@pytest.mark.parametrize(
    ("answer", "forever", "why"),
    [
        (CHUNKED, chunks(1, 1_000), SMALL_PARTS),
        (CHUNKED, chunks(64, 100), SMALL_PARTS),
        (CHUNKED, (b"1;" + b"x" * 8_000 + b"\r\nx\r\n"), FRAMING),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, HEADS),
        (b"", b"HTTP/1.1 103 Early Hints\r\n" + b"Link: </x>\r\n" * 500 + b"\r\n", HEADS),
    ],
    ids=["chunks of one byte", "small chunks", "chunk extensions", "100 Continue", "103 with headers"],
)
async def test_a_response_that_costs_too_much_is_unknown_at_once(
    participant: RawServer, connect: Connect, answer: bytes, forever: bytes, why: str
) -> None:
    participant.answer, participant.forever = [answer], forever
    outcome = await call(connect, participant)
    assert (outcome.kind, outcome.retryable) == ("unknown", True)
    assert outcome.failure is not None
    assert outcome.failure.message.endswith(why)


@pytest.mark.parametrize(("size", "count"), [(10, 4_000), (256, 7_000)])
async def test_a_body_in_many_chunks_is_read(participant: RawServer, connect: Connect, size: int, count: int) -> None:
    participant.answer = [b"HTTP/1.1 100 Continue\r\n\r\n" * 10, CHUNKED, chunks(size, count), b"0\r\n\r\n"]
    outcome = await call(connect, participant)
    assert (outcome.kind, outcome.result) == ("done", "x" * size * count)


async def test_a_token_endpoint_that_costs_too_much_is_not_awaited(
    participant: RawServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM_CLIENT_SECRET", "secret-of-the-client")
    participant.answer, participant.forever = [CHUNKED], chunks(1, 1_000)
    oauth2 = {"client_id": "saga", "client_secret": {"env": "CRM_CLIENT_SECRET"}}
    outcome = await call(connect, participant, auth={"oauth2": {**oauth2, "token_url": f"{participant.url}/token"}})
    assert (outcome.kind, outcome.retryable) == ("failed", True)
    assert outcome.failure is not None
    assert "the token endpoint did not respond (UnreadableBodyError)" in outcome.failure.message


async def test_other_work_is_done_between_the_parts_of_a_body() -> None:
    cost, turns = ResponseCost(None), 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count_turns())
    try:
        for _ in range(2_560):
            await cost.add_part(1)
    finally:
        other.cancel()
    assert turns >= 10
