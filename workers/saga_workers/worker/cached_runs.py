"""Bounds the memory of the runs that a worker keeps in Temporal's cache, by the size of their inputs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from threading import Lock
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.worker import ExecuteWorkflowInput, WorkflowInboundInterceptor

from saga_workers.temporal.run_interceptor import RunInterceptor


class CachedRuns:
    """The runs in the cache of one worker, oldest first.

    Temporal bounds the number of runs only, and a run with an input of 1 MB can take 40 MB. An evicted run is replayed
    when something happens to it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sizes: dict[str, int] = {}
        self._total = 0
        self._released_since_collection = 0
        self._lock = Lock()  # workflow tasks run in several threads
        self.evict: Callable[[str], None] | None = None
        """Asks the worker to drop a run from its cache, by its run id; None before the worker runs."""

    def add(self, run_id: str, size: int) -> None:
        """Count a run that comes into the cache, and evict others until the inputs fit."""
        with self._lock:
            self._total += size - self._sizes.pop(run_id, 0)  # it may have been counted for a task that failed
            self._sizes[run_id] = size
            evicted = self._beyond_limit(run_id)
            must_collect = self._released_since_collection > self._max_bytes / 4
            if must_collect:
                self._released_since_collection = 0
        if must_collect:
            # A run is in cycles of references; a collection of the oldest generation may be hours away.
            gc.collect()
        if self.evict is not None:
            for other in evicted:
                self.evict(other)

    def discard(self, run_id: str) -> None:
        """Do not count a run any more: it has ended, or is evicted."""
        with self._lock:
            size = self._sizes.pop(run_id, 0)
            self._total -= size
            self._released_since_collection += size

    def _beyond_limit(self, newest: str) -> list[str]:
        """The oldest runs that do not fit; small ones stay, because evicting them would free little."""
        if self._total <= self._max_bytes:
            return []
        average = self._max_bytes / len(self._sizes)
        excess, evicted = self._total - self._max_bytes, []
        for run_id, size in self._sizes.items():
            if excess <= 0:
                break
            if size >= average and run_id != newest:
                evicted.append(run_id)
                excess -= size
        return evicted


class CachedRunsInterceptor(RunInterceptor):
    """Worker interceptor that counts the runs in the worker's cache."""

    def __init__(self, runs: CachedRuns) -> None:
        super().__init__(lambda next: _CountingInbound(next, runs))


class _CountingInbound(WorkflowInboundInterceptor):
    def __init__(self, next: WorkflowInboundInterceptor, runs: CachedRuns) -> None:
        super().__init__(next)
        self._runs = runs

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        run_id = workflow.info().run_id
        self._runs.add(run_id, _size(input))
        try:
            return await super().execute_workflow(input)
        finally:  # the SDK ends the coroutine of an evicted run with an exception
            self._runs.discard(run_id)


def _size(input: ExecuteWorkflowInput) -> int:
    """Bytes of the arguments of a run. A dynamic workflow has a list of them, as they were sent."""
    values = [value for argument in input.args for value in (argument if isinstance(argument, list) else [argument])]
    return sum(len(value.payload.data) for value in values if isinstance(value, RawValue))
