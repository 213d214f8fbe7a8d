"""A batch as `saga batch show` prints it: how far its command is, and what has become of its sagas."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client as Temporal

from saga_activities.ledger.records import BATCH_LABEL, RunFilter
from saga_workers.batch.reporter import read_record
from saga_workers.location.locator import Locator
from saga_workers.location.verified_outcomes import outcome_of, state_of
from saga_workers.temporal.temporal_runs import ENDED_FROM_OUTSIDE, RunInfo, list_runs
from saga_workers.temporal.visibility_filter import keyword_condition
from saga_workers.views.run_facts import iso_time
from saga_workers.views.saga_list import SagaFilter, list_saga_runs
from sagas.errors import UsageError
from sagas.protocol.batch_record import BatchRecord
from sagas.protocol.payloads import BATCH_PREFIX, BATCH_WORKFLOW
from sagas.protocol.saga_view import FINAL_STATES, ReasonView
from sagas.text.printable import printable_line

MAX_FAILURES_READ = 200
"""Sagas whose reasons are read, the newest first; the others are counted by their states only."""

_CONCURRENCY = 16
_FAILED_STATES = ("COMPENSATED", "RESIDUE", "TERMINATED", "FAILED")
_MESSAGE_LENGTH = 300


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Sagas that have failed for the same reason. ``example`` is the id of one of them."""

    state: str
    kind: str
    step: str | None
    message: str | None
    count: int
    example: str

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("state", "kind", "step", "message", "count", "example")}


@dataclass(frozen=True, slots=True)
class BatchView:
    """One batch. ``sagas`` counts by state; ``record`` is None if Temporal no longer has it.

    ``failures_read``: how many of the failed sagas the groups are made from.
    """

    id: str
    record: BatchRecord | None
    sagas: dict[str, int]
    failures: tuple[FailureGroup, ...] = ()
    failures_read: int = 0

    @property
    def total(self) -> int:
        return max(self.record.total if self.record else 0, sum(self.sagas.values()))

    @property
    def ended(self) -> int:
        return sum(count for state, count in self.sagas.items() if state in FINAL_STATES)

    def to_json(self) -> dict[str, Any]:
        return {
            **_record_json(self.id, self.record),
            "total": self.total,
            "sagas": dict(sorted(self.sagas.items())),
            "failures": [failure.to_json() for failure in self.failures],
            "failures_read": self.failures_read,
        }


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One batch in a list, as its record says."""

    record: BatchRecord
    opened_at: str | None
    closed_at: str | None

    def to_json(self) -> dict[str, Any]:
        record = self.record
        return {
            **_record_json(record.id, record),
            "total": record.total,
            "opened_at": self.opened_at,
            "closed_at": self.closed_at,
        }


def _record_json(id: str, record: BatchRecord | None) -> dict[str, Any]:
    if record is None:
        unknown: dict[str, Any] = dict.fromkeys(("saga", "state", "bulk", "by", "rows", "rate"))
        return {"id": id, **unknown, "refusals": []}
    rows = {
        "started": record.started,
        "existing": record.existing,
        "refused": record.refused,
        "not_started": max(0, record.total - record.processed),
    }
    rate = None if record.rate is None else round(record.rate, 3)
    return {
        "id": id,
        "saga": record.saga or None,
        "state": record.state,
        "bulk": record.bulk,
        "by": record.by,
        "rows": rows,
        "refusals": list(record.refusals),
        "rate": rate,
    }


async def read_batch(locator: Locator, batch: str, task_queue: str) -> BatchView:
    """One batch with all of its sagas. Raises UsageError if there is none, LedgerUnavailable without the ledger."""
    record = await read_record(locator.temporal, batch, task_queue=task_queue)
    reader = _BatchReader(locator, batch, task_queue)
    sagas = await reader.count()
    if record is None and not sagas:
        raise unknown_batch_error(batch)
    failures, read = await reader.failures()
    return BatchView(batch, record, sagas, failures, read)


def unknown_batch_error(batch: str) -> UsageError:
    return UsageError(f"there is no batch {printable_line(batch)}", help="saga batch list    lists the ids")


async def list_batches(temporal: Temporal, task_queue: str, limit: int) -> list[BatchEntry]:
    """The batches whose records Temporal has, newest first; of each its newest record."""
    newest: dict[str, RunInfo] = {}
    queue = keyword_condition("TaskQueue", task_queue)
    query = f"WorkflowType = '{BATCH_WORKFLOW}' AND {queue} AND ExecutionStatus != 'ContinuedAsNew'"
    async for run in list_runs(temporal, query):
        if run.task_queue == task_queue and run.id.startswith(BATCH_PREFIX):
            newest.setdefault(run.id, run)
        if len(newest) >= limit:
            break
    gate = asyncio.Semaphore(_CONCURRENCY)

    async def read(run: RunInfo) -> BatchEntry | None:
        async with gate:  # a record whose worker does not answer takes its time
            record = await read_record(temporal, run.id.removeprefix(BATCH_PREFIX), run.run_id)
        return record and BatchEntry(record, iso_time(run.start_time), iso_time(run.close_time))

    entries = await asyncio.gather(*map(read, newest.values()))
    return [entry for entry in entries if entry is not None]  # the others were deleted since they were listed


def sagas_of_batch(batch: str, task_queue: str, more: str | None = None) -> SagaFilter:
    """The sagas of a batch; ``more``: a condition in Temporal's list filter syntax."""
    return SagaFilter(labels={BATCH_LABEL: batch}, task_queue=task_queue, where=more)


