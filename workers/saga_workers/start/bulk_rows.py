"""Starts the rows of a batch in bulk workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError

from saga_activities.ledger.records import KnownSaga
from saga_workers.bulk.acceptance import refusal_of, wait_accepted
from saga_workers.start.row_starts import RowStarter, StartRow, is_unreachable
from saga_workers.start.saga_starter import SagaStarter
from saga_workers.start.start_limits import MAX_BULK_INPUTS, StartLimits, shared_size
from saga_workers.start.start_requests import BulkRow
from saga_workers.temporal.run_history import describe_bulk
from saga_workers.temporal.run_results import wait_for_result
from sagas.bulk.names import MAX_MEMBERS
from sagas.errors import SagaError
from sagas.protocol.payloads import input_digest
from sagas.protocol.saga_view import FINAL_STATES, STARTED_AGAIN
from sagas.text.exact_json import encode_json
from sagas.text.shortening import counted

DEFAULT_BULK_SIZE = 500

_ANOTHER_START = "it has been started as another saga or with another input"

_POLL_INTERVAL = 0.5
"""Seconds between two looks at sagas that an earlier command has started."""


def cut_rows(rows: Sequence[StartRow], size: int) -> Iterator[list[StartRow]]:
    """Cut the rows into those of one bulk workflow each: at most ``size`` sagas and MAX_BULK_INPUTS of inputs."""
    part: list[StartRow] = []
    taken = 0
    for row in rows:
        length = shared_size(row.request, len(encode_json(row.request.input)) + len(row.id))
        if part and (len(part) >= size or taken + length > MAX_BULK_INPUTS):
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


class BulkRowStarter(RowStarter):
    """Starts rows in bulk workflows of at most ``size`` sagas, in a project with a ledger, which keeps their ends."""

    def __init__(self, size: int, starter: SagaStarter, *args: Any, **options: Any) -> None:
        super().__init__(starter, *args, **options)
        self._size = size
        self._ledger = starter.locator.ledger
        self._saga = starter.definition.saga

    def parts(self, rows: Sequence[StartRow], limits: StartLimits) -> Iterator[Sequence[StartRow]]:
        return cut_rows(rows, bulk_size(self._size, limits))

    async def select_new(self, part: Sequence[StartRow]) -> tuple[Sequence[StartRow], Coroutine[Any, Any, None] | None]:
        """Count the rows that the ledger knows; returns the others. Claims decide in the end, see saga.claim."""
        sagas = await self._ledger.known_sagas([row.id for row in part])
        claimed = [id for id, saga in sagas.items() if saga.alone]
        in_temporal = self.locator.within_temporal()
        locations = await asyncio.gather(*(in_temporal.locate(id) for id in claimed))
        for id, location in zip(claimed, locations, strict=True):
            if location.kind == "unknown":
                del sagas[id]  # the command that claimed it has not started it; now the bulk workflow does
        new: list[StartRow] = []
        waiting: list[str] = []
        for row in part:
            saga = sagas.get(row.id)
            if saga is None or (self.again and saga.state in STARTED_AGAIN and self._is_same(row, saga)):
                new.append(row)
            elif not self._is_same(row, saga):
                self._refuse(row, _ANOTHER_START)
            else:
                self.tally.existing += 1
                if saga.state in FINAL_STATES:
                    self.tally.count_ended(saga.state)
                else:
                    waiting.append(row.id)
        self.show_progress()
        return new, self._wait_for_others(waiting) if waiting and self.wait_for_end else None

    def _is_same(self, row: StartRow, earlier: KnownSaga) -> bool:
        if earlier.saga != self._saga:
            return False
        return row.any_input or earlier.input_digest in (None, input_digest(row.request.input))

    def _refuse(self, row: StartRow, why: str) -> None:
        self.refuse([row], f"{row.location}: {row.id} cannot be started: {why}")

    async def start(self, rows: Sequence[StartRow]) -> None:
        tally = self.tally
        try:
            handle = await self.starter.start_bulk(
                [BulkRow(row.id, row.request) for row in rows], again=self.again, batch=self.batch
            )
        except (SagaError, RPCError) as error:
            if is_unreachable(error):
                raise
            if len(rows) == 1:
                self._refuse(rows[0], error.message)
                return
            # One of them is the cause, and the others must not share its fate.
            for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                await self.start(half)
            return
        tally.started += len(rows)
        self.show_progress()
        if not self.wait_for_end:
            await self._check_accepted(rows, handle)
            return
        if not self.may_wait():
            return
        try:
            result = await wait_for_result(handle)
        except WorkflowFailureError as error:
            await self._count_after_failure(rows, error)
            return
        await self._count_result(rows, result)

    async def _count_result(self, rows: Sequence[StartRow], result: Mapping[str, Any]) -> None:
        tally = self.tally
        for state, count in result["counts"].items():
            if state != "DETACHED":
                tally.count_ended(state, count)
        places = {row.id: row for row in rows}
        waiting: list[str] = []
        self._refuse_inputs(rows, result.get("refused", {}))
        others = [id for id, earlier in result["existing"].items() if not earlier["same"] and places[id].any_input]
        sagas = await self._ledger.known_sagas(others) if others else {}
        for id, earlier in result["existing"].items():
            tally.started -= 1
            if not earlier["same"] and not (id in sagas and self._is_same(places[id], sagas[id])):
                self._refuse(places[id], _ANOTHER_START)
                continue
            tally.existing += 1
            if earlier["state"] in FINAL_STATES:
                tally.count_ended(earlier["state"])
            else:
                waiting.append(id)
        self.show_progress()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._wait_for_others(waiting))
            for id in result["detached"]:
                group.create_task(self.wait_alone(id))

    async def _check_accepted(self, rows: Sequence[StartRow], handle: WorkflowHandle[Any, Any]) -> None:
        """Report what a worker refuses, or that no worker has told yet whether it does."""
        accepted = await wait_accepted(handle, [row.id for row in rows])
        if accepted is None:
            more = f" and {counted(len(rows) - 1, 'more row')}" if len(rows) > 1 else ""
            self.tally.troubles.append(
                f"{rows[0].location}{more}: no worker has claimed them yet, and one may refuse them; run the same "
                "command again when a worker runs"
            )
        elif accepted.refusal is not None:
            self._count_refused(rows, accepted.refusal)
        else:
            self._refuse_inputs(rows, accepted.refused)

    def _refuse_inputs(self, rows: Sequence[StartRow], refused: Mapping[str, str]) -> None:
        """Report the rows that a worker has refused, while it has started the others."""
        for row in rows:
            if (why := refused.get(row.id)) is not None:
                self.tally.started -= 1
                self._refuse(row, why)

    def _count_refused(self, rows: Sequence[StartRow], why: str) -> None:
        """A bulk workflow that was refused has started nothing."""
        self.tally.started -= len(rows)
        self.refuse(rows, f"{rows[0].location} and {counted(len(rows) - 1, 'more row')}: {why}")

    async def _count_after_failure(self, rows: Sequence[StartRow], error: WorkflowFailureError) -> None:
        """A bulk workflow that was refused has started nothing; sagas of a terminated one may have ended or left it."""
        if (refusal := refusal_of(error)) is not None:
            self._count_refused(rows, refusal)
            return
        await self._wait_for_others([row.id for row in rows])

    async def _wait_for_others(self, ids: Collection[str]) -> None:
        """Wait for sagas that another command has started, in a bulk workflow or on their own."""
        self.may_wait()
        remaining = set(ids)
        async with asyncio.TaskGroup() as group:
            while remaining:
                sagas = await self._ledger.known_sagas(sorted(remaining))
                open_ones = await self._open_workflows({saga.bulk_id for saga in sagas.values() if saga.bulk_id})
                for id in sorted(remaining):
                    saga = sagas.get(id)
                    if saga is not None and saga.bulk_id in open_ones:
                        continue
                    remaining.discard(id)
                    if saga is not None and saga.state in FINAL_STATES:
                        self.tally.count_ended(saga.state)
                        self.show_progress()
                    else:
                        group.create_task(self.wait_alone(id))
                if remaining:
                    await asyncio.sleep(_POLL_INTERVAL)

    async def _open_workflows(self, ids: Collection[str]) -> set[str]:
        described = await asyncio.gather(*(describe_bulk(self.locator.temporal, id) for id in ids))
        return {run.run.id for run in described if run is not None and run.run.running}
