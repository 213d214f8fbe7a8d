"""Starts one saga per row, with limits on the rate, on the sagas that run at once, and on the number of failures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.control.start import AlreadyEnded, SagaStarter, StartRequest
from saga_workers.temporal.temporal_runs import RunInfo, describe_run, visible_state
from saga_workers.views.saga_view import closed_state, read_view, with_blocking_checked
from sagas.errors import SagaError

_POLL_INTERVAL = 2.0
"""Seconds between two polls of a saga that has not ended; one that is parked frees its slot."""


@dataclass(frozen=True, slots=True)
class StartRow:
    """One saga to start. ``location`` names the row for messages."""

    location: str
    id: str
    request: StartRequest


@dataclass(frozen=True, slots=True)
class StartLimits:
    """``rate``: starts per second (None: unlimited). ``concurrency``: how many sagas run at once.

    ``tolerated``: how many rows may fail (refused, or ended other than COMPLETED or PARKED) before starting stops.
    """

    rate: float | None = None
    concurrency: int = 50
    tolerated: int | None = None


@dataclass(slots=True)
class Tally:
    """Counts of rows, updated as the sagas start and end.

    ``ended`` counts by state, whoever started the saga and when: a second run over the same file gives the same counts.
    """

    total: int
    started: int = 0
    there: int = 0
    refused: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    stopped: str | None = None

    @property
    def processed(self) -> int:
        return self.started + self.there + self.refused

    @property
    def running(self) -> int:
        """Sagas that were started or found and whose end is not counted yet."""
        return self.started + self.there - sum(self.ended.values())

    @property
    def not_started(self) -> int:
        return self.total - self.processed

    def count_ended(self, state: str) -> None:
        self.ended[state] = self.ended.get(state, 0) + 1

    @property
    def failures(self) -> int:
        return self.refused + sum(count for state, count in self.ended.items() if state not in ("COMPLETED", "PARKED"))


async def start_all(
    temporal: Temporal,
    starter: SagaStarter,
    rows: Sequence[StartRow],
    tally: Tally,
    limits: StartLimits,
    *,
    wait_for_end: bool,
    again: bool = False,
    labels: Mapping[str, str] | None = None,
    stop: asyncio.Event,
    progress: Callable[[Tally], None],
) -> None:
    """Start the sagas in the order of the rows, counted in ``tally``; with ``wait_for_end`` also wait until they end.

    A saga that exists already is not started again; its end counts like the others. ``stop`` ends the starting and the
    waiting; running sagas go on, and a start under way is counted. A row that cannot be started counts as refused, and
    the others go on. Raises RPCError if the server cannot be reached.
    """
    waiting: set[asyncio.Task[None]] = set()
    places = asyncio.Semaphore(limits.concurrency)
    began = time.monotonic()

    async def one(order: StartRow) -> None:
        try:
            try:
                started = await starter.start(order.request, id=order.id, again=again, labels=labels)
            except AlreadyEnded as error:
                tally.there += 1
                tally.count_ended(error.state)
                return
            except (SagaError, RPCError) as error:
                if isinstance(error, RPCError) and error.status is RPCStatusCode.UNAVAILABLE:
                    raise  # no other row could be started either
                tally.refused += 1
                tally.troubles.append(f"{order.location}: {error.message}")
                return
            if started.started:
                tally.started += 1
            else:
                tally.there += 1
            progress(tally)
            if started.completed:
                tally.count_ended("COMPLETED")
            elif wait_for_end and not stop.is_set():
                task = asyncio.current_task()
                assert task is not None
                waiting.add(task)
                tally.count_ended(await _final_state(temporal, order.id))
        finally:
            places.release()
            progress(tally)

    stopping = asyncio.create_task(stop.wait())
    try:
        async with asyncio.TaskGroup() as group:
            tasks = []
            for number, order in enumerate(rows):
                if limits.rate is not None:
                    due = began + number / limits.rate
                    await asyncio.wait({stopping}, timeout=max(0.0, due - time.monotonic()))
                await _wait_for_either(stopping, places.acquire())
                if not stop.is_set() and limits.tolerated is not None and tally.failures > limits.tolerated:
                    tally.stopped = "failures"
                    break
                if stop.is_set():
                    break
                tasks.append(group.create_task(one(order)))
            if not stop.is_set() and tasks:
                await asyncio.wait({asyncio.gather(*tasks), stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                tally.stopped = "asked"
                for task in waiting:
                    task.cancel()
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None  # the others have the same cause
    finally:
        stopping.cancel()


async def _wait_for_either(stopping: asyncio.Task[Any], other: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of the two is done; ``other`` is cancelled if it is not needed any more."""
    waiting = asyncio.ensure_future(other)
    await asyncio.wait({stopping, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()


async def _final_state(temporal: Temporal, saga_id: str) -> str:
    """The state in which a saga ended, or PARKED."""
    closed = asyncio.ensure_future(_wait_until_closed(temporal, saga_id))
    try:
        while True:
            await asyncio.wait({closed}, timeout=_POLL_INTERVAL)
            had_closed = closed.done()  # it may close while it is described
            described = await describe_run(temporal, saga_id)
            if described is None:
                return "TERMINATED"
            state = visible_state(described.run)
            if not described.run.running:
                return await closed_state(described.run)
            if state == "PARKED" or await _is_blocked(temporal, described.run):
                return "PARKED"
            if had_closed:
                closed.result()
                return state  # it has been started again
    finally:
        closed.cancel()


async def _is_blocked(temporal: Temporal, run: RunInfo) -> bool:
    """Whether a parked nested saga blocks it. Only a saga that has been blocked has the search attribute."""
    if "SagaStep" not in run.attributes:
        return False
    return (await with_blocking_checked(temporal, await read_view(temporal, run.id))).waits_for_a_person


async def _wait_until_closed(temporal: Temporal, saga_id: str) -> None:
    try:
        await temporal.get_workflow_handle(saga_id).result()
    except WorkflowFailureError:
        return  # the caller reads the state