class _BatchReader:
    def __init__(self, locator: Locator, batch: str, task_queue: str) -> None:
        self._locator = locator
        self._temporal = locator.temporal
        self._ledger = locator.ledger
        self._batch = batch
        self._task_queue = task_queue
        self._failed: list[RunInfo] = []
        """The newest of those that have failed, where there is no ledger."""

    async def count(self) -> dict[str, int]:
        """The sagas by state; each counts once, with the state of its newest run."""
        if not self._ledger.configured:
            return await self._count_in_temporal()
        counts = Counter(
            {
                state: count
                for state, count in (await self._ledger.count_batch(self._batch)).items()
                if state in FINAL_STATES
            }
        )
        # What is open, and what ended without the engine, has no row that counts.
        states = f"ExecutionStatus IN ('Running', 'Failed') OR {ENDED_FROM_OUTSIDE}"
        newer = {run.id: await state_of(self._locator, run) async for run in self._newest_runs(states)}
        newer |= dict.fromkeys(await self._ledger.running_in_bulk(self._batch), "RUNNING")
        rows = await self._ledger.states(sorted(newer))
        for id, state in newer.items():
            row = rows.get(id)
            if row in FINAL_STATES and state in FINAL_STATES:
                continue  # the ledger has its end
            if row in FINAL_STATES:
                counts[row] -= 1  # it is running again
            counts[state] += 1
        return {state: count for state, count in counts.items() if count > 0}

    async def _count_in_temporal(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        async for run in self._newest_runs(None):
            state = await state_of(self._locator, run)
            counts[state] += 1
            if state in _FAILED_STATES and len(self._failed) < MAX_FAILURES_READ:
                self._failed.append(run)
        return dict(counts)

    async def failures(self) -> tuple[tuple[FailureGroup, ...], int]:
        """The groups of the sagas that :meth:`count` has counted, and how many of them were read."""
        reasons: list[tuple[str, str, ReasonView | None]] = []
        criteria = RunFilter(states=("COMPENSATED", "RESIDUE"), labels={BATCH_LABEL: self._batch})
        for row in await self._ledger.list(criteria, MAX_FAILURES_READ):
            reasons.append((row.view.id, row.view.state, row.view.reason))
        for run in self._failed:
            outcome = await outcome_of(self._locator, run)
            reasons.append((run.id, outcome.state, outcome.view.reason if outcome.view else None))
        return group_failures(reasons), len(reasons)

    async def _newest_runs(self, more: str | None) -> AsyncIterator[RunInfo]:
        seen: set[str] = set()
        async for run in list_saga_runs(self._temporal, sagas_of_batch(self._batch, self._task_queue, more)):
            if run.parent_id is None and run.id not in seen:
                seen.add(run.id)
                yield run


def group_failures(reasons: Iterable[tuple[str, str, ReasonView | None]]) -> tuple[FailureGroup, ...]:
    """Group ``(saga id, state, reason)``, the largest group first. The items of a `for_each` count as one step."""
    groups: dict[tuple[str, str, str | None, str | None], list[str]] = {}
    for id, state, reason in reasons:
        step = None if reason is None or reason.step is None else reason.step.partition("#")[0]
        message = None if reason is None or reason.message is None else reason.message[:_MESSAGE_LENGTH]
        kind = "unknown" if reason is None else reason.kind
        groups.setdefault((state, kind, step, message), []).append(id)
    ordered: Sequence[FailureGroup] = [
        FailureGroup(state, kind, step, message, len(ids), ids[0])
        for (state, kind, step, message), ids in groups.items()
    ]
    return tuple(sorted(ordered, key=lambda group: (-group.count, group.example)))
