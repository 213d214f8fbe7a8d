"""Interventions of operators in a batch: pause and resume its starting, cancel it, and collect what has failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowUpdateFailedError

from saga_activities.ledger.records import BATCH_LABEL, RunFilter
from saga_workers.batch.batch_view import sagas_of_batch, unknown_batch_error
from saga_workers.batch.reporter import query_record, read_record
from saga_workers.bulk.bulk_updates import update_bulk_workflow
from saga_workers.location.location import BulkMember
from saga_workers.location.locator import Locator
from saga_workers.location.verified_outcomes import state_of
from saga_workers.many_requests import ask_each
from saga_workers.temporal.message_keys import require_key_at_worker
from saga_workers.temporal.saga_input import first_input
from saga_workers.temporal.temporal_runs import count_pollers, describe_run
from saga_workers.views.saga_list import list_saga_runs
from sagas.bulk.names import CANCEL_UPDATE
from sagas.errors import RefusedError, SagaError
from sagas.machine.cancel import CancelResponse
from sagas.protocol.batch_record import CANCEL_SIGNAL, PAUSE_SIGNAL, RESUME_SIGNAL, BatchRecord
from sagas.protocol.payloads import BATCH_PREFIX, input_digest
from sagas.text.printable import printable_line

_PAGE = 200
_CLOSE_TIMEOUT = 10.0
"""Seconds a command has to stop starting rows after its batch was cancelled."""

_SETTLE_INTERVAL = 1.0
"""Seconds until the running sagas are listed again: Temporal's visibility store lags behind."""

PAST_COMMIT: CancelResponse = "past the point of no return"

CancelOne = Callable[[str], Awaitable[Any]]


async def pause(temporal: Temporal, batch: str, by: str | None) -> BatchRecord | None:
    """Hold up the starting of rows. Raises RefusedError if no command starts rows or the worker of its record lacks the
    key of the signal, UsageError without such a batch.
    """
    return await _ask(temporal, batch, PAUSE_SIGNAL, by)


async def resume(temporal: Temporal, batch: str, by: str | None) -> BatchRecord | None:
    """Go on starting rows. Raises like :func:`pause`."""
    return await _ask(temporal, batch, RESUME_SIGNAL, by)


async def _ask(temporal: Temporal, batch: str, signal: str, by: str | None) -> BatchRecord | None:
    described = await describe_run(temporal, BATCH_PREFIX + batch)
    if described is None:
        raise unknown_batch_error(batch)
    if not described.run.running:
        raise RefusedError(
            f"no command starts rows of the batch {printable_line(batch)}",
            help="run saga start --from again to continue it; saga batch cancel    cancels its sagas",
        )
    await require_key_at_worker(temporal, described.run)
    handle = temporal.get_workflow_handle(BATCH_PREFIX + batch)
    await handle.signal(signal, {"by": by or temporal.identity})
    return await query_record(temporal, batch)


@dataclass(slots=True)
class CancelReport:
    """``asked``: the sagas whose cancel was accepted. ``refused``: id and reason of those that cannot be cancelled.

    ``ended``: those that had ended before they could be asked.
    """

    asked: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)


async def running_sagas(locator: Locator, batch: str, task_queue: str) -> list[str]:
    """The ids of the sagas of a batch that run, also in bulk workflows. Nested sagas follow their parents."""
    running = sagas_of_batch(batch, task_queue, "ExecutionStatus = 'Running'")
    ids = [run.id async for run in list_saga_runs(locator.temporal, running) if run.parent_id is None]
    ids += await locator.ledger.running_in_bulk(batch)
    return list(dict.fromkeys(ids))


async def cancel(
    locator: Locator,
    batch: str,
    task_queue: str,
    by: str | None,
    reason: str,
    cancel_one: CancelOne,
) -> CancelReport:
    """Stop the starting of rows, and cancel every saga that runs: those of a bulk workflow together, others with
    ``cancel_one``.

    The running sagas are listed until a list has no new ones, after the command has stopped.
    """
    temporal = locator.temporal
    record = await describe_run(temporal, BATCH_PREFIX + batch)
    if record is not None and record.run.running:
        await require_key_at_worker(temporal, record.run)
        handle = temporal.get_workflow_handle(BATCH_PREFIX + batch)
        await handle.signal(CANCEL_SIGNAL, {"by": by or temporal.identity})
        await _wait_until_closed(temporal, batch)
    report = CancelReport()
    seen: set[str] = set()
    quiet = 0
    while quiet < 2:
        new = [id for id in await running_sagas(locator, batch, task_queue) if id not in seen]
        seen.update(new)
        quiet = 0 if new else quiet + 1
        answers = await cancel_members(locator, new, {"reason": reason, "who": by or locator.temporal.identity})
        for id, answer in answers.items():
            if answer == PAST_COMMIT:
                report.refused[id] = f"{id} is {answer}"
            else:
                report.asked.append(id)
        alone = [id for id in new if id not in answers]
        for id, answer in zip(alone, await ask_each(alone, cancel_one), strict=True):
            if isinstance(answer, SagaError) and (await locator.locate(id)).kind in ("ended", "terminated"):
                report.ended.append(id)
            elif isinstance(answer, SagaError):
                report.refused[id] = answer.message
            else:
                report.asked.append(id)
        if quiet < 2:
            await asyncio.sleep(_SETTLE_INTERVAL)
    return report


