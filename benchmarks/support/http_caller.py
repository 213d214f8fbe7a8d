"""A connection of a caller: one request after another, without what a general client costs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any


class HttpCaller:
    """Sends requests to a server on this machine and waits for each answer.

    Not for several tasks at once. The connection is opened by the first request.
    """

    def __init__(self, port: int, headers: str = "") -> None:
        """``headers``: lines that each end with CR LF."""
        self._port = port
        self._headers = headers
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, content: Any, headers: str = "") -> tuple[int, Any]:
        """The status and the decoded content of the answer; None without content."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        body = json.dumps(content).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: bench\r\n{self._headers}{headers}Content-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return await _read_answer(reader)


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    status = int(head.split()[1])
    if "transfer-encoding: chunked" in head:
        content = b"".join([chunk async for chunk in _chunks(reader)])
    else:
        length = head.partition("content-length: ")[2].partition("\r\n")[0]
        content = await reader.readexactly(int(length or 0))
    return status, json.loads(content) if content else None


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
