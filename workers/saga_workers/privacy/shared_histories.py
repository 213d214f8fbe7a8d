"""The histories of the bulk workflows that were given a saga: other sagas share them, so none is deleted for one saga.

Nothing records the bulk workflow of a saga that has ended, and a start that found the saga in place has given its
input to one more. So each bulk workflow of the definition that Temporal still has is asked for the ids in its input.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from temporalio.client import Client as Temporal

from saga_workers.privacy.histories import UNSEARCHED, read_traces
from saga_workers.privacy.places import ForgottenPlace
from saga_workers.temporal.foreign_payloads import UNREADABLE_VALUE, read_single_payload
from saga_workers.temporal.run_history import start_of_run
from saga_workers.temporal.temporal_runs import RunInfo, list_runs
from saga_workers.temporal.visibility_filter import prefix_condition
from sagas.portions import in_portions
from sagas.protocol.payloads import BULK_PREFIX
from sagas.text.shortening import counted, join_names

_AT_ONCE = 8
_PLACE = "histories of bulk workflows"


async def shared_histories(
    temporal: Temporal, saga: str, saga_id: str, sensitive: frozenset[str] | None
) -> list[ForgottenPlace]:
    """The place of the bulk workflows that were given this saga, or may have been; none if there are none."""
    condition = prefix_condition("WorkflowId", f"{BULK_PREFIX}{saga}-")
    assert condition is not None
    listed = [run async for run in list_runs(temporal, condition)]
    runs: list[RunInfo] = []
    unknown: list[RunInfo] = []
    for part in in_portions(listed, _AT_ONCE):
        given = await asyncio.gather(*(_given_ids(temporal, run) for run in part))
        runs += [run for run, ids in zip(part, given, strict=True) if ids is not None and saga_id in ids]
        unknown += [run for run, ids in zip(part, given, strict=True) if ids is None]
    places = [await _place(temporal, each, sensitive, of) for each, of in ((runs, ""), (unknown, "perhaps ")) if each]
    return [place for place in places if place is not None]


async def _given_ids(temporal: Temporal, run: RunInfo) -> Collection[str] | None:
    """The ids of the sagas that a bulk workflow was given; None if its input cannot be read here."""
    started = await start_of_run(temporal, run.id, run.run_id)
    if started is None:
        return ()  # its history is deleted
    try:
        request: Any = await read_single_payload(started.input.payloads, run.converter)
        return {row[0] for row in request["sagas"]}
    except (*UNREADABLE_VALUE, KeyError, TypeError, IndexError):
        return None


async def _place(
    temporal: Temporal, runs: Sequence[RunInfo], sensitive: frozenset[str] | None, doubt: str
) -> ForgottenPlace | None:
    traces = await read_traces(temporal, runs, sensitive)
    names = join_names(sorted({run.id for run in runs}), 5)
    if not traces.exist:
        return None if doubt else ForgottenPlace(_PLACE, "nothing", f"no such value in {names}")
    why = f"{doubt}in {counted(len(runs), 'history', 'histories')} that other sagas share, of {names}, "
    if traces.are_encrypted:
        why += f"encrypted: unreadable as soon as the key {traces.key_names} of [codec] exists no more"
    else:
        why += traces.clear
    why += "; --delete-run does not delete them, the retention of the namespace does"
    return ForgottenPlace(_PLACE, "stays", why + (UNSEARCHED if sensitive is None and traces.are_encrypted else ""))
