"""A process made of parts: they run until told to stop, and say how they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from saga_workers.health import Answer, Page

Ready = Callable[[], Awaitable[str | None]]
"""Why the process cannot do its work now, in one sentence; None: it can."""


def health_pages(stop: asyncio.Event, ready: Ready, registry: CollectorRegistry) -> dict[str, Page]:
    """/livez, /readyz and /metrics."""

    async def live() -> Answer:
        return 200, "ok\n"

    async def answer_ready() -> Answer:
        why = "stopping" if stop.is_set() else await ready()
        return (200, "ready\n") if why is None else (503, f"{why}\n")

    async def metrics() -> Answer:
        return 200, generate_latest(registry).decode()

    return {"/livez": live, "/readyz": answer_ready, "/metrics": metrics}


async def run_parts(parts: Mapping[str, Coroutine[Any, Any, None]], stop: asyncio.Event) -> None:
    """Run all parts to their ends. When one fails the others are told to stop, and its error is raised then."""
    tasks = {asyncio.create_task(part, name=name) for name, part in parts.items()}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        stop.set()
        await asyncio.gather(*tasks)
    finally:
        stop.set()
        await asyncio.gather(*tasks, return_exceptions=True)
