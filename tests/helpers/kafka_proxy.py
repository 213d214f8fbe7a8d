"""A TCP proxy between Kafka's clients and their broker that knows the protocol's frames.

It sees what each request is (its API, whose transaction it is of), so that a test can hold back one commit, deliver it
late, or lose the response to it, without affecting other clients of the broker. Without TLS only.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from tests.helpers.database_servers import HOST

PRODUCE, INIT_PRODUCER_ID, END_TXN = 0, 22, 26
_FLEXIBLE: dict[int, int] = {PRODUCE: 9, INIT_PRODUCER_ID: 2, END_TXN: 3}
"""The version from which on an API writes its texts with lengths of one byte or more. Only these APIs are read."""

_LAST_ANSWER = 30.0
"""Seconds a broker has to answer a request of a disconnected client."""

Act = Literal["hold", "set_aside", "swallow"]
"""``hold``: the request, and what its connection sends after it, wait in the proxy until ``deliver``. ``set_aside``: it
alone does, as if its partition were another broker's. ``swallow``: it reaches the broker, and the client never gets
the response."""


@dataclass(frozen=True)
class Request:
    """One request to a broker. ``transaction``: the transactional id it is of, if it is of one."""

    api: int
    version: int
    correlation: int
    client: str
    transaction: str | None
    body: bytes = field(repr=False)


@dataclass(eq=False)
class Caught:
    """A request that a rule has caught."""

    request: Request
    _client: asyncio.StreamWriter
    _go: asyncio.Event = field(default_factory=asyncio.Event)
    _answered: asyncio.Event = field(default_factory=asyncio.Event)
    _answer: bytes = b""

    def deliver(self) -> None:
        """Let a held request go on to the broker, whether or not its client still waits for it."""
        self._go.set()

    def disconnect(self) -> None:
        """Break the client's end of the connection; what it has sent may still arrive."""
        self._client.transport.abort()

    async def pass_on(self, broker: asyncio.StreamWriter, frame: bytes) -> None:
        """Send it when it is to be delivered."""
        await self._go.wait()
        with suppress(ConnectionError):
            await _write(broker, frame)

    async def answered(self) -> int:
        """Wait for the broker's answer to an EndTxn; returns its error code (0: success)."""
        assert self.request.api == END_TXN
        await self._answered.wait()
        # After the correlation: since the flexible versions an empty list of tags, then the time to wait, the code.
        at = 4 + (self.request.version >= _FLEXIBLE[END_TXN]) + 4
        return struct.unpack_from(">h", self._answer, at)[0]


@dataclass(eq=False)
class Rule:
    """Catches the next ``times`` requests of an API whose transactional id begins so and whose body holds a text."""

    api: int
    transaction: str
    act: Act
    holding: bytes = b""
    times: int = 1
    caught: list[Caught] = field(default_factory=list)

    def fits(self, request: Request) -> bool:
        whose = request.transaction is not None and request.transaction.startswith(self.transaction)
        return self.times > 0 and request.api == self.api and whose and self.holding in request.body


@dataclass(eq=False)
class _Wire:
    """One connection of a client, and the proxy's own to the broker."""

    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    name: str = ""
    watched: dict[int, Caught] = field(default_factory=dict)

    def close(self) -> None:
        for writer in (self.client, self.broker):
            writer.transport.abort()


class KafkaProxy:
    """``port`` is the port the broker must advertise; ``target`` is the broker's own."""

    def __init__(self) -> None:
        self.port = self.target = 0
        self._refused: set[str] = set()
        self._rules: list[Rule] = []
        self._wires: set[_Wire] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, client: str) -> None:
        """Break the connections of clients with this client id, and refuse new ones until ``restore``."""
        self._refused.add(client)
        for wire in [wire for wire in self._wires if wire.name == client]:
            wire.close()

    def restore(self, client: str) -> None:
        self._refused.discard(client)

    def catch(self, api: int, transaction: str, act: Act, *, holding: bytes = b"") -> Rule:
        """From now on catch a request; ``transaction`` is how its transactional id begins."""
        rule = Rule(api, transaction, act, holding)
        self._rules.append(rule)
        return rule

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            answers, broker = await asyncio.open_connection(HOST, self.target)
        except OSError:
            writer.transport.abort()
            return
        wire = _Wire(writer, broker)
        self._wires.add(wire)
        try:
            await asyncio.gather(self._to_broker(reader, wire), self._to_client(answers, wire))
        except asyncio.CancelledError:
            return  # the proxy stops; the stream server would report a cancelled handler as an error
        finally:
            self._wires.discard(wire)
            wire.close()

    async def _to_broker(self, reader: asyncio.StreamReader, wire: _Wire) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(reader)
                request = parse(frame)
                wire.name = request.client
                if request.client in self._refused:
                    break
                rule = next((rule for rule in self._rules if rule.fits(request)), None)
                if rule is not None:
                    await self._catch(rule, request, frame, wire)
                else:
                    await _write(wire.broker, frame)
        with suppress(TimeoutError):
            # Requests of a disconnected client are still delivered.
            async with asyncio.timeout(_LAST_ANSWER):
                await asyncio.gather(*(request._answered.wait() for request in wire.watched.values()))
        wire.close()

    async def _catch(self, rule: Rule, request: Request, frame: bytes, wire: _Wire) -> None:
        rule.times -= 1
        caught = Caught(request, wire.client)
        wire.watched[request.correlation] = caught
        rule.caught.append(caught)
        if rule.act == "set_aside":
            task = asyncio.create_task(caught.pass_on(wire.broker, frame))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif rule.act == "hold":
            await caught.pass_on(wire.broker, frame)
        else:
            await _write(wire.broker, frame)

    async def _to_client(self, reader: asyncio.StreamReader, wire: _Wire) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(reader)
                caught = wire.watched.pop(struct.unpack_from(">i", frame)[0], None)
                if caught is not None:
                    caught._answer = frame
                    caught._answered.set()
                    if not caught._go.is_set():
                        continue  # swallowed
                if not wire.client.is_closing():
                    with suppress(ConnectionError):
                        await _write(wire.client, frame)
        wire.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


async def _write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(struct.pack(">i", len(frame)) + frame)
    await writer.drain()


def parse(frame: bytes) -> Request:
    """Read the header of a request, and of those of a producer whose transaction they are of."""
    api, version, correlation, length = struct.unpack_from(">hhih", frame)
    at = 10 + max(length, 0)
    client, body = frame[10:at].decode(), frame[at:]
    transaction = None
    if api in _FLEXIBLE and version >= _FLEXIBLE[api]:
        # The header ends with a list of tags, which no client uses; a text's length is one more than it is, 0: none.
        size, start = _varint(body, 1)
        transaction = body[start : start + size - 1].decode() if size else None
    elif api in _FLEXIBLE:
        (size,) = struct.unpack_from(">h", body)
        transaction = body[2 : 2 + size].decode() if size >= 0 else None
    return Request(api, version, correlation, client, transaction, body)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of variable length, and where it ends."""
    value = 0
    for shift, byte in _septets(data, at):
        value |= (byte & 0x7F) << shift
        at += 1
    return value, at


def _septets(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    for index in range(5):
        yield 7 * index, data[at + index]
        if data[at + index] < 0x80:
            return
