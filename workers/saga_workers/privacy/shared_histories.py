"""The histories of the bulk workflows that were given a saga: other sagas share them, so none is deleted for one saga.

The ledger has only the bulk workflow in which a saga has ended, and a start that found the saga in place, or that was
refused, has given its input to one more. So each bulk workflow that Temporal lists is asked for the ids in its input.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client as Temporal

from saga_workers.privacy.histories import UNSEARCHED, read_traces
from saga_workers.privacy.places import ForgottenPlace
from saga_workers.temporal.foreign_payloads import UNREADABLE_VALUE, read_single_payload
from saga_workers.temporal.run_history import start_of_run
from saga_workers.temporal.temporal_runs import RunInfo, describe_run, list_runs_below
from sagas.definition.model import Definition
from sagas.definition.sensitivity import sensitive_values
from sagas.portions import in_portions
from sagas.protocol.payloads import BULK_MEMO, BULK_PREFIX
from sagas.text.shortening import counted

_AT_ONCE = 8
_PLACE = "histories of bulk workflows"


@dataclass(frozen=True, slots=True)
class GivenStart:
    """A saga in the input of a bulk workflow."""

    run: RunInfo
    saga: str
    input: Any


@dataclass(frozen=True, slots=True)
class SharedRuns:
    """The bulk workflows that were given one saga. ``unreadable``: those of which nobody can tell, as their input
    cannot be read here.
    """

    given: Sequence[GivenStart]
    unreadable: Sequence[RunInfo]

    def sensitive_values(self, definitions: Mapping[str, Definition]) -> frozenset[str] | None:
        """The sensitive values of these inputs; None if one of the definitions is not there."""
        if any(start.saga not in definitions for start in self.given):
            return None
        values = (sensitive_values(definitions[start.saga].input, start.input) for start in self.given)
        return frozenset[str]().union(*values)


async def shared_runs(
    temporal: Temporal, saga_id: str, saga: str | None, *, unlisted: Collection[str] = (), queue: str | None = None
) -> SharedRuns:
    """Find the bulk workflows that were given this saga.

    ``saga``: only those that were started for this definition; None: all. ``unlisted``: ids of bulk workflows that
    Temporal may not list yet, to ask for directly. ``queue``: only those on this task queue.
    """
    start = BULK_PREFIX if saga is None else f"{BULK_PREFIX}{saga}-"
    runs = [run async for run in list_runs_below(temporal, start)]
    for id in sorted(set(unlisted) - {run.id for run in runs}):
        described = await describe_run(temporal, id)
        runs += [] if described is None else [described.run]
    given: list[GivenStart] = []
    unreadable: list[RunInfo] = []
    for part in in_portions([run for run in runs if queue in (None, run.task_queue)], _AT_ONCE):
        for run, starts in zip(part, await asyncio.gather(*(_starts(temporal, run) for run in part)), strict=True):
            unreadable += [run] if starts is None else []
            given += [starts[saga_id]] if starts and saga_id in starts else []
    return SharedRuns(given, unreadable)


async def departed_from(runs: Sequence[RunInfo]) -> set[str]:
    """The bulk workflows that these runs of one saga say they have left."""
    left = [(await run.memo()).get(BULK_MEMO) for run in runs if BULK_MEMO in run.raw.memo.fields]
    return {id for id in left if isinstance(id, str)}


async def shared_histories(
    temporal: Temporal, shared: SharedRuns, sensitive: frozenset[str] | None
) -> list[ForgottenPlace]:
    """The places of these bulk workflows; none if there are none."""
    runs = [start.run for start in shared.given]
    sure = [await _place(temporal, runs, sensitive, "")] if runs else []
    doubtful = [await _place(temporal, shared.unreadable, sensitive, "perhaps ")] if shared.unreadable else []
    return [*sure, *(place for place in doubtful if place.status == "stays")]


async def _starts(temporal: Temporal, run: RunInfo) -> Mapping[str, GivenStart] | None:
    """The sagas that a bulk workflow was given, by their ids; None if its input cannot be read here."""
    started = await start_of_run(temporal, run.id, run.run_id)
    if started is None:
        return {}  # its history is deleted
    try:
        request: Any = await read_single_payload(started.input.payloads, run.converter)
        return {row[0]: GivenStart(run, request["saga"], row[1]) for row in request["sagas"]}
    except (*UNREADABLE_VALUE, KeyError, TypeError, IndexError):
        return None


async def _place(
    temporal: Temporal, runs: Sequence[RunInfo], sensitive: frozenset[str] | None, doubt: str
) -> ForgottenPlace:
    traces = await read_traces(temporal, runs, sensitive)
    names = ", ".join(sorted({run.id for run in runs}))
    if not traces.exist:
        return ForgottenPlace(_PLACE, "nothing", f"no such value in {names}")
    why = f"{doubt}in {counted(len(runs), 'history', 'histories')} that other sagas share, of {names}, "
    if traces.are_encrypted:
        why += f"encrypted: unreadable as soon as the key {traces.key_names} of [codec] exists no more"
    else:
        why += traces.clear
    why += "; --delete-run does not delete them, the retention of the namespace does"
    return ForgottenPlace(_PLACE, "stays", why + (UNSEARCHED if sensitive is None and traces.are_encrypted else ""))
