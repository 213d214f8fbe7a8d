"""The sagas with open effects that no run will end, and that `saga resume` continues."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from saga_workers.location.locator import Locator
from saga_workers.location.traces import open_origin, recorded_effects
from saga_workers.stuck.guard_scan import GuardScan
from saga_workers.stuck.open_sagas import find_left_members, find_lost
from saga_workers.stuck.verdict import verdict_of
from saga_workers.temporal.temporal_runs import ENDED_FROM_OUTSIDE, RunInfo
from saga_workers.views.saga_list import SagaFilter, list_saga_runs
from sagas.machine.remaining_calls import RemainingCall, calls_of_definition
from sagas.project import Project
from sagas.protocol.payloads import UNDO_SUFFIX


@dataclass(frozen=True, slots=True)
class DeletedSaga:
    """A saga of which Temporal has no run any more. ``problem``: why this build cannot start it again; None if it can.

    ``calls``: those of its whole definition, because it begins anew.
    """

    saga: str
    id: str
    problem: str | None
    calls: Sequence[RemainingCall] = ()


async def terminated_runs(locator: Locator, queue: str) -> AsyncIterator[RunInfo]:
    """The newest runs of sagas, or of their undos, that were closed from outside. Raises RPCError."""
    seen: set[str] = set()
    async for run in list_saga_runs(locator.temporal, SagaFilter(where=ENDED_FROM_OUTSIDE, task_queue=queue)):
        saga_id = run.id.removesuffix(UNDO_SUFFIX)
        if saga_id in seen:
            continue
        seen.add(saga_id)
        location = await locator.within_temporal().locate(saga_id)
        last = location.undo or location.run
        if last is not None and verdict_of(location) == "terminated":
            yield last.run


async def closed_bulk_workflows(locator: Locator, queue: str) -> dict[str, tuple[RunInfo, set[str]]]:
    """The bulk workflows of the queue that Temporal has closed before the end of the sagas with these ids, by run id.

    Raises LedgerUnavailable.
    """
    closed: dict[str, tuple[RunInfo, set[str]]] = {}
    for member in await find_left_members(locator):
        if member.bulk is not None and member.bulk.run.task_queue == queue:
            run = member.bulk.run
            closed.setdefault(run.run_id, (run, set()))[1].add(member.claim.saga_id)
    return closed


async def deleted_sagas(locator: Locator, project: Project) -> AsyncIterator[DeletedSaga]:
    """The sagas without a run whose effects are open in the guards; one that is nested is started by its parent.

    Raises SagaError, RPCError.
    """
    scan, seen = GuardScan(project.settings), set[str]()
    while True:
        for deleted in await find_lost(locator, project.settings, scan=scan):
            if deleted.verdict == "deleted" and deleted.parent is None and deleted.saga_id not in seen:
                seen.add(deleted.saga_id)
                if (saga := await _deleted_saga(project, deleted.saga_id)) is not None:
                    yield saga
        if scan.complete:
            return


async def _deleted_saga(project: Project, saga_id: str) -> DeletedSaga | None:
    """The saga, with what keeps this build from starting it; None if no row tells what it was started with."""
    effects = await recorded_effects(project.settings, saga_id)
    origin = open_origin(effects) or next((effect.origin for effect in effects if effect.origin is not None), None)
    if origin is None:
        return None
    definition = project.definitions.get(origin.saga)
    if definition is None:
        problem = "this build has no valid definition of it, with which `saga resume` would start these again"
    elif definition.digest != origin.digest:
        problem = f"`saga resume` needs the definition {origin.digest} with which these were started: keep its file"
    else:
        return DeletedSaga(origin.saga, saga_id, None, calls_of_definition(definition))
    return DeletedSaga(origin.saga, saga_id, problem)
