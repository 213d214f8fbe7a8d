"""The sagas of a period: how many began, how they have ended, which steps took longest, and what needs somebody.

Open sagas and those that were closed from outside are counted by Temporal; the others by the ledger, with one statement
for each question, or without a ledger by Temporal as well, as far as its visibility store goes.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from saga_activities.ledger.records import OutcomeCount
from saga_workers.location.locator import Locator
from saga_workers.temporal.saga_runs import was_refused
from saga_workers.temporal.temporal_runs import RunInfo, describe_run, namespace_retention
from saga_workers.views.given_up import read_unserved
from saga_workers.views.held_counts import HeldCounts, count_held
from saga_workers.views.parked import group_parked, read_parked
from saga_workers.views.saga_list import SagaFilter, list_saga_runs, query_sagas, visibility_query
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import SagaView, StepView, ViewState
from sagas.protocol.standing_pause import StandingPause
from sagas.text.shell import saga_command
from sagas.text.shortening import counted

MAX_NAMES = 200
"""Names of sagas about which Temporal is asked."""

SLOWEST_SAGAS = 200
"""Sagas whose steps are read: those that took longest."""

CLOSED_RUNS = 500
"""Runs of each name and state that were closed from outside: of the newest it is looked up if they were resumed."""

SLOWEST_STEPS = 10
_CONCURRENCY = 16
_RPC_TIMEOUT = timedelta(seconds=30)

_FROM_OUTSIDE: tuple[ViewState, ...] = ("TERMINATED", "FAILED")
"""Final states in which a saga writes no row."""

_BY_ITSELF: tuple[ViewState, ...] = ("COMPLETED", "COMPENSATED", "RESIDUE")
STATE_COLUMNS = (*_BY_ITSELF, *_FROM_OUTSIDE)


@dataclass(slots=True)
class SagaCount:
    """The sagas of one name. ``states``: the final ones. ``mean_seconds``, ``longest_seconds``: of those that have
    ended by themselves; None if that is not known.
    """

    saga: str
    open: int = 0
    states: dict[str, int] = field(default_factory=dict)
    mean_seconds: float | None = None
    longest_seconds: float | None = None

    @property
    def started(self) -> int:
        return self.open + sum(self.states.values())

    def to_json(self) -> dict[str, Any]:
        return {"saga": self.saga, "started": self.started, **asdict(self)}


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step in the sagas that were read. ``saga_id``: the one in which it took longest."""

    saga: str
    step: str
    count: int
    mean_seconds: float
    longest_seconds: float
    attempts: int
    saga_id: str


@dataclass(frozen=True, slots=True)
class PeriodReport:
    """``source``: where the outcomes are from. ``slowest_steps`` of ``sagas_read`` sagas, ``residue``: the newest ones.
    ``holds``: the pauses, and the circuit breakers that are open now. ``held``: the sagas that wait for
    these, and those that are paused one by one. ``parked_left_out``: the words about the sagas that a limit has left
    out of ``parked``. ``unserved``: the sagas that their event starts no more. ``unknown``: sentences about what the
    source cannot tell.
    """

    since: datetime
    until: datetime
    saga: str | None
    source: str
    sagas: Sequence[SagaCount]
    sagas_read: int
    slowest_steps: Sequence[StepTimes]
    parked: Sequence[Mapping[str, Any]]
    residue: Sequence[SagaView]
    unknown: Sequence[str]
    holds: Sequence[StandingPause] = ()
    held: HeldCounts = field(default_factory=HeldCounts)
    parked_left_out: str | None = None
    unserved: Sequence[SagaView] = ()

    def total(self, state: str) -> int:
        return sum(count.states.get(state, 0) for count in self.sagas)

    def to_json(self) -> dict[str, Any]:
        return {
            "since": self.since.isoformat(),
            "until": self.until.isoformat(),
            "saga": self.saga,
            "source": self.source,
            "sagas": [count.to_json() for count in self.sagas],
            "sagas_read": self.sagas_read,
            "slowest_steps": [asdict(step) for step in self.slowest_steps],
            "parked": list(self.parked),
            "parked_left_out": self.parked_left_out,
            "residue": [
                {
                    "id": view.id,
                    "saga": view.saga,
                    "ended_at": view.ended_at,
                    "residue": [effect.to_json() for effect in view.residue],
                    "command": saga_command("show", view.id),
                }
                for view in self.residue
            ],
            "unserved": [
                {
                    "id": view.id,
                    "saga": view.saga,
                    "ended_at": view.ended_at,
                    "why": view.redelivery and view.redelivery.ended,
                    "command": saga_command("show", view.id),
                }
                for view in self.unserved
            ],
            "holds": [
                {**hold.to_json(), "sagas": self.held.by_order.get(hold.order, 0), "command": hold.resume_command}
                for hold in self.holds
            ],
            "paused_one_by_one": self.held.one_by_one,
            "unknown": list(self.unknown),
        }


