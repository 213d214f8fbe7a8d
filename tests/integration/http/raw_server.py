"""A socket server that answers every request with given bytes, whatever they are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

HOST = "127.0.0.1"


class RawServer:
    """``requests`` holds the heads and bodies it has received. ``forever``: bytes sent again and again after those."""

    def __init__(self) -> None:
        self.answer: Iterable[bytes] = ()
        self.forever: bytes = b""
        self.pause = 0.0
        self.requests: list[bytes] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            for part in self.answer:
                writer.write(part)
                await writer.drain()
            while self.forever:
                writer.write(self.forever)
                await writer.drain()
                await asyncio.sleep(self.pause)
        writer.close()


@contextlib.asynccontextmanager
async def raw_server() -> AsyncIterator[RawServer]:
    served = RawServer()
    listening = await asyncio.start_server(served.serve, HOST, 0)
    served.url = f"http://{HOST}:{listening.sockets[0].getsockname()[1]}"
    async with listening:
        yield served


def response(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """A complete response with this body, as it is sent."""
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode("latin-1") + body
