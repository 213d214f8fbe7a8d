"""Checks a build against the sagas that are open, and those that can still be undone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from saga_workers.deploy.deploy_problems import DeployProblem, DeployProblems
from saga_workers.deploy.interrupted_sagas import closed_bulk_workflows, deleted_sagas, terminated_runs
from saga_workers.deploy.run_replays import replay_runs
from saga_workers.deploy.statement_problems import statement_checks
from saga_workers.location.locator import Locator
from saga_workers.location.verified_outcomes import state_of
from saga_workers.stuck.database_traces import unanswered_message
from saga_workers.temporal.temporal_runs import RunInfo, list_runs
from saga_workers.temporal.visibility_filter import keyword_condition
from saga_workers.temporal.visible_states import closed_view
from saga_workers.views.saga_list import SagaFilter, ledger_views, list_saga_runs
from sagas.errors import SagaError
from sagas.machine.machine import Machine
from sagas.project import Project
from sagas.protocol.payloads import BULK_WORKFLOW, UNDO_SUFFIX, unpack_state
from sagas.protocol.saga_view import SagaView
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten
from sagas.workflow.client_fields import MALFORMED

_CLAIMS_TIMEOUT = 30.0
_MAX_REASON = 300

_UNPROVEN = "its history is signed with a key that this build does not have: keep it in definition_key under [worker]"

_Item = TypeVar("_Item")


@dataclass(slots=True)
class DeployCheck:
    """The result. ``running``: open runs; ``in_bulk``: the sagas in those that are bulk workflows.

    ``resumable``: sagas with open effects that `saga resume` continues. ``is_complete`` is False if there are more runs
    and sagas than were to be ``read``. ``unread``: sagas that could not be looked for, and why. ``unchecked``:
    statements that a database cannot prepare without running them. ``unseen``: the Python actions whose SQL is not
    checked.
    """

    running: int = 0
    in_bulk: int = 0
    resumable: int = 0
    undoable: int = 0
    read: int = 0
    is_complete: bool = True
    unread: list[str] = field(default_factory=list[str])
    problems: list[DeployProblem] = field(default_factory=list[DeployProblem])
    unchecked: list[DeployProblem] = field(default_factory=list[DeployProblem])
    unseen: list[str] = field(default_factory=list[str])

    @property
    def is_good(self) -> bool:
        """True if all sagas are read, and this build and the databases can go on with them."""
        return self.is_complete and not self.unread and not self.problems

    def to_json(self) -> dict[str, Any]:
        """The JSON document of `saga check-deploy`."""
        return {
            "running": self.running,
            "in_bulk": self.in_bulk,
            "resumable": self.resumable,
            "undoable": self.undoable,
            "complete": self.is_complete and not self.unread,
            "unread": self.unread,
            "problems": [problem.to_json() for problem in self.problems],
            "unchecked": [problem.to_json() for problem in self.unchecked],
            "unseen": self.unseen,
        }


async def check_deploy(
    locator: Locator, project: Project, *, limit: int, on_progress: Callable[[str], None] = lambda _: None
) -> DeployCheck:
    """Check what open and interrupted sagas may still call, and the undos of the completed ones.

    The runs of the project's task queue are replayed; sagas of which Temporal has no run are read from the ledger and
    the guards. The databases prepare the statements of the calls. At most ``limit`` runs and sagas, the open runs
    first. Raises SagaError, RPCError.
    """
    check = DeployCheck()
    async with statement_checks(project) as statements:
        problems = DeployProblems(project, statements)
        try:
            async with asyncio.timeout(_CLAIMS_TIMEOUT):
                closed = await closed_bulk_workflows(locator, project.settings.temporal.task_queue)
        except (SagaError, TimeoutError) as error:
            check.unread.append(f"the sagas of closed bulk workflows: {unanswered_message(error)}")
            closed = {}
        runs = _limited(check, _runs(locator, project, [run for run, _ in closed.values()]), limit)
        async for replayed in replay_runs(locator.temporal, project, runs):
            run = replayed.run
            members = closed[run.run_id][1] if run.run_id in closed else None
            sagas = [saga for saga in replayed.sagas if members is None or saga.id in members]
            if run.running:
                check.running += 1
                if run.workflow_type == BULK_WORKFLOW:
                    check.in_bulk += sum(1 for saga in sagas if saga.id != run.id)
            elif run.ended_from_outside:
                check.resumable += sum(1 for saga in sagas if saga.calls)
            else:
                check.undoable += 1
            if replayed.failure is not None:
                problems.note("replay", run.workflow_type, run.id, _reason(str(replayed.failure)))
            if not replayed.is_proven and (run.running or any(saga.calls for saga in sagas)):
                problems.note("call", run.workflow_type, run.id, _UNPROVEN)
            for saga in sagas:
                await problems.note_calls(saga.saga, saga.id, saga.calls)
            on_progress(f"{check.read} runs and sagas checked")
        if check.is_complete:
            await _check_recorded(check, problems, locator, limit, on_progress)
        if check.is_complete:
            await _check_deleted(check, problems, locator, project, limit)
    check.problems, check.unchecked = problems.certain, problems.unchecked
    check.unseen = sorted(problems.unseen)
    return check


async def _check_recorded(
    check: DeployCheck, problems: DeployProblems, locator: Locator, limit: int, on_progress: Callable[[str], None]
) -> None:
    """Check the undos of the completed sagas that only the ledger has."""
    async for view, packed in _limited(check, _recorded_sagas(locator), limit):
        check.undoable += 1
        try:
            calls = Machine.restore(unpack_state(packed)).remaining_calls()
        except MALFORMED as error:
            what = _reason(f"its state in the ledger cannot be read: {error!r}")
            problems.note("replay", view.saga, view.id, what)
        else:
            await problems.note_calls(view.saga, view.id, calls)
        on_progress(f"{check.read} runs and sagas checked")


async def _check_deleted(
    check: DeployCheck, problems: DeployProblems, locator: Locator, project: Project, limit: int
) -> None:
    """Check the calls of the sagas that are to be started again, because Temporal has no run of them."""
    try:
        async for deleted in _limited(check, deleted_sagas(locator, project), limit):
            check.resumable += 1
            if deleted.problem is not None:
                problems.note("call", deleted.saga, deleted.id, deleted.problem)
            await problems.note_calls(deleted.saga, deleted.id, deleted.calls)
    except SagaError as error:
        check.unread.append(f"the sagas without a run: {error.message}")


def _reason(text: str) -> str:
    return printable_line(shorten(text.partition("\n")[0], _MAX_REASON))


async def _runs(locator: Locator, project: Project, bulk_workflows: Sequence[RunInfo]) -> AsyncIterator[RunInfo]:
    """The open runs of the task queue, those that were closed from outside, and those of sagas that can be undone."""
    temporal, queue = locator.temporal, project.settings.temporal.task_queue
    async for run in list_runs(temporal, f"ExecutionStatus = 'Running' AND {keyword_condition('TaskQueue', queue)}"):
        if run.task_queue == queue:
            yield run
    for run in bulk_workflows:
        yield run
    async for run in terminated_runs(locator, queue):
        yield run
    async for run in list_saga_runs(temporal, SagaFilter(states=("COMPLETED",), task_queue=queue)):
        if run.running or run.id.endswith(UNDO_SUFFIX):
            continue
        view = await closed_view(run)
        if view is not None and view.can_undo and not await _is_undone(locator, run):
            yield run


async def _is_undone(locator: Locator, run: RunInfo) -> bool:
    """True if a run has undone the completed saga, or is about to: then the first run makes no call any more."""
    undo = await locator.undo_of(run)
    return undo is not None and (undo.run.running or await state_of(locator, undo.run) in ("COMPENSATED", "RESIDUE"))


async def _recorded_sagas(locator: Locator) -> AsyncIterator[tuple[SagaView, str]]:
    """The completed sagas that only the ledger has and that can be undone, each with the state an undo starts from."""
    async for view in ledger_views(locator, SagaFilter(states=("COMPLETED",))):
        if view.can_undo and (packed := await locator.ledger.machine(view.id)) is not None:
            yield view, packed


async def _limited(check: DeployCheck, items: AsyncIterator[_Item], limit: int) -> AsyncIterator[_Item]:
    """The items until the check has read as many as the limit."""
    async for item in items:
        if check.read == limit:
            check.is_complete = False
            return
        check.read += 1
        yield item
