"""The checks of `saga doctor` for sagas that will not end by themselves, and for locks that outlive their saga."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from temporalio.client import Client
from temporalio.service import RPCError

from saga_workers.doctor.doctor_result import DoctorResult
from saga_workers.location.deleted_runs import DeletedRun, find_deleted_runs
from saga_workers.location.guard_scan import GuardScan
from saga_workers.location.locator import using_locator
from saga_workers.views.locks import list_orphans
from saga_workers.views.prepared import stuck_prepared
from saga_workers.views.saga_list import SagaFilter
from saga_workers.views.stuck import list_stuck, remedy
from sagas.errors import SagaError
from sagas.protocol.saga_view import SagaView
from sagas.settings import Settings
from sagas.settings.project import Project
from sagas.text.shell import saga_command

_TIMEOUT = 30.0
_MAX_LISTED = 200
_MAX_NAMED = 10


async def check_sagas(client: Client, project: Project, *, databases: bool = True) -> list[DoctorResult]:
    """A result for each reason why sagas are stuck; they are those of `saga list --stuck`.

    ``databases``: all databases of the project can be read.
    """
    settings = project.settings
    scan = GuardScan(settings)
    deleted: Sequence[DeletedRun] = ()
    unchecked: list[DoctorResult] = []
    stuck: list[SagaView] = []
    try:
        async with asyncio.timeout(_TIMEOUT), using_locator(client, settings) as locator:
            prepared = {}
            if databases:
                try:
                    deleted = await find_deleted_runs(locator, settings, scan=scan)
                    prepared = await stuck_prepared(project)
                except SagaError as error:
                    unchecked.append(DoctorResult("sagas", False, error.message, error.help))
            criteria = SagaFilter(task_queue=settings.temporal.task_queue)
            async for view in list_stuck(locator, criteria, limit=_MAX_LISTED, prepared=prepared, deleted=deleted):
                stuck.append(view)
    except (SagaError, RPCError, TimeoutError) as error:
        unchecked.append(_unanswered("sagas", error))
    if not stuck and not unchecked:
        return [_nothing_stuck(databases and scan.complete)]
    return [*_by_reason(stuck), *unchecked]


def _nothing_stuck(complete: bool) -> DoctorResult:
    if complete:
        return DoctorResult("sagas", True, "none is stuck, and each with open effects has a run")
    what = "none is stuck; the guards were not read to their end, so a saga without a run may have open effects"
    return DoctorResult("sagas", None, what, saga_command("reconcile"))


def _by_reason(stuck: Sequence[SagaView]) -> Iterator[DoctorResult]:
    """One result for sagas with the same reasons and the same kind of remedy."""
    groups: dict[str, list[SagaView]] = {}
    for view in stuck:
        groups.setdefault("; ".join(view.stuck or ()).replace(view.id, "ID"), []).append(view)
    for index, views in enumerate(groups.values()):
        if index == _MAX_NAMED:
            what = f"{len(groups) - _MAX_NAMED} more reasons"
            yield DoctorResult("sagas", False, what, saga_command("list", stuck=True))
            return
        more = f" and {len(views) - 1} more" if len(views) > 1 else ""
        yield DoctorResult("sagas", False, f"{views[0].id}{more}: {'; '.join(views[0].stuck or ())}", remedy(views[0]))


async def check_locks(client: Client, settings: Settings) -> DoctorResult:
    """Locks that outlive their saga."""
    try:
        async with asyncio.timeout(15), using_locator(client, settings) as locator:
            left = await list_orphans(locator, settings)
    except (SagaError, RPCError, TimeoutError) as error:
        return _unanswered("locks", error)
    if not left:
        return DoctorResult("locks", True, "each belongs to a running saga")
    first = left[0]
    what = f"{first.owner} is over and {'waits for' if first.waits else 'holds'} {', '.join(first.keys[:3])}"
    more = f", and {len(left) - 1} more" if len(left) > 1 else ""
    return DoctorResult("locks", False, what + more, saga_command("reconcile", repair=True))


def _unanswered(check: str, error: SagaError | RPCError | TimeoutError) -> DoctorResult:
    if isinstance(error, TimeoutError):
        return DoctorResult(check, False, "the database or the server does not answer in time")
    return DoctorResult(check, False, error.message, error.help if isinstance(error, SagaError) else None)
