"""Starts one saga per row, with limits on the rate, on the sagas that run at once, and on the number of failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.batch.tally import Pacer, StartGate, StartLimits, StartRow, Tally
from saga_workers.control.start import AlreadyEnded, SagaStarter
from saga_workers.location.locator import Locator
from saga_workers.temporal.run_states import closed_state, visible_state
from saga_workers.temporal.temporal_runs import RunInfo
from saga_workers.views.saga_view import read_view, with_blocking_checked
from sagas.errors import SagaError

_POLL_INTERVAL = 2.0
"""Seconds between two polls of a saga that has not ended; one that is parked frees its slot."""


async def start_all(
    starter: SagaStarter,
    rows: Sequence[StartRow],
    tally: Tally,
    limits: StartLimits,
    *,
    wait_for_end: bool,
    again: bool = False,
    labels: Mapping[str, str] | None = None,
    gate: StartGate,
    progress: Callable[[Tally], None],
) -> None:
    """Start the sagas in the order of the rows, counted in ``tally``; with ``wait_for_end`` also wait until they end.

    A saga that exists already is not started again; its end counts like the others. ``gate`` ends the starting and the
    waiting; running sagas go on, and a start under way is counted. A row that cannot be started counts as refused, and
    the others go on. Raises RPCError if the server cannot be reached.
    """
    waiting: set[asyncio.Task[None]] = set()
    places = asyncio.Semaphore(limits.concurrency)
    pacer = Pacer(limits.rate)

    async def one(order: StartRow) -> None:
        try:
            try:
                started = await starter.start(order.request, id=order.id, again=again, labels=labels)
            except AlreadyEnded as error:
                tally.existing += 1
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
                tally.existing += 1
            progress(tally)
            if started.completed:
                tally.count_ended("COMPLETED")
            elif wait_for_end and not gate.stopped:
                task = asyncio.current_task()
                assert task is not None
                waiting.add(task)
                tally.count_ended(await final_state(starter.locator, order.id))
        finally:
            places.release()
            progress(tally)

    stopping = asyncio.create_task(gate.wait_stopped())
    try:
        async with asyncio.TaskGroup() as group:
            tasks = []
            for order in rows:
                await pacer.wait(gate)
                await wait_for_either(stopping, places.acquire())
                await gate.wait_open()
                if not gate.stopped and limits.tolerated is not None and tally.failures > limits.tolerated:
                    tally.stopped = "failures"
                    break
                if gate.stopped:
                    break
                tasks.append(group.create_task(one(order)))
            if not gate.stopped and tasks:
                await wait_for_either(stopping, asyncio.wait(tasks))
            if gate.stopped:
                tally.stopped = gate.why
                for task in waiting:
                    task.cancel()
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None  # the others have the same cause
    finally:
        stopping.cancel()


async def wait_for_either(stopping: asyncio.Task[Any], other: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of the two is done; ``other`` is cancelled if it is not needed any more."""
    waiting = asyncio.ensure_future(other)
    await asyncio.wait({stopping, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()


async def final_state(locator: Locator, saga_id: str) -> str:
    """The state in which a saga ended, or PARKED."""
    closed = asyncio.ensure_future(_wait_until_closed(locator.temporal, saga_id))
    try:
        while True:
            await asyncio.wait({closed}, timeout=_POLL_INTERVAL)
            had_closed = closed.done()  # it may close while it is described
            described = (await locator.within_temporal().locate(saga_id)).run
            if described is None:
                return "TERMINATED"
            state = visible_state(described.run)
            if not described.run.running:
                return await closed_state(described.run)
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
        await temporal.get_workflow_handle(saga_id).result()
    except WorkflowFailureError:
        return  # the caller reads the state
