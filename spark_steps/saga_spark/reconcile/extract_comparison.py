"""Compares the extracts of a reconciliation in a thread, and stops there if the reconciliation is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from saga_spark.job_errors import first_line
from saga_spark.reconcile.comparison_database import open_comparison
from saga_spark.reconcile.findings import Finding
from saga_spark.reconcile.saga_reconciliation import find_mismatches
from saga_spark.reconcile.topic_extract import TopicsRead
from sagas.errors import SagaError
from sagas.settings.reconcile import EffectTable

_INTERRUPT_INTERVAL = 0.1
"""Seconds between two interrupts: one that comes between two statements stops none."""


@dataclass(frozen=True, slots=True)
class ExtractComparison:
    """The extracts in ``folder`` and how they are compared.

    ``topics`` is None if no topic was read. ``since``, ``horizon`` and ``one_saga``: those of
    :class:`~saga_spark.reconcile.comparison_database.ComparisonDatabase`.
    """

    folder: Path
    effects: Sequence[EffectTable]
    topics: TopicsRead | None
    since: float | None
    horizon: float
    one_saga: bool = False

    async def find(
        self, limit: int, on_progress: Callable[[str], None] = lambda what: None
    ) -> tuple[dict[str, int], list[Finding]]:
        """The number of findings of each class, and up to ``limit`` findings of each. ``on_progress`` is called with
        what is compared. Raises SagaError.
        """
        loop = asyncio.get_running_loop()
        connections: list[duckdb.DuckDBPyConnection] = []

        def report(what: str) -> None:
            loop.call_soon_threadsafe(on_progress, what)

        def compare() -> tuple[dict[str, int], list[Finding]]:
            with open_comparison(
                self.folder, self.since, self.horizon, connections.append, one_saga=self.one_saga
            ) as database:
                find_mismatches(database, self.effects, self.topics, report)
                return database.counts(), list(database.findings(limit))

        work = loop.run_in_executor(None, compare)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            while not work.done():
                for connection in connections:
                    connection.interrupt()
                await asyncio.wait([work], timeout=_INTERRUPT_INTERVAL)
            raise
        except duckdb.Error as error:
            raise SagaError(f"the reconciliation failed: {first_line(error)}") from error
