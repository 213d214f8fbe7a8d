"""Leads every client to one database of PostgreSQL, as PgBouncer does with `* = dbname=…`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sqlalchemy import URL


@asynccontextmanager
async def pooler_of_one_database(url: URL) -> AsyncIterator[int]:
    """The port at which each client gets the database of the URL, whatever name it gives."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(url.host, url.port)
        size = int.from_bytes(await reader.readexactly(4), "big")
        start = await reader.readexactly(size - 4)
        words = start[4:].split(b"\0")
        words[words.index(b"database") + 1] = str(url.database).encode()
        changed = start[:4] + b"\0".join(words)
        to_server.write((len(changed) + 4).to_bytes(4, "big") + changed)
        await asyncio.gather(_forward(reader, to_server), _forward(from_server, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
