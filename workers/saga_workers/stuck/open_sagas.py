"""Finds the sagas with open effects that no run will undo or complete, each with its verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import timedelta

from saga_activities.ledger.records import RunFilter
from saga_workers.ledger.run_ledger import SETTLE_TIME
from saga_workers.location.location import BulkMember, Location
from saga_workers.location.locator import Locator
from saga_workers.location.traces import MAX_SAGAS, effects_of_sagas, read_holdings
from saga_workers.stuck.guard_scan import MAX_SCANNED, GuardScan
from saga_workers.stuck.interrupted_undos import interrupted_undo
from saga_workers.stuck.verdict import OpenSaga, lost_saga, terminated_saga
from saga_workers.temporal.run_history import describe_bulk
from saga_workers.temporal.saga_input import UnreadableRunInput
from saga_workers.temporal.saga_runs import describe_saga_run
from saga_workers.temporal.temporal_runs import ENDED_FROM_OUTSIDE, RunDescription, RunInfo
from saga_workers.views.answering import Workers
from saga_workers.views.saga_list import SagaFilter, list_saga_runs
from saga_workers.views.saga_view import read_view
from sagas.settings import Settings

MIN_CLAIM_AGE = 60.0
"""Seconds; the claim of a saga that has just ended is deleted within this time."""

MAX_CLAIMS = 100_000

_CONCURRENCY = 16


async def find_lost(
    locator: Locator,
    settings: Settings,
    saga_id: str | None = None,
    *,
    suspects: Collection[str] = (),
    scan: GuardScan | None = None,
    portion: int = MAX_SCANNED,
) -> list[OpenSaga]:
    """The sagas with open effects that no run of them will end, or with an interrupted undo: those that hold something,
    that the ledger takes for running, or of the ``suspects``.

    With a ``scan`` also those of its next ``portion`` that have open effects alone. Raises SagaError, RPCError.
    """
    held = await read_holdings(settings, saga_id)
    others = list(suspects) if scan is None else [*suspects, *await scan.find_suspects(locator, portion)]
    if saga_id is None:
        others += await locator.ledger.oldest_single_claims(timedelta(seconds=MIN_CLAIM_AGE), MAX_SAGAS)
    held |= {id: [] for id in others if id not in held}
    gate = asyncio.Semaphore(_CONCURRENCY)

    async def locate(id: str) -> Location:
        async with gate:
            return await locator.locate(id)

    locations = await asyncio.gather(*map(locate, held))
    effects = await effects_of_sagas(settings, list(held))

    async def judge(location: Location) -> OpenSaga | None:
        async with gate:
            try:
                lost = await lost_saga(locator, location, effects[location.saga_id], held[location.saga_id])
                return lost or await interrupted_undo(locator, location, effects[location.saga_id])
            except UnreadableRunInput as error:
                return OpenSaga(location.saga_id, "unreadable", location.saga, holder=error.message, id_is_in_use=True)

    lost: dict[str, OpenSaga] = {}
    for saga in await asyncio.gather(*map(judge, locations)):
        if saga is not None:  # a missing saga may have effects of its own, and those of its nested sagas
            lost[saga.saga_id] = saga.merged_with(lost.get(saga.saga_id))
    return list(lost.values())


async def find_terminated(locator: Locator, task_queue: str, limit: int, without_effects: set[str]) -> list[OpenSaga]:
    """The sagas of the newest ``limit`` runs closed from outside that have left effects.

    ``without_effects``: the ids of runs that are known to have left none; it is brought up to date. Raises RPCError.
    """
    runs = list_saga_runs(locator.temporal, SagaFilter(where=ENDED_FROM_OUTSIDE, task_queue=task_queue))
    workers = Workers(locator.temporal, locator.keys)
    open_sagas: list[OpenSaga] = []
    harmless: set[str] = set()
    async for run in runs:
        saga = None
        if run.run_id not in without_effects and (described := await describe_newest(locator, run)) is not None:
            view = await read_view(locator.within_temporal(), run.id, workers=workers)
            saga = await terminated_saga(locator, described.run, view)
        if saga is None:
            harmless.add(run.run_id)
        else:
            open_sagas.append(saga)
        if len(open_sagas) + len(harmless) == limit:
            break
    without_effects.clear()
    without_effects |= harmless
    return open_sagas


async def describe_newest(locator: Locator, run: RunInfo) -> RunDescription | None:
    """The description of a run; None if another one has replaced it, because the visibility store lags."""
    described = await describe_saga_run(locator.temporal, run.id)
    return described if described is not None and described.run.run_id == run.run_id else None


async def describe_bulk_workflows(locator: Locator) -> dict[str, RunDescription | None]:
    """The bulk workflows that have claims, by id; None for one that Temporal does not know any more."""
    ids = await locator.ledger.bulk_ids()
    described = await asyncio.gather(*(describe_bulk(locator.temporal, id) for id in ids))
    return dict(zip(ids, described, strict=True))


async def find_left_members(
    locator: Locator, rows: RunFilter | None = None, *, limit: int = MAX_CLAIMS, saga_id: str | None = None
) -> list[BulkMember]:
    """The newest claims of bulk workflows that Temporal has closed or does not know. Raises LedgerUnavailable."""
    bulks = await describe_bulk_workflows(locator)
    closed = [id for id, bulk in bulks.items() if bulk is None or not bulk.run.running]
    claims = await locator.ledger.bulk_claims(rows or RunFilter(), limit, closed) if closed else []
    claims = [claim for claim in claims if saga_id in (None, claim.saga_id)]
    if not claims:
        return []
    await asyncio.sleep(SETTLE_TIME)
    still = await locator.ledger.claims([claim.saga_id for claim in claims])
    return [BulkMember(claim, bulks[claim.bulk_id or ""]) for claim in claims if still.get(claim.saga_id) == claim]
