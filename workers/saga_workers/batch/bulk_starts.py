"""Starts the rows of a batch in bulk workflows, with limits on the rate, on the sagas that run at once, and on the
number of failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from saga_activities.ledger.batches import KnownSaga
from saga_workers.batch.single_starts import final_state, wait_for_either
from saga_workers.batch.tally import Pacer, StartGate, StartLimits, StartRow, Tally
from saga_workers.control.acceptance import refusal_of, wait_accepted
from saga_workers.control.start import BulkRow, SagaStarter
from saga_workers.temporal.temporal_runs import describe_run
from sagas.bulk.wire_format import MAX_MEMBERS
from sagas.errors import SagaError
from sagas.protocol.payloads import input_digest
from sagas.protocol.saga_view import FINAL_STATES, STARTED_AGAIN
from sagas.text.exact_json import encode_json

DEFAULT_BULK_SIZE = 500

MAX_INPUT_BYTES = 1536 * 1024
"""Bytes of JSON of the inputs of one bulk workflow; Temporal's limit for a whole input is 2 MiB."""

_POLL_INTERVAL = 0.5
"""Seconds between two looks at sagas that an earlier command has started."""


def cut_rows(rows: Sequence[StartRow], size: int) -> Iterator[list[StartRow]]:
    """Cut the rows into those of one bulk workflow each: at most ``size`` sagas and MAX_INPUT_BYTES of inputs."""
    part: list[StartRow] = []
    taken = 0
    for row in rows:
        length = len(encode_json(row.request.input)) + len(row.id)
        if part and (len(part) >= size or taken + length > MAX_INPUT_BYTES):
            yield part
            part, taken = [], 0
        part.append(row)
        taken += length
    if part:
        yield part


def bulk_size(size: int, limits: StartLimits) -> int:
    """Sagas of one bulk workflow: a second's starts at most, and no more than may run at once."""
    per_second = MAX_MEMBERS if limits.rate is None else max(1, int(limits.rate))
    return max(1, min(size, MAX_MEMBERS, per_second, limits.concurrency))


