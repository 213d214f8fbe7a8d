"""What a long-running process tells its surroundings: /livez, /readyz, /metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

from temporalio.client import Client
from temporalio.service import RPCError

from saga_workers.http import HttpServer, Request, Response

Answer = tuple[int, str]
Page = Callable[[], Awaitable[Answer]]
TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""The version is that of Prometheus' text format, which /metrics has; elsewhere nobody minds it."""


class HealthServer(HttpServer):
    """Serves a few plain-text pages. ``pages`` maps a path to what answers it: (status, text)."""

    def __init__(self, address: str, pages: Mapping[str, Page]) -> None:
        super().__init__(address, self._page, option="--health", what="the health endpoint")
        self._pages = pages

    async def _page(self, request: Request) -> Response:
        page = self._pages.get(request.path)
        if page is None:
            return _text(404, f"there is no page {request.path}; there are {', '.join(sorted(self._pages))}\n")
        return _text(*await page())


def _text(status: int, text: str) -> Response:
    return Response(status, text.encode(), TEXT)


async def live() -> Answer:
    """The page /livez: the process answers."""
    return 200, "ok\n"


async def temporal_answers(client: Client) -> Answer:
    """A page /readyz of a process that needs Temporal and nothing else."""
    try:
        await client.service_client.check_health(timeout=timedelta(seconds=2))
    except RPCError as error:
        return 503, f"Temporal does not answer: {error.message}\n"
    return 200, "ready\n"
