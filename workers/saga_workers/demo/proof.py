"""`saga reconcile` as the demo calls it: one warm Spark session for all looks, and only what this demo has done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from saga_spark.reconcile.extract import Scope
from saga_spark.runner.client import Runner
from saga_spark.settings import spark_settings
from saga_workers.client import Client
from saga_workers.reconcile_run import reconcile, start
from sagas.settings import Settings

Look = Callable[[], Awaitable[Mapping[str, Any]]]


@asynccontextmanager
async def reconciling(client: Client, settings: Settings, since: float) -> AsyncIterator[Look]:
    """Gives a function that reconciles what has happened since then (seconds since the epoch). Spark starts meanwhile.

    An earlier demo's effects are gone, because the shop opens anew; its sagas would all miss them.
    """
    runner = Runner(spark_settings(settings))
    starting = start(runner)
    try:
        yield lambda: reconcile(client.temporal, settings, Scope(since), runner)
    finally:
        starting.cancel()
        await runner.close()
