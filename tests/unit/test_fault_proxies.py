"""The proxy of the fault tests breaks the connection that it is told to break."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.helpers.fault_proxy import HOST, fault_proxy


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the first message with the client's port, each other one with itself."""
    await reader.read(100)
    writer.write(str(writer.get_extra_info("peername")[1]).encode())
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


async def test_a_trigger_for_one_connection_is_not_used_up_by_another() -> None:
    async with (
        await asyncio.start_server(_echo, HOST, 0) as server,
        fault_proxy(server.sockets[0].getsockname()[1]) as proxy,
    ):
        (first, to_first), (second, to_second) = [await asyncio.open_connection(HOST, proxy.port) for _ in range(2)]
        to_first.write(b"hello")
        to_second.write(b"hello")
        await first.read(100)
        proxy.arm(b"COMMIT", "cut_before", port=int(await second.read(100)))
        to_first.write(b"COMMIT")
        assert await first.read(100) == b"COMMIT"
        assert proxy.triggered == 0
        to_second.write(b"COMMIT")
        with suppress(ConnectionResetError):
            assert await second.read(100) == b""
        assert proxy.triggered == 1
        to_first.transport.abort()
