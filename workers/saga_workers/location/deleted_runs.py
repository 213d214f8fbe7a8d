"""Sagas with open effects in the databases of the project, while Temporal has no run of them: it was deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from temporalio.client import Client as Temporal

from saga_workers.location.deleted_run import DeletedRun
from saga_workers.location.guard_scan import MAX_SCANNED, GuardScan
from saga_workers.location.location import Location
from saga_workers.location.locator import Locator
from saga_workers.location.traces import (
    MAX_SAGAS,
    GuardedEffect,
    guarded_effects,
    open_effects,
    open_origin,
    read_holdings,
)
from saga_workers.temporal.run_history import first_input
from saga_workers.temporal.temporal_runs import RunDescription
from sagas.definition.times import format_timestamp
from sagas.protocol.origin import Origin, same_start
from sagas.protocol.saga_view import FINAL_STATES, SagaView
from sagas.settings import Settings

_CONCURRENCY = 16

MIN_CLAIM_AGE = 60.0
"""Seconds; the claim of a saga that has just ended is deleted within this time."""


async def replaced_origin(
    temporal: Temporal, described: RunDescription, effects: Sequence[GuardedEffect], view: SagaView | None = None
) -> Origin | None:
    """The origin of the open ``effects`` of a saga, if its run was started with something else, or, by its ``view``, at
    another time.
    """
    origin = open_origin(effects)
    if origin is None or origin.parent is not None:
        return None
    if view is not None and _began_later(origin, view):
        return origin
    same = same_start(origin, described.run.workflow_type, await first_input(temporal, described))
    return None if same else origin


def _began_later(origin: Origin, view: SagaView) -> bool:
    """Return whether the saga was started again from its beginning, so that `saga.started_at` differs."""
    return view.generation == origin.generation and view.started_at != format_timestamp(origin.started_at)


async def describe_deleted_run(settings: Settings, location: Location, held: Sequence[str] = ()) -> DeletedRun | None:
    """The saga at this location, if it has no run and is not over. ``held``: what it holds; raises SagaError."""
    row = location.row
    if not location.deleted and (row is None or location.kind != "ended" or row.view.state in FINAL_STATES):
        return None
    effects = await guarded_effects(settings, location.saga_id)
    open_there = open_effects(effects)
    if not open_there:
        return None  # nothing is to be undone, so what it holds may be released
    origins = [effect.origin for effect in effects if effect.origin is not None]
    saga = row.view.saga if row is not None else origins[0].saga if origins else None
    return DeletedRun(location.saga_id, (f"open effects: {open_there}", *held), saga)


async def find_deleted_runs(
    locator: Locator,
    settings: Settings,
    saga_id: str | None = None,
    *,
    scan: GuardScan | None = None,
    portion: int = MAX_SCANNED,
) -> list[DeletedRun]:
    """The sagas that hold something, or that the ledger takes for running, and that have no run.

    With a ``scan`` also those of its next ``portion`` that have open effects alone. Raises SagaError, RPCError.
    """
    held = await read_holdings(settings, saga_id)
    if scan is not None:
        held |= {id: [] for id in await scan.find_suspects(locator, portion) if id not in held}
    if saga_id is None:
        before = datetime.now(UTC) - timedelta(seconds=MIN_CLAIM_AGE)
        for id in await locator.ledger.oldest_single_claims(before, MAX_SAGAS):
            held.setdefault(id, [])
    gate = asyncio.Semaphore(_CONCURRENCY)

    async def look(id: str) -> DeletedRun | None:
        async with gate:
            location = await locator.locate(id)
        return await describe_deleted_run(settings, location, held[id])

    deleted = await asyncio.gather(*map(look, held))
    return [saga for saga in deleted if saga is not None]
