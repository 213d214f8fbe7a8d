"""Retention of guard rows: purges sagas that are over for good, so that the guard tables do not grow forever.

Every `saga worker` does this at its start and then hourly. Two workers at once are harmless: a watermark only rises,
and rows that one has deleted the other does not find.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy.exc import SQLAlchemyError
from temporalio.service import RPCError

from saga_activities.connections import DatabaseConnections
from saga_activities.guard import watermark
from saga_activities.locks.tables import request_table
from saga_workers.location.locator import Locator
from saga_workers.location.verified_outcomes import outcome_of
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.logs import fields
from saga_workers.temporal.claimed_states import carried_start, closed_view
from saga_workers.temporal.root_starts import root_start_of_run
from saga_workers.temporal.saga_runs import was_never_accepted, was_refused
from saga_workers.temporal.server_time import ServerTime
from saga_workers.temporal.temporal_runs import ENDED_FROM_OUTSIDE, RunInfo, describe_run, list_runs
from saga_workers.worker.earlier_starts import has_begun_before
from sagas.definition.model import Definition
from sagas.errors import SagaError
from sagas.protocol.origin import same_owner
from sagas.protocol.payloads import UNDO_SUFFIX

log = logging.getLogger("saga.upkeep")

CLEANUP_INTERVAL = 3600.0
"""Seconds between two rounds."""

HORIZON_MARGIN = 3600.0
"""Seconds the watermark stays below the oldest saga, because visibility lags and clocks differ."""

_COMMIT_MARGIN = 60.0
"""Seconds a transaction may outlast its attempt: for its COMMIT, and for the recheck after a lost acknowledgement."""


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """Result of one round for one database: the number of purged ``sagas``."""

    connection: str
    sagas: int


class GuardRetention:
    """Raises the watermark of each database of a project and deletes the rows below it.

    ``retention``: seconds for which a finished saga is kept at least. ``longest_transaction`` gives the seconds for
    which an attempt that has read the old watermark may still run. ``locks``: the connection with the lock tables.
    """

    def __init__(
        self,
        locator: Locator,
        databases: DatabaseConnections,
        *,
        retention: float = watermark.RETENTION,
        longest_transaction: Callable[[], float] = lambda: _COMMIT_MARGIN,
        locks: str | None = None,
    ) -> None:
        self._locator = locator
        self._databases = databases
        self._retention = retention
        self._longest_transaction = longest_transaction
        self._locks = locks
        self._time = ServerTime(locator.temporal)

    async def run_forever(self) -> None:
        """One round now and one every hour. An error is logged, and the next round tries again."""
        while True:
            await self.run_once()
            await asyncio.sleep(CLEANUP_INTERVAL)

    async def run_once(self) -> list[CleanupResult]:
        """One round over all databases; errors are logged."""
        now = await self._time.now()
        if now is None:
            return []
        try:
            oldest = await retention_horizon(self._locator, before=now - self._retention + HORIZON_MARGIN)
        except RPCError as error:
            log.warning("guard tables not purged, Temporal does not answer: %s", error.message)
            return []
        floor = None if oldest is None else oldest - HORIZON_MARGIN
        answers = await asyncio.gather(*(self._clean(name, floor, now) for name in self._databases.names()))
        return [answer for answer in answers if answer is not None]

    async def _clean(self, name: str, floor: float | None, now: float) -> CleanupResult | None:
        try:
            engine = self._databases.engine(name)
            sagas = await watermark.clean_up(
                engine,
                oldest_open=floor,
                now=now,
                longest_transaction=self._longest_transaction(),
                retention=self._retention,
                more_tables=(request_table.name,) if name == self._locks else (),
            )
            done = CleanupResult(name, sagas)
        except (SagaError, SQLAlchemyError, OSError) as error:
            log.warning("guard table not purged: %s", driver_message(error), extra=fields(connection=name))
            return None
        if sagas:
            log.info("guard table purged, %d finished sagas deleted", sagas, extra=fields(connection=name))
        return done


def longest_attempt(definitions: Iterable[Definition]) -> float:
    """Seconds the longest attempt of any step may take, with a margin for its COMMIT."""
    timeouts = [0.0]
    for definition in definitions:
        for step in definition.steps:
            operations = [step.do, step.confirm, *(step.compensate.alternates if step.compensate else ())]
            operations.append(step.compensate.confirmed if step.compensate else None)
            timeouts += [operation.timeout for operation in operations if operation is not None]
    return max(timeouts) + _COMMIT_MARGIN


# The retention horizon: the start of the oldest saga whose guard rows may still be needed, from Temporal's visibility.
_RPC_TIMEOUT = timedelta(seconds=30)
_FEW_RUNS = 200
"""Closed runs that are read; each is read with its memo."""


async def retention_horizon(locator: Locator, *, before: float) -> float | None:
    """The earliest start of a saga that is open, or whose run is closed and that can be undone; None if none is before
    ``before``.

    Times are seconds since the epoch. Every open workflow in the namespace counts, whatever its type: a horizon that is
    too low only keeps rows longer. Raises RPCError if Temporal does not answer.
    """
    running = await _earliest_start(locator, list_runs(locator.temporal, "ExecutionStatus = 'Running'"), before)
    undoable = await _earliest_undoable(locator, 0.0, before)
    times = [began for began in (running, undoable) if began is not None and began < before]
    return min(times, default=None)


async def _earliest_undoable(locator: Locator, since: float, until: float) -> float | None:
    """The earliest start in [since, until) of a saga that has completed, or was terminated, and can be undone.

    Lists come newest first and may be long, so this bisects by counts and reads the oldest intervals first.
    """
    query = f"(ExecutionStatus = 'Completed' OR {ENDED_FROM_OUTSIDE})"
    within = f"{query} AND StartTime >= '{_iso_time(since)}' AND StartTime < '{_iso_time(until)}'"
    count = (await locator.temporal.count_workflows(within, rpc_timeout=_RPC_TIMEOUT)).count
    if count == 0:
        return None
    if count <= _FEW_RUNS or until - since < 1.0:
        return await _earliest_start(locator, _undoable_runs(locator, within), before=until)
    middle = (since + until) / 2
    earlier = await _earliest_undoable(locator, since, middle)
    return earlier if earlier is not None else await _earliest_undoable(locator, middle, until)


async def _earliest_start(locator: Locator, runs: AsyncIterator[RunInfo], before: float) -> float | None:
    """The earliest start of the sagas of these runs; None if none is before ``before``. A continued run carries the
    start of the first one in its memo, which is verified in the order of the times: few have to be.
    """
    earliest: float | None = None
    claims: list[tuple[float, RunInfo]] = []
    async for run in runs:
        began, claimed = run.start_time.timestamp(), await carried_start(run)
        if claimed is not None and claimed < before:
            claims.append((claimed, run))
        if began < before and (earliest is None or began < earliest):
            earliest = began
    for claimed, run in sorted(claims, key=lambda claim: claim[0]):
        if earliest is not None and claimed >= earliest:
            break
        is_own = locator.settings is None or run.task_queue == locator.settings.temporal.task_queue
        if await has_begun_before(locator.temporal, run, claimed, locator.keys if is_own else None):
            return claimed
    return earliest


async def _undoable_runs(locator: Locator, query: str) -> AsyncIterator[RunInfo]:
    async for run in list_runs(locator.temporal, query):
        check = may_be_continued if run.ended_from_outside else _may_be_undone
        if await check(locator, run):
            yield run


async def may_be_continued(locator: Locator, run: RunInfo) -> bool:
    """True if the saga of a terminated run of this project may have effects that nothing has undone or completed
    since: neither its undo, nor a later run of the same saga.
    """
    is_own = locator.settings is not None and run.task_queue == locator.settings.temporal.task_queue
    if not is_own or run.id.endswith(UNDO_SUFFIX) or await was_never_accepted(locator.temporal, run):
        return False
    undo = await describe_run(locator.temporal, run.id + UNDO_SUFFIX)
    if undo is not None and undo.run.ended_by_itself and undo.run.start_time >= run.start_time:
        is_signed = (await outcome_of(locator, undo.run)).is_believed
        if is_signed and not was_refused(undo.run):
            return False
    last = await describe_run(locator.temporal, run.id)
    if last is None or last.run.run_id == run.run_id or not last.run.ended_by_itself:
        return True
    described = await describe_run(locator.temporal, run.id, run.run_id)
    if described is None or last.run.workflow_type != run.workflow_type:
        return described is not None
    starts = [await root_start_of_run(locator.temporal, each, locator.keys) for each in (described, last)]
    return not same_owner(*starts)


async def _may_be_undone(locator: Locator, run: RunInfo) -> bool:
    """A run whose outcome is not signed, and not in the ledger either, may be a saga of this project that somebody else
    has closed: it keeps its rows. Runs without an outcome are not sagas. Those of another project have other keys.
    """
    claimed = await closed_view(run)
    if claimed is None:
        return False
    if locator.settings is None or run.task_queue != locator.settings.temporal.task_queue:
        return claimed.can_undo
    outcome = await outcome_of(locator, run)
    return outcome.view is None or outcome.view.can_undo


def _iso_time(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).isoformat()
