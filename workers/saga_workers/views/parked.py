"""Parked operations of all sagas, listed one by one or grouped by cause."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from temporalio.client import Client as Temporal

from saga_workers.location.locator import Locator
from saga_workers.temporal.visibility_filter import begun_condition, has_literal, quote
from saga_workers.views.oldest_runs import BegunRuns, oldest_begun_runs
from saga_workers.views.saga_counts import count_runs
from saga_workers.views.saga_list import SagaFilter, ledger_views, list_saga_runs
from saga_workers.views.saga_view import read_view
from sagas.errors import UsageError
from sagas.protocol.outcomes import OTHER_ARGUMENTS
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import ParkedView, SagaView
from sagas.text.shell import saga_command
from sagas.text.shortening import counted

_CONCURRENCY = 16
_MAY_BE_PARKED = (
    "(SagaState IN ('PARKED', 'COMPENSATING', 'COMMITTED') OR (SagaState = 'RUNNING' AND SagaStep IS NOT NULL))"
)
"""Sagas in which something can be parked while the rest goes on, and those that a nested saga blocks or has blocked. A
saga that is merely running is queried with ``include_running`` only.
"""


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """One parked operation. ``decisions`` are those that are possible for it, ``commands`` make them, the best first.

    ``source``: the ledger if Temporal no longer has the run; then there are no decisions. ``rows``: what the view says
    about the rows of an automatic compensation.
    """

    saga: str
    saga_id: str
    step: str
    op: str
    error: str
    since: str
    decisions: tuple[str, ...]
    commands: tuple[str, ...] = ()
    source: Literal["ledger"] | None = None
    rows: Mapping[str, Any] = field(default_factory=dict)

    @property
    def definition_step(self) -> str:
        """The step of the definition: the entry id without the index of a `for_each` item."""
        return self.step.partition("#")[0]


@dataclass(frozen=True, slots=True)
class ParkedList:
    """Parked operations. ``unreachable``: sagas that could not be queried, each with the reason. ``asked``: the number
    of listed sagas that were queried, ``omitted``: of those that were not, because of a limit. ``more_in_ledger``: the
    limit has also left out sagas that only the ledger has. ``not_begun``: runs that claim a state which no worker has
    given them; ``all_looked_at`` is False if there were so many that runs which started later were not looked at.
    """

    operations: tuple[ParkedRow, ...]
    unreachable: Mapping[str, str]
    omitted: int = 0
    asked: int = 0
    more_in_ledger: bool = False
    not_begun: int = 0
    all_looked_at: bool = True

    @property
    def left_out(self) -> str | None:
        """The words about the sagas that a ``--limit`` has left out, and about runs that only claim to wait; None if
        nothing is left out.
        """
        more = "; use --limit N for more" if self.all_looked_at else ""
        parts: list[str] = []
        if self.omitted:
            total = self.asked + self.omitted
            parts.append(f"the first {self.asked:,} of {total:,} sagas that may wait, those that started first{more}")
        elif self.more_in_ledger:
            parts.append(f"not all of those that only the ledger has{more}")
        if self.not_begun:
            runs = counted(self.not_begun, "run")
            parts.append(f"without {runs} whose start claims that they wait, and that no worker has begun")
        if not self.all_looked_at:
            parts.append("after so many of these, nothing that started later was looked at: terminate them")
        return "; ".join(parts) or None


async def read_parked(
    locator: Locator,
    criteria: SagaFilter,
    *,
    include_running: bool = False,
    nested: bool = False,
    limit: int | None = None,
) -> ParkedList:
    """Query the sagas that may have something parked (``include_running``: all running ones).

    With ``nested``, operations parked in a nested saga that blocks a listed one are included, even if the filter
    excludes the nested saga. The ledger adds those that were parked when Temporal lost them. ``limit``: the number of
    sagas that are queried at most, those first that are parked as a whole, and of these the oldest; then not all runs
    are listed either. Raises UsageError if a filter is invalid, LedgerUnavailable.
    """
    where = "ExecutionStatus = 'Running'" + ("" if include_running else f" AND {_MAY_BE_PARKED}")
    where = f"{where} AND {begun_condition()}"
    if criteria.where:
        where = f"({criteria.where}) AND {where}"
    narrowed = SagaFilter(
        criteria.saga, (), criteria.since, criteria.labels, where, criteria.task_queue, id_prefix=criteria.id_prefix
    )
    if limit is None:
        listed = [run async for run in list_saga_runs(locator.temporal, narrowed)]
        first = BegunRuns(listed, len(listed), 0, True)
    else:
        first = await _first_parked(locator.temporal, narrowed, limit)
    ids = list(dict.fromkeys(run.id.removesuffix(UNDO_SUFFIX) for run in first.runs))[:limit]
    asked = len(ids)
    gate = asyncio.Semaphore(_CONCURRENCY)

    async def ask(saga_id: str) -> SagaView:
        async with gate:
            try:
                return await read_view(locator, saga_id)
            except UsageError as error:  # it was deleted meanwhile, or is not a saga: the others are listed
                return SagaView(id=saga_id, saga="", state="RUNNING", incomplete=error.message)

    views: dict[str, SagaView] = {}
    while ids:
        views |= zip(ids, await asyncio.gather(*(ask(id) for id in ids)), strict=True)
        blocking = [child.id for id in ids for child in views[id].children if child.waits]
        ids = [id for id in dict.fromkeys(blocking) if nested and id not in views]
    lost = ledger_views(locator, replace(criteria, states=("PARKED",)), without=views)
    more_in_ledger = False
    async for view in lost:
        if limit is not None and len(views) >= limit:
            more_in_ledger = True
            break
        views[view.id] = view
    unasked = {id: view.incomplete for id, view in views.items() if view.incomplete and not view.parked}
    operations = tuple(parked_operation for view in views.values() for parked_operation in parked_operations(view))
    all_asked = limit is None or (asked < limit and first.is_complete)
    omitted = 0 if all_asked else max(0, first.total - asked)
    return ParkedList(operations, unasked, omitted, asked, more_in_ledger, first.not_begun, first.is_complete)


async def _first_parked(temporal: Temporal, criteria: SagaFilter, limit: int) -> BegunRuns:
    """At least the first ``limit`` runs that a worker has begun, those first that are parked as a whole."""
    where = f"({criteria.where}) AND SagaState = 'PARKED'"
    parked = await oldest_begun_runs(temporal, replace(criteria, where=where), limit)
    if len(parked.runs) >= limit:
        total = await count_runs(temporal, criteria) - parked.not_begun
        return replace(parked, total=max(total, parked.total))
    where = f"({criteria.where}) AND (SagaState IS NULL OR SagaState != 'PARKED')"
    others = await oldest_begun_runs(temporal, replace(criteria, where=where), limit)
    return BegunRuns(
        [*parked.runs, *others.runs],
        parked.total + others.total,
        parked.not_begun + others.not_begun,
        parked.is_complete and others.is_complete,
    )


def parked_operations(view: SagaView) -> list[ParkedRow]:
    """Return what is parked in this saga itself; a nested saga lists its own."""
    elsewhere = view.blocked_steps
    return [
        ParkedRow(
            view.saga,
            view.id,
            operation.step,
            operation.op,
            operation.why,
            operation.since,
            operation.decisions,
            operation.commands,
            view.source,
            _rows_of(operation),
        )
        for operation in view.parked
        if operation.step not in elsewhere
    ]


_ROW_FIELDS = ("system", "rows", "rows_omitted", "sql", "sql_note", "outputs", "reverted")


def _rows_of(parked: ParkedView) -> Mapping[str, Any]:
    document = parked.to_json()
    return {name: document[name] for name in _ROW_FIELDS if name in document}


def group_parked(operations: Iterable[ParkedRow]) -> list[dict[str, Any]]:
    """Groups with the same saga, step, operation and error, the largest first."""
    groups: dict[tuple[str, str, str, str, str | None], list[ParkedRow]] = {}
    for operation in operations:
        groups.setdefault(
            (operation.saga, operation.definition_step, operation.op, operation.error, operation.source), []
        ).append(operation)
    rows = [
        {
            "saga": saga,
            "step": step,
            "op": op,
            "error": why,
            "count": len(members),
            "oldest": min(member.since for member in members),
            "ids": sorted({member.saga_id for member in members}),
            "decisions": [
                decision for decision in members[0].decisions if all(decision in other.decisions for other in members)
            ],
            "command": _resolve_command(saga, step, op, why, members),
            **({} if source is None else {"source": source}),
            **(members[0].rows if len(members) == 1 else {}),
        }
        for (saga, step, op, why, source), members in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row["count"], row["oldest"]))


def _resolve_command(saga: str, step: str, op: str, why: str, members: list[ParkedRow]) -> str:
    """The command for a group: a retry of all, or what is best for the first where that would be refused."""
    first = members[0]
    if first.source is not None or why in OTHER_ARGUMENTS:  # each says there which saga has made the effect
        return saga_command("show", first.saga_id)
    may_retry = all("retry" in member.decisions for member in members)
    if len(members) == 1 or not has_literal(saga) or not may_retry:
        return first.commands[0] if first.commands else saga_command("show", first.saga_id)
    where = f"WorkflowType = {quote(saga)}"
    # Other arguments belong to one saga, a corrected definition to all of them.
    corrected = {"definition": "FILE"} if any("--definition" in command for command in first.commands) else {}
    return saga_command("resolve", step, "retry", where=where, op=op, error=why, reason="…", **corrected)