class BulkStarter:
    """Starts the rows of one batch in a project with a ledger, which keeps the ends of its sagas."""

    def __init__(
        self,
        starter: SagaStarter,
        tally: Tally,
        gate: StartGate,
        *,
        batch: str,
        saga: str,
        wait_for_end: bool,
        again: bool,
        progress: Callable[[Tally], None],
    ) -> None:
        self._starter = starter
        self._locator = starter.locator
        self._ledger = starter.locator.ledger
        self._tally = tally
        self._gate = gate
        self._batch = batch
        self._saga = saga
        self._wait_for_end = wait_for_end
        self._again = again
        self._progress = progress
        self._room = asyncio.Condition()
        self._running = 0
        self._waiting: set[asyncio.Task[Any]] = set()
        """Those of the tasks that have started what they start."""

    async def start_all(self, rows: Sequence[StartRow], size: int, limits: StartLimits) -> None:
        """Start them in the order of the rows. A saga that exists already is not started; its end counts.

        Raises RPCError if the server cannot be reached, LedgerUnavailable without the ledger.
        """
        pacer = Pacer(limits.rate)
        gate, tally = self._gate, self._tally
        stopping = asyncio.create_task(gate.wait_stopped())
        try:
            async with asyncio.TaskGroup() as group:
                tasks: list[asyncio.Task[None]] = []
                for part in cut_rows(rows, bulk_size(size, limits)):
                    new = await self._without_known(part, group, tasks)
                    if new and not await self._wait_for_turn(pacer, stopping, len(new), limits):
                        break
                    if gate.stopped:
                        break
                    if new:
                        self._running += len(new)
                        tasks.append(group.create_task(self._run(new)))
                if tasks and not gate.stopped:
                    await wait_for_either(stopping, asyncio.wait(tasks))
                if gate.stopped:
                    tally.stopped = gate.why
                    for task in self._waiting:
                        task.cancel()
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None  # the others have the same cause
        finally:
            stopping.cancel()

    async def _wait_for_turn(self, pacer: Pacer, stopping: asyncio.Task[None], count: int, limits: StartLimits) -> bool:
        """Wait for the rate, for room, and for the end of a pause; False if no more may start."""
        gate, tally = self._gate, self._tally
        await pacer.wait(gate, count)
        await wait_for_either(stopping, self._wait_for_room(count, limits.concurrency))
        await gate.wait_open()
        if not gate.stopped and limits.tolerated is not None and tally.failures > limits.tolerated:
            tally.stopped = "failures"
            return False
        return not gate.stopped

    async def _wait_for_room(self, count: int, concurrency: int) -> None:
        async with self._room:
            await self._room.wait_for(lambda: not self._running or self._running + count <= concurrency)

    async def _without_known(
        self, part: Sequence[StartRow], group: asyncio.TaskGroup, tasks: list[asyncio.Task[None]]
    ) -> list[StartRow]:
        """Count the rows that the ledger knows; returns the others. Claims decide in the end, see saga.claim."""
        known = await self._ledger.known([row.id for row in part])
        claimed = [id for id, saga in known.items() if saga.alone]
        in_temporal = self._locator.within_temporal()
        locations = await asyncio.gather(*(in_temporal.locate(id) for id in claimed))
        for id, location in zip(claimed, locations, strict=True):
            if location.home is None:
                del known[id]  # the command that claimed it has not started it; now the bulk workflow does
        new: list[StartRow] = []
        waiting: list[str] = []
        for row in part:
            saga = known.get(row.id)
            if saga is None or (self._again and saga.state in STARTED_AGAIN and self._is_same(row, saga)):
                new.append(row)
            elif not self._is_same(row, saga):
                self._refuse(row, "it has been started as another saga or with another input")
            else:
                self._tally.existing += 1
                if saga.state in FINAL_STATES:
                    self._tally.count_ended(saga.state)
                else:
                    waiting.append(row.id)
        self._progress(self._tally)
        if waiting and self._wait_for_end:
            tasks.append(group.create_task(self._wait_for_others(waiting)))
        return new

    def _is_same(self, row: StartRow, known: KnownSaga) -> bool:
        return known.saga == self._saga and known.input_digest in (None, input_digest(row.request.input))

    def _refuse(self, row: StartRow, why: str) -> None:
        self._tally.refused += 1
        self._tally.troubles.append(f"{row.location}: {row.id} cannot be started: {why}")

    async def _run(self, rows: list[StartRow]) -> None:
        tally = self._tally
        try:
            try:
                handle = await self._starter.start_bulk(
                    [BulkRow(row.id, row.request) for row in rows], again=self._again, batch=self._batch
                )
            except (SagaError, RPCError) as error:
                if isinstance(error, RPCError) and error.status is RPCStatusCode.UNAVAILABLE:
                    raise  # no other row could be started either
                if len(rows) == 1:
                    self._refuse(rows[0], error.message)
                    return
                # One of them is the cause, and the others must not share its fate.
                for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                    self._running += len(half)
                    await self._run(half)
                return
            tally.started += len(rows)
            self._progress(tally)
            if self._gate.stopped:
                return
            if not self._wait_for_end:
                await self._check_accepted(rows, handle)
                return
            self._waits()
            try:
                result = await handle.result()
            except WorkflowFailureError as error:
                await self._count_after_failure(rows, error)
                return
            await self._count_result(rows, result)
        finally:
            async with self._room:
                self._running -= len(rows)
                self._room.notify_all()
            self._progress(tally)

    async def _count_result(self, rows: Sequence[StartRow], result: Mapping[str, Any]) -> None:
        tally = self._tally
        for state, count in result["counts"].items():
            if state != "DETACHED":
                tally.count_ended(state, count)
        places = {row.id: row for row in rows}
        waiting: list[str] = []
        for id, known in result["existing"].items():
            tally.started -= 1
            if not known["same"]:
                self._refuse(places[id], "it has been started as another saga or with another input")
                continue
            tally.existing += 1
            if known["state"] in FINAL_STATES:
                tally.count_ended(known["state"])
            else:
                waiting.append(id)
        self._progress(tally)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._wait_for_others(waiting))
            for id in result["detached"]:
                group.create_task(self._wait_alone(id))

    async def _check_accepted(self, rows: Sequence[StartRow], handle: WorkflowHandle[Any, Any]) -> None:
        """Report what a worker refuses, or that no worker has told yet whether it does."""
        accepted = await wait_accepted(handle, [row.id for row in rows])
        if accepted is None:
            more = f" and {len(rows) - 1} more rows" if len(rows) > 1 else ""
            self._tally.troubles.append(
                f"{rows[0].location}{more}: no worker has claimed them yet, and one may refuse them; run the same "
                "command again when a worker runs"
            )
        elif accepted.refusal is not None:
            self._count_refused(rows, accepted.refusal)

    def _count_refused(self, rows: Sequence[StartRow], why: str) -> None:
        """A bulk workflow that was refused has started nothing."""
        self._tally.started -= len(rows)
        self._tally.refused += len(rows)
        self._tally.troubles.append(f"{rows[0].location} and {len(rows) - 1} more rows: {why}")

    async def _count_after_failure(self, rows: Sequence[StartRow], error: WorkflowFailureError) -> None:
        """A bulk workflow that was refused has started nothing; of one that was terminated the ledger knows a part."""
        if (refusal := refusal_of(error)) is not None:
            self._count_refused(rows, refusal)
            return
        known = await self._ledger.known([row.id for row in rows])
        for row in rows:
            saga = known.get(row.id)
            ended = saga is not None and saga.bulk_id is None and saga.state in FINAL_STATES
            self._tally.count_ended(saga.state if ended and saga is not None else "TERMINATED")

    async def _wait_for_others(self, ids: Collection[str]) -> None:
        """Wait for sagas that another command has started, in a bulk workflow or on their own."""
        self._waits()
        left = set(ids)
        async with asyncio.TaskGroup() as group:
            while left:
                known = await self._ledger.known(sorted(left))
                open_ones = await self._open_workflows({one.bulk_id for one in known.values() if one.bulk_id})
                for id in sorted(left):
                    saga = known.get(id)
                    if saga is not None and saga.bulk_id in open_ones:
                        continue
                    if saga is not None and saga.bulk_id is not None:
                        # Its last act may have been to record the saga.
                        saga = (await self._ledger.known([id])).get(id)
                        if saga is not None and saga.bulk_id is not None:
                            left.discard(id)
                            self._tally.count_ended("TERMINATED")
                            continue
                    left.discard(id)
                    if saga is not None and saga.state in FINAL_STATES:
                        self._tally.count_ended(saga.state)
                        self._progress(self._tally)
                    else:
                        group.create_task(self._wait_alone(id))
                if left:
                    await asyncio.sleep(_POLL_INTERVAL)

    async def _open_workflows(self, ids: Collection[str]) -> set[str]:
        described = await asyncio.gather(*(describe_run(self._locator.temporal, id) for id in ids))
        return {one.run.id for one in described if one is not None and one.run.running}

    def _waits(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)

    async def _wait_alone(self, id: str) -> None:
        self._tally.count_ended(await final_state(self._locator, id))
        self._progress(self._tally)
