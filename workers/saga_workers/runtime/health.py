"""The health endpoint of every long-running process: /livez, /readyz and /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from temporalio.client import Client
from temporalio.service import RPCError

from saga_workers.runtime.http_server import HttpServer, http_app

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""The version of Prometheus' text format."""

ReadinessCheck = Callable[[], Awaitable[str | None]]
"""Why the process cannot work at present, as a message; None if it can."""


def health_server(
    address: str,
    *,
    stop: asyncio.Event,
    ready: ReadinessCheck,
    metrics: Iterable[Collector],
    refresh: Callable[[], Awaitable[None]] | None = None,
) -> HttpServer:
    """The endpoint of a process that ends with ``stop``; ``refresh`` updates the metrics before each scrape."""
    registry = CollectorRegistry()
    for collector in metrics:
        registry.register(collector)

    async def live(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def answer_ready(_: Request) -> Response:
        why = "stopping" if stop.is_set() else await ready()
        return PlainTextResponse("ready\n") if why is None else PlainTextResponse(f"{why}\n", 503)

    async def show_metrics(_: Request) -> Response:
        if refresh is not None:
            await refresh()
        return Response(generate_latest(registry), media_type=PROMETHEUS_TEXT)

    app = http_app([Route("/livez", live), Route("/readyz", answer_ready), Route("/metrics", show_metrics)])
    return HttpServer(address, app, option="--health", description="the health endpoint")


async def temporal_readiness(client: Client) -> str | None:
    """Why Temporal cannot be used at present; None if it can."""
    try:
        await client.service_client.check_health(timeout=timedelta(seconds=2))
    except RPCError as error:
        return f"Temporal does not answer: {error.message}"
    return None
