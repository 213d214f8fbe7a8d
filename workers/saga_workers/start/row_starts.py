"""Starts the rows of a batch in order, within limits on the rate, on sagas that run at once, and on failures."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from saga_activities.concurrency import wait_first
from saga_workers.location.locator import Locator
from saga_workers.location.verified_outcomes import state_of
from saga_workers.start.saga_starter import SagaStarter
from saga_workers.start.start_gate import StartGate
from saga_workers.start.start_limits import RateLimit, StartLimits
from saga_workers.start.start_requests import StartRequest
from saga_workers.start.tally import Tally
from saga_workers.temporal.run_results import wait_for_result
from saga_workers.temporal.temporal_runs import RunInfo
from saga_workers.views.saga_view import read_view, with_blocking_checked
from sagas.errors import SagaError

_POLL_INTERVAL = 2.0
"""Seconds between two polls of a saga that has not ended; one that is parked frees its slot."""


@dataclass(frozen=True, slots=True)
class StartRow:
    """One saga to start. ``location`` names the row for messages.

    ``any_input``: a saga of this id counts as this one, whatever its input was.
    """

    location: str
    id: str
    request: StartRequest
    any_input: bool = False


class RowStarter(ABC):
    """Starts rows, counted in ``tally``; with ``wait_for_end`` it also waits until their sagas end.

    A saga that exists already is not started; its end counts like the others. ``gate`` ends the starting and the
    waiting; running sagas go on, and a start under way is counted. A row that cannot be started counts as refused, and
    the others go on. ``again``: sagas that have ended without completing are started as a new generation.
    """

    def __init__(
        self,
        starter: SagaStarter,
        tally: Tally,
        limits: StartLimits,
        gate: StartGate,
        *,
        batch: str,
        wait_for_end: bool,
        again: bool = False,
        progress: Callable[[Tally], None],
    ) -> None:
        self.starter = starter
        self.locator = starter.locator
        self.tally = tally
        self.batch = batch
        self.wait_for_end = wait_for_end
        self.again = again
        self._limits = limits
        self._gate = gate
        self._progress = progress
        self._room = asyncio.Condition()
        self._running = 0
        self._waiting: set[asyncio.Task[Any]] = set()
        """Tasks that have started their rows, and only wait for the ends of the sagas."""

    async def start_all(self, rows: Sequence[StartRow]) -> None:
        """Start them in their order. Raises RPCError if the server cannot be reached, LedgerUnavailable."""
        rate = RateLimit(self._limits.rate)
        try:
            async with asyncio.TaskGroup() as group:
                tasks: list[asyncio.Task[None]] = []
                for part in self.parts(rows, self._limits):
                    new, others = await self.select_new(part)
                    if others is not None:
                        tasks.append(group.create_task(others))
                    if new and not await self._wait_for_turn(rate, len(new)):
                        break
                    if self._gate.stopped:
                        break
                    if new:
                        self._running += len(new)
                        tasks.append(group.create_task(self._start(new)))
                if tasks and not self._gate.stopped:
                    await wait_first(self._gate.wait_stopped(), asyncio.wait(tasks))
                if self._gate.stopped:
                    self.tally.stopped = self._gate.why
                    for task in self._waiting:
                        task.cancel()
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None  # the others have the same cause

    @abstractmethod
    def parts(self, rows: Sequence[StartRow], limits: StartLimits) -> Iterable[Sequence[StartRow]]:
        """Cut the rows into those that are started together."""

    async def select_new(self, part: Sequence[StartRow]) -> tuple[Sequence[StartRow], Coroutine[Any, Any, None] | None]:
        """The rows of a part whose sagas do not exist as far as is known, and what waits for the others."""
        return part, None

    @abstractmethod
    async def start(self, rows: Sequence[StartRow]) -> None:
        """Start the rows of one part, and wait for their ends. Calls :meth:`may_wait` in between."""

    async def _start(self, rows: Sequence[StartRow]) -> None:
        try:
            await self.start(rows)
        finally:
            async with self._room:
                self._running -= len(rows)
                self._room.notify_all()
            self.show_progress()

    async def _wait_for_turn(self, rate: RateLimit, count: int) -> bool:
        """Wait for the rate, for room, and for the end of a pause; False if no more may start."""
        gate, tally, limits = self._gate, self.tally, self._limits
        await rate.wait(gate, count)
        await wait_first(gate.wait_stopped(), self._wait_for_room(count, limits.concurrency))
        await gate.wait_open()
        if not gate.stopped and limits.tolerated is not None and tally.failures > limits.tolerated:
            tally.stopped = "failures"
            return False
        return not gate.stopped

    async def _wait_for_room(self, count: int, concurrency: int) -> None:
        async with self._room:
            await self._room.wait_for(lambda: not self._running or self._running + count <= concurrency)

    # For the ways to start.
    def show_progress(self) -> None:
        self._progress(self.tally)

    def may_wait(self) -> bool:
        """Note that the current task only waits from now on, so that it ends with the gate; False if it has ended."""
        if self._gate.stopped:
            return False
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        return True

    def refuse(self, rows: Sequence[StartRow], trouble: str) -> None:
        """Count rows that cannot be started."""
        self.tally.refused += len(rows)
        self.tally.troubles.append(trouble)

    async def wait_alone(self, id: str) -> None:
        """Wait for the end of one saga."""
        self.tally.count_ended(await final_state(self.locator, id))
        self.show_progress()


def is_unreachable(error: SagaError | RPCError) -> bool:
    """True if no other row could be started either."""
    return isinstance(error, RPCError) and error.status is RPCStatusCode.UNAVAILABLE


async def final_state(locator: Locator, saga_id: str) -> str:
    """Wait until the saga ends or is parked, wherever it runs; returns its final state, or PARKED.

    Raises LedgerUnavailable if Temporal has no run of it and the ledger does not answer.
    """
    while True:
        location = await locator.locate(saga_id)
        if location.run is not None:
            return await _final_state_of_run(locator, saga_id)
        if location.kind != "in bulk":
            return "TERMINATED" if location.row is None else location.row.view.state
        await asyncio.sleep(_POLL_INTERVAL)


async def _final_state_of_run(locator: Locator, saga_id: str) -> str:
    """Wait until a saga with a workflow of its own ends or is parked."""
    closed = asyncio.ensure_future(_wait_until_closed(locator.temporal, saga_id))
    try:
        while True:
            await asyncio.wait({closed}, timeout=_POLL_INTERVAL)
            had_closed = closed.done()  # it may close while it is described
            described = (await locator.within_temporal().locate(saga_id)).run
            if described is None:
                return await final_state(locator, saga_id)  # it has just been deleted
            state = await state_of(locator, described.run)
            if not described.run.running:
                return state
            if state == "PARKED" or await _is_blocked(locator, described.run):
                return "PARKED"
            if had_closed:
                closed.result()
                return state  # it has been started again
    finally:
        closed.cancel()


async def _is_blocked(locator: Locator, run: RunInfo) -> bool:
    """Return whether a parked nested saga blocks it. Only a saga that has been blocked has the search attribute."""
    if "SagaStep" not in run.attributes:
        return False
    return (await with_blocking_checked(locator, await read_view(locator, run.id))).waits_for_a_person


async def _wait_until_closed(temporal: Temporal, saga_id: str) -> None:
    try:
        await wait_for_result(temporal.get_workflow_handle(saga_id))
    except WorkflowFailureError:
        return  # the caller reads the state