async def read_report(
    locator: Locator, criteria: SagaFilter, definitions: Collection[str], until: datetime, *, limit: int = 100
) -> PeriodReport:
    """The sagas that began at ``criteria.since`` or later; ``criteria.saga``: only those of this name.

    ``definitions``: the names in the project. ``limit``: of the sagas that are listed as parked, and of those with a
    residue. Raises LedgerUnavailable, UsageError, RPCError.
    """
    since, saga, ledger = criteria.since, criteria.saga, locator.ledger
    assert since is not None
    outcomes: list[OutcomeCount] = []
    members: dict[str, int] = {}
    views: list[SagaView] = []
    if ledger.configured:
        outcomes = await ledger.outcomes(since, saga)
        members = await ledger.open_members(since, saga)
        views = [row.view for row in await ledger.slowest(since, saga, SLOWEST_SAGAS)]
    names = sorted({*definitions, *(row.saga for row in outcomes), *members} if saga is None else {saga})
    states = _FROM_OUTSIDE if ledger.configured else STATE_COLUMNS
    counts = await _count_in_temporal(locator, criteria, names[:MAX_NAMES], states)
    for name, count in members.items():
        counts.setdefault(name, SagaCount(name)).open += count
    _add_outcomes(counts, outcomes)
    parked = await read_parked(locator, replace(criteria, since=None), nested=True, limit=limit)
    holds = [*await ledger.pauses(), *await ledger.open_breakers()] if ledger.configured else []
    residue = [view async for view in query_sagas(locator, replace(criteria, states=("RESIDUE",)), limit=limit)]
    return PeriodReport(
        since,
        until,
        saga,
        "ledger" if ledger.configured else "temporal",
        [count for _, count in sorted(counts.items()) if count.started],
        len(views),
        slowest_steps(views),
        group_parked(parked.operations),
        residue,
        [*await _unknown(locator, since, until, names), *_unreachable(parked.unreachable)],
        holds,
        await count_held(locator.temporal, replace(criteria, since=None), [hold.order for hold in holds]),
        parked.left_out,
        await read_unserved(locator, criteria, limit),
    )


async def _count_in_temporal(
    locator: Locator, criteria: SagaFilter, names: Sequence[str], states: Sequence[str]
) -> dict[str, SagaCount]:
    """The open sagas of these names, and those in these states."""
    gate = asyncio.Semaphore(_CONCURRENCY)

    async def count(asked: SagaFilter) -> int:
        async with gate:
            answer = await locator.temporal.count_workflows(visibility_query(asked), rpc_timeout=_RPC_TIMEOUT)
            return answer.count

    async def count_saga(name: str) -> SagaCount:
        asked = replace(criteria, saga=name)
        still_open, *ended = await asyncio.gather(
            count(replace(asked, where="ExecutionStatus = 'Running'")),
            *(count(replace(asked, states=(state,))) for state in states),
        )
        for index, state in enumerate(states):
            if ended[index] and state in _FROM_OUTSIDE:
                superseded = await _count_superseded(locator, replace(asked, states=(state,)), gate)
                ended[index] = max(ended[index] - superseded, 0)
        return SagaCount(
            name, still_open, {state: number for state, number in zip(states, ended, strict=True) if number}
        )

    return {counted.saga: counted for counted in await asyncio.gather(*map(count_saga, names))}


