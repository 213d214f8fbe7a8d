"""Helpers that the Prometheus collectors of all processes share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

from prometheus_client import CollectorRegistry, Metric


class Refreshed:
    """Values that are queried on a scrape, unless they are younger than ``max_age`` seconds.

    A scrape that comes while another one queries waits for it: it would find no values otherwise.
    """

    def __init__(self, query: Callable[[], Awaitable[None]], max_age: float) -> None:
        self._query, self._max_age = query, max_age
        self._queried_at: float | None = None
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        async with self._lock:
            if self._queried_at is None or time.monotonic() - self._queried_at >= self._max_age:
                await self._query()
                self._queried_at = time.monotonic()


def without_created(registry: CollectorRegistry) -> Iterator[Metric]:
    """The metrics of a registry without the ``_created`` samples that Prometheus' client adds to every counter."""
    for metric in registry.collect():
        shown = Metric(metric.name, metric.documentation, metric.type, metric.unit)
        shown.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
        yield shown
