"""The checks of `saga doctor` for sagas that will not end by themselves, and for locks that outlive their saga."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from temporalio.client import Client
from temporalio.service import RPCError

from saga_workers.doctor.doctor_result import DoctorResult
from saga_workers.location.locator import using_locator
from saga_workers.stuck.database_traces import (
    TIMEOUT,
    DatabaseTraces,
    Unanswered,
    read_database_traces,
    unanswered_message,
)
from saga_workers.stuck.kept_locks import kept_locks
from saga_workers.stuck.stuck_sagas import list_stuck, remedy
from saga_workers.views.locks import OpenRequest, list_orphans
from saga_workers.views.saga_list import SagaFilter
from sagas.errors import SagaError
from sagas.project import Project
from sagas.protocol.saga_view import SagaView
from sagas.settings import Settings
from sagas.text.shell import saga_command

_MAX_LISTED = 2_000
_MAX_NAMED = 10
_MAX_JUDGED = 20
"""Owners of locks whose effects are looked up; `saga reconcile --repair` looks each one up before it releases."""


async def check_sagas(
    client: Client, project: Project, *, databases: bool = True, on_progress: Callable[[str], None] = lambda _: None
) -> list[DoctorResult]:
    """A result for each reason why sagas are stuck; they are those of `saga list --stuck`.

    ``databases``: all databases of the project can be read. What cannot be read, or not in time, has a result of its
    own, so it hides nothing else.
    """
    settings = project.settings
    traces = DatabaseTraces()
    unchecked: list[DoctorResult] = []
    stuck: list[SagaView] = []
    async with using_locator(client, settings) as locator:
        if databases:
            traces = await read_database_traces(
                locator, project, lambda check, error: unchecked.append(_unanswered(check, error))
            )
        criteria = SagaFilter(task_queue=settings.temporal.task_queue)
        try:
            async for view in list_stuck(
                locator,
                criteria,
                limit=_MAX_LISTED,
                databases=traces,
                on_progress=lambda read: on_progress(f"sagas: {read} runs read"),
            ):
                stuck.append(view)
        except (SagaError, RPCError, TimeoutError) as error:
            unchecked.append(_unanswered("sagas", error))
    if len(stuck) == _MAX_LISTED:
        more = f"more than {_MAX_LISTED} are stuck; the others were not looked at"
        unchecked.append(DoctorResult("sagas", False, more, saga_command("list", stuck=True)))
    if not stuck and not unchecked:
        return [_nothing_stuck(traces.complete)]
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


async def check_locks(client: Client, settings: Settings) -> list[DoctorResult]:
    """Locks that outlive their saga, and those of sagas without a run whose effects are still there."""
    try:
        async with asyncio.timeout(TIMEOUT), using_locator(client, settings) as locator:
            requests = await list_orphans(locator, settings)
            judged = {request.owner: request for request in reversed(requests[:_MAX_JUDGED])}
            reasons = await asyncio.gather(*(kept_locks(locator, settings, owner) for owner in judged))
    except (SagaError, RPCError, TimeoutError) as error:
        return [_unanswered("locks", error)]
    if not requests:
        return [DoctorResult("locks", True, "each belongs to a running saga")]
    kept = {owner: reason for owner, reason in zip(judged, reasons, strict=True) if reason is not None}
    released = [request for request in requests if request.owner not in kept]
    results = []
    if released:
        what = f"{released[0].owner} is over and {_holding(released[0])}{_and_more(released)}"
        results.append(DoctorResult("locks", False, what, saga_command("reconcile", repair=True)))
    if kept:
        owner, reason = next(iter(kept.items()))
        what = f"no run of {owner} is open, and it {_holding(judged[owner])}: {reason.why}{_and_more(list(kept))}"
        results.append(DoctorResult("locks", False, what, reason.command))
    return results


def _holding(request: OpenRequest) -> str:
    return f"{'waits for' if request.waits else 'holds'} {', '.join(request.keys[:3])}"


def _and_more(problems: Sequence[object]) -> str:
    return f", and {len(problems) - 1} more" if len(problems) > 1 else ""


async def check_late_replies(client: Client, settings: Settings) -> DoctorResult:
    """Commands that are done although their saga has ended without them."""
    from saga_workers.reconcile.late_replies import latest_late_replies

    try:
        async with asyncio.timeout(TIMEOUT), using_locator(client, settings) as locator:
            replies = await latest_late_replies(locator, settings)
    except (SagaError, RPCError, TimeoutError) as error:
        return _unanswered("replies", error)
    if not replies:
        return DoctorResult("replies", True, "no command is done whose saga has ended without it")
    late = replies[0]
    what = f"{late.saga_id} is {late.state} without {late.step}, and its participant has replied that it is done"
    return DoctorResult("replies", False, what + _and_more(replies), saga_command("reconcile", late.saga_id or ""))


def _unanswered(check: str, error: Unanswered) -> DoctorResult:
    help = error.help if isinstance(error, SagaError) else None
    return DoctorResult(check, False, unanswered_message(error), help)