async def _wait_until_closed(temporal: Temporal, batch: str) -> None:
    """Wait until the command has stopped; one that was killed never does."""
    until = time.monotonic() + _CLOSE_TIMEOUT
    while time.monotonic() < until:
        described = await describe_run(temporal, BATCH_PREFIX + batch)
        if described is None or not described.run.running:
            return
        await asyncio.sleep(0.2)


@dataclass(frozen=True, slots=True)
class FailedSaga:
    """A saga of a batch that was undone, with its input."""

    id: str
    saga: str
    input: Any


@dataclass(frozen=True, slots=True)
class FailedSagas:
    """``sagas`` can be started again. ``lost`` ids cannot, because their inputs are no longer known."""

    sagas: Sequence[FailedSaga]
    lost: Sequence[str]
    record: BatchRecord | None


async def failed_sagas(locator: Locator, batch: str, task_queue: str) -> FailedSagas:
    """The sagas of a batch that ended COMPENSATED or RESIDUE. Raises UsageError if there is no such batch."""
    record = await read_record(locator.temporal, batch, task_queue=task_queue)
    sagas: list[FailedSaga] = []
    lost: list[str] = []
    if locator.ledger.configured:
        await _failed_in_ledger(locator, batch, sagas, lost)
    else:
        await _failed_in_temporal(locator, batch, task_queue, sagas)
    if record is None and not sagas and not lost and not await running_sagas(locator, batch, task_queue):
        raise unknown_batch_error(batch)
    return FailedSagas(sagas, lost, record)


async def _failed_in_ledger(locator: Locator, batch: str, sagas: list[FailedSaga], lost: list[str]) -> None:
    criteria = RunFilter(states=("COMPENSATED", "RESIDUE"), labels={BATCH_LABEL: batch})
    while page := await locator.ledger.list(criteria, _PAGE):
        for row in page:
            view = row.view
            input = view.input
            if row.input_digest != input_digest(input):
                # A view keeps a long input only in part, and nothing sensitive.
                run = (await locator.within_temporal().locate(view.id)).run
                input = None if run is None else await first_input(locator.temporal, run, locator.keys)
            if row.input_digest == input_digest(input):
                sagas.append(FailedSaga(view.id, view.saga, input))
            else:
                lost.append(view.id)
        criteria = RunFilter(
            criteria.saga, criteria.states, None, criteria.labels, (page[-1].started_at, page[-1].view.id)
        )


async def _failed_in_temporal(locator: Locator, batch: str, task_queue: str, sagas: list[FailedSaga]) -> None:
    temporal = locator.temporal
    seen: set[str] = set()
    async for run in list_saga_runs(temporal, sagas_of_batch(batch, task_queue)):
        if run.id in seen or run.parent_id is not None:
            continue
        seen.add(run.id)
        if await state_of(locator, run) not in ("COMPENSATED", "RESIDUE"):
            continue
        described = await describe_run(temporal, run.id, run.run_id)
        if described is not None:
            sagas.append(FailedSaga(run.id, run.workflow_type, await first_input(temporal, described, locator.keys)))


async def cancel_members(locator: Locator, saga_ids: Sequence[str], request: Mapping[str, Any]) -> dict[str, str]:
    """Cancel those of the sagas that bulk workflows run; returns what the cancel means for each of them.

    Those that have left or ended, and those whose bulk workflow does not answer, are missing: they have to be asked one
    by one. ``request``: as the update `cancel` of a single saga takes it. Raises LedgerUnavailable.
    """
    members: dict[str, list[BulkMember]] = {}
    for member in await locator.members(list((await locator.ledger.claims(saga_ids)).values())):
        members.setdefault(member.bulk_id, []).append(member)
    answers = await asyncio.gather(*(_cancel_members_of(locator.temporal, some, request) for some in members.values()))
    return {id: answer for part in answers for id, answer in part.items()}


async def _cancel_members_of(
    temporal: Temporal, members: Sequence[BulkMember], request: Mapping[str, Any]
) -> Mapping[str, str]:
    """Cancel the given members of one bulk workflow; returns the answer for each."""
    bulk = members[0].bulk
    if bulk is None or not bulk.run.running or not await count_pollers(temporal, bulk.run.task_queue):
        return {}
    saga_ids = [member.claim.saga_id for member in members]
    try:
        return await update_bulk_workflow(temporal, bulk.run.id, CANCEL_UPDATE, [saga_ids, request]) or {}
    except (TimeoutError, WorkflowUpdateFailedError):
        return {}
