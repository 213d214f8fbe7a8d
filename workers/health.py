"""The small HTTP endpoint of a long-running process: /livez, /readyz, /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sagas.errors import UsageError

Answer = tuple[int, str]
Page = Callable[[], Awaitable[Answer]]
TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""The version is that of Prometheus' text format, which /metrics has; elsewhere nobody minds it."""

REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class HealthServer:
    """Serves a few plain-text pages. ``pages`` maps a path to what answers it: (status, text)."""

    def __init__(self, address: str, pages: dict[str, Page]) -> None:
        host, _, port = address.rpartition(":")
        if not port.isdigit():
            raise UsageError(f"--health takes HOST:PORT, not {address!r}", help="for example --health 127.0.0.1:8080")
        self._host, self._port = host or "127.0.0.1", int(port)
        self._pages = pages
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> HealthServer:
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port)
        except OSError as error:
            raise UsageError(
                f"the health endpoint cannot listen on {self._host}:{self._port}: {error.strerror or error}",
                help="choose another port with --health HOST:PORT",
            ) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), timeout=5)
            method, path, *_ = request.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            status, text = await self._page(method, path.split("?", 1)[0])
            body = text.encode()
            head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {TEXT}\r\n"
            head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + (b"" if method == "HEAD" else body))
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
            # Whoever asked went away or does not speak HTTP; nobody waits for an answer.
            return
        finally:
            writer.close()

    async def _page(self, method: str, path: str) -> Answer:
        if method not in ("GET", "HEAD"):
            return 405, "only GET and HEAD\n"
        page = self._pages.get(path)
        if page is None:
            return 404, f"there is no page {path}; there are {', '.join(sorted(self._pages))}\n"
        return await page()
