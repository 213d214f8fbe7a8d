"""A TCP proxy between a client and its server that breaks on demand, at a named message if need be.

Works for any protocol in the clear. A trigger looks for bytes in what the client sends (``COMMIT``): that is where a
database's response has to get lost to make the outcome unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

HOST = "127.0.0.1"

POSTGRESQL_COMMIT = (b"COMMIT\0", b"COMMIT; RESET SESSION")
"""The messages with which a guard's transaction on PostgreSQL commits: alone, or with what cleans its session."""

OnTrigger = Literal["cut_before", "cut_after", "swallow_answer", "hold"]
"""``cut_before``: the message never reaches the server. ``cut_after``: it does, and the connection breaks before the
answer. ``swallow_answer``: it does, and the client waits for an answer that never comes. ``hold``: it waits in the
proxy until ``release``."""


@dataclass(eq=False)
class _Pair:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    answers_swallowed: bool = False
    is_forgotten: bool = False
    greeting: bytes = b""

    @property
    def server_side_port(self) -> int:
        """The client's port as the server sees it."""
        return self.server.get_extra_info("sockname")[1]

    def close(self) -> None:
        for writer in (self.client, self.server):
            writer.transport.abort()


@dataclass
class FaultProxy:
    """``port`` is where clients connect. The switches may be thrown at any time."""

    target_port: int
    port: int = 0
    refuse: bool = False
    blackhole_to_server: bool = False
    blackhole_to_client: bool = False
    trigger: Sequence[bytes] = ()
    on_trigger: OnTrigger = "cut_after"
    triggers_left: int = 0
    armed_port: int | None = None
    triggered: int = 0
    _released: asyncio.Event = field(default_factory=asyncio.Event)
    _pairs: set[_Pair] = field(default_factory=set)
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break every connection now, as a pulled cable with a reset would."""
        for pair in list(self._pairs):
            pair.close()

    def forget(self, client: bytes = b"") -> None:
        """Lose everything that is sent on the present connections from now on, as a firewall does after a while.

        ``client``: only those on which the first message holds these bytes.
        """
        for pair in self._pairs:
            pair.is_forgotten = client in pair.greeting

    def arm(
        self, trigger: bytes | Sequence[bytes], on_trigger: OnTrigger, times: int = 1, port: int | None = None
    ) -> None:
        """Break at the next ``times`` messages of a client that hold ``trigger``, or one of several.

        ``port``: only on the connection that the server knows by this port of its client. A worker has sessions for
        its own statements too, and these also commit.
        """
        self.trigger = [trigger] if isinstance(trigger, bytes) else trigger
        self.on_trigger, self.triggers_left, self.armed_port = on_trigger, times, port
        self._released.clear()

    def release(self) -> None:
        """Let the messages that are held go on to the server."""
        self._released.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        if self.refuse:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(HOST, self.target_port)
        except OSError:
            writer.transport.abort()
            return
        pair = _Pair(writer, server_writer)
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._to_server(reader, pair), self._to_client(server_reader, pair))
        except asyncio.CancelledError:
            return  # the proxy stops; the stream server would report a cancelled handler as an error
        finally:
            self._pairs.discard(pair)
            pair.close()

    async def _to_server(self, reader: asyncio.StreamReader, pair: _Pair) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                pair.greeting = pair.greeting or data
                if self.blackhole_to_server or pair.is_forgotten:
                    continue
                if self._is_trigger(pair, data):
                    self.triggers_left -= 1
                    self.triggered += 1
                    if self.on_trigger == "cut_before":
                        break
                    if self.on_trigger == "hold":
                        await self._released.wait()
                    else:
                        pair.answers_swallowed = True
                pair.server.write(data)
                await pair.server.drain()
        if not pair.answers_swallowed:
            pair.close()

    def _is_trigger(self, pair: _Pair, data: bytes) -> bool:
        if not self.triggers_left or self.armed_port not in (None, pair.server_side_port):
            return False
        return any(trigger in data for trigger in self.trigger)

    async def _to_client(self, reader: asyncio.StreamReader, pair: _Pair) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if pair.answers_swallowed:
                    if self.on_trigger == "cut_after":
                        break  # the server has answered, so it has done its work
                    continue
                if self.blackhole_to_client or pair.is_forgotten:
                    continue
                pair.client.write(data)
                await pair.client.drain()
        pair.close()


@asynccontextmanager
async def fault_proxy(target_port: int) -> AsyncIterator[FaultProxy]:
    """A proxy before ``target_port``, until the block ends."""
    proxy = FaultProxy(target_port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