async def _count_superseded(locator: Locator, closed: SagaFilter, gate: asyncio.Semaphore) -> int:
    """How many of these runs do not count, as another run, or a row of the ledger, counts for the same saga.

    A saga that was closed from outside is resumed by another run of its id, or undone by one of its own. Any client may
    start a run with the id of an undo: one that undoes no saga does not count at all.
    """
    temporal = locator.temporal

    async def is_superseded(run: RunInfo) -> bool:
        async with gate:
            last = await describe_run(temporal, run.id)
            if last is not None and last.run.run_id != run.run_id:
                return True
            if not run.id.endswith(UNDO_SUFFIX):
                undo = await locator.undo_of(run)
                return undo is not None and not was_refused(undo.run)
            undone = await describe_run(temporal, run.id.removesuffix(UNDO_SUFFIX))
            if undone is not None:
                undo = await locator.undo_of(undone.run)
                if undo is None or undo.run.run_id != run.run_id:
                    return True
        return locator.ledger.configured and undone is not None and not undone.run.ended_from_outside

    runs: list[RunInfo] = []
    async for run in list_saga_runs(temporal, closed):
        runs.append(run)
        if len(runs) == CLOSED_RUNS:
            break
    return sum(await asyncio.gather(*map(is_superseded, runs)))


def _add_outcomes(counts: dict[str, SagaCount], outcomes: Sequence[OutcomeCount]) -> None:
    of_saga: dict[str, list[OutcomeCount]] = collections.defaultdict(list)
    for outcome in outcomes:
        of_saga[outcome.saga].append(outcome)
    for name, rows in of_saga.items():
        count = counts.setdefault(name, SagaCount(name))
        for row in rows:
            count.states[row.state] = count.states.get(row.state, 0) + row.count
        count.mean_seconds = round(sum(row.seconds for row in rows) / sum(row.count for row in rows), 3)
        count.longest_seconds = round(max(row.longest for row in rows), 3)


def slowest_steps(views: Sequence[SagaView]) -> list[StepTimes]:
    """The steps with the longest times from their first attempt to the end of their last one."""
    times: dict[tuple[str, str], list[tuple[float, int, str]]] = collections.defaultdict(list)
    for view in views:
        for step in view.steps:
            if (seconds := _seconds(step)) is not None:
                times[view.saga, step.step].append((seconds, step.attempts or 0, view.id))
    steps = [
        StepTimes(
            saga,
            step,
            len(rows),
            round(sum(seconds for seconds, _, _ in rows) / len(rows), 3),
            round(max(rows)[0], 3),
            sum(attempts for _, attempts, _ in rows),
            max(rows)[2],
        )
        for (saga, step), rows in times.items()
    ]
    return sorted(steps, key=lambda step: (-step.longest_seconds, step.saga, step.step))[:SLOWEST_STEPS]


def _seconds(step: StepView) -> float | None:
    if step.started_at is None or step.ended_at is None:
        return None
    try:
        return (datetime.fromisoformat(step.ended_at) - datetime.fromisoformat(step.started_at)).total_seconds()
    except (ValueError, TypeError):
        return None  # of a worker that is not of this engine


async def _unknown(locator: Locator, since: datetime, until: datetime, names: Sequence[str]) -> list[str]:
    sentences = []
    if len(names) > MAX_NAMES:
        sentences.append(f"open sagas of {len(names) - MAX_NAMES} more names are not counted; use --saga")
    if locator.ledger.configured:
        return sentences
    sentences += [
        "how long sagas and their steps took: only a ledger keeps that",
        "sagas of bulk workflows, which have no run of their own",
        "which runs are undos of completed sagas: each counts as one more saga",
    ]
    kept = await namespace_retention(locator.temporal)
    if until - since > timedelta(seconds=kept):
        days = counted(round(kept / 86400), "day")
        sentences.append(f"sagas that ended more than {days} ago: Temporal has deleted their runs")
    return sentences


def _unreachable(unreachable: Mapping[str, str]) -> list[str]:
    if not unreachable:
        return []
    why = next(iter(unreachable.values()))
    return [f"what is parked in {counted(len(unreachable), 'saga')} that could not be queried: {why}"]
