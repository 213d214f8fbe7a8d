"""Checks a build against the sagas that are open, and those that can still be undone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from temporalio.client import Client as Temporal

from saga_workers.deploy.call_problems import call_problem
from saga_workers.deploy.run_replays import replay_runs
from saga_workers.deploy.statement_problems import StatementChecks, statement_checks
from saga_workers.location.locator import Locator
from saga_workers.temporal.claimed_states import closed_view
from saga_workers.temporal.temporal_runs import RunInfo, list_runs
from saga_workers.temporal.visibility_filter import keyword_condition
from saga_workers.views.saga_list import SagaFilter, ledger_views, list_saga_runs
from sagas.machine.machine import Machine
from sagas.machine.remaining_calls import RemainingCall
from sagas.project import Project
from sagas.protocol.payloads import UNDO_SUFFIX, unpack_state
from sagas.protocol.saga_view import SagaView
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten
from sagas.workflow.client_fields import MALFORMED

_MAX_IDS = 10
_MAX_REASON = 300

ProblemKind = Literal["call", "replay", "statement"]

_Item = TypeVar("_Item")


@dataclass(slots=True)
class DeployProblem:
    """A problem of this build, or of a database, with sagas of one name.

    ``ids``: the first of them, ``count``: of all.
    """

    kind: ProblemKind
    saga: str
    what: str
    ids: list[str] = field(default_factory=list[str])
    count: int = 0

    def add(self, saga_id: str) -> None:
        self.count += 1
        if len(self.ids) < _MAX_IDS:
            self.ids.append(saga_id)

    def to_json(self) -> dict[str, Any]:
        """An entry of `problems` in the JSON document of `saga check-deploy`."""
        return {"kind": self.kind, "saga": self.saga, "what": self.what, "ids": self.ids, "count": self.count}


@dataclass(slots=True)
class DeployCheck:
    """The result. ``is_complete`` is False if there are more sagas than were to be checked.

    ``unchecked``: statements that a database cannot prepare without running them.
    """

    running: int = 0
    undoable: int = 0
    is_complete: bool = True
    problems: list[DeployProblem] = field(default_factory=list[DeployProblem])
    unchecked: list[DeployProblem] = field(default_factory=list[DeployProblem])

    @property
    def checked(self) -> int:
        return self.running + self.undoable

    def to_json(self) -> dict[str, Any]:
        """The JSON document of `saga check-deploy`."""
        return {
            "running": self.running,
            "undoable": self.undoable,
            "complete": self.is_complete,
            "problems": [problem.to_json() for problem in self.problems],
            "unchecked": [problem.to_json() for problem in self.unchecked],
        }


async def check_deploy(
    locator: Locator, project: Project, *, limit: int, on_progress: Callable[[str], None] = lambda _: None
) -> DeployCheck:
    """Check what the open sagas may still call, and the undos of the completed ones.

    The runs of the project's task queue are replayed; sagas of which Temporal has no run are read from the ledger. The
    databases prepare the statements of the calls. At most ``limit``, the open ones first. Raises SagaError, RPCError.
    """
    temporal, check = locator.temporal, DeployCheck()
    async with statement_checks(project) as statements:
        problems = _Problems(project, statements)
        runs = _limited(check, _runs(temporal, project), limit)
        async for replayed in replay_runs(temporal, project, runs):
            run = replayed.run
            if run.running:
                check.running += 1
            else:
                check.undoable += 1
            if replayed.failure is not None:
                problems.note("replay", run.workflow_type, run.id, _reason(str(replayed.failure)))
            await problems.note_calls(run.workflow_type, run.id, replayed.calls)
            on_progress(f"{check.checked} sagas checked")
        if check.is_complete:
            async for view, packed in _limited(check, _recorded_sagas(locator), limit - check.checked):
                check.undoable += 1
                try:
                    calls = Machine.restore(unpack_state(packed)).remaining_calls()
                except MALFORMED as error:
                    what = _reason(f"its state in the ledger cannot be read: {error!r}")
                    problems.note("replay", view.saga, view.id, what)
                else:
                    await problems.note_calls(view.saga, view.id, calls)
                on_progress(f"{check.checked} sagas checked")
    check.problems, check.unchecked = problems.certain, problems.unchecked
    return check


class _Problems:
    """The problems of the calls of sagas, those of several sagas as one."""

    def __init__(self, project: Project, statements: StatementChecks) -> None:
        self._project = project
        self._statements = statements
        self._by_text: dict[tuple[bool, ProblemKind, str, str], DeployProblem] = {}

    @property
    def certain(self) -> list[DeployProblem]:
        return [problem for (is_certain, *_), problem in self._by_text.items() if is_certain]

    @property
    def unchecked(self) -> list[DeployProblem]:
        return [problem for (is_certain, *_), problem in self._by_text.items() if not is_certain]

    def note(self, kind: ProblemKind, saga: str, saga_id: str, what: str, *, is_certain: bool = True) -> None:
        key = (is_certain, kind, saga, what)
        self._by_text.setdefault(key, DeployProblem(kind, saga, what)).add(saga_id)

    async def note_calls(self, saga: str, saga_id: str, calls: Sequence[RemainingCall]) -> None:
        noted: dict[tuple[ProblemKind, str, bool], None] = {}
        for call in calls:
            place = f"{call.step}, {call.role}"
            if (problem := call_problem(self._project, call)) is not None:
                noted[("call", f"{place}: {problem}", True)] = None
            for each in await self._statements.problems(call):
                noted[("statement", f"{place}: {each.what}", each.is_certain)] = None
        for kind, what, is_certain in noted:
            self.note(kind, saga, saga_id, what, is_certain=is_certain)


def _reason(text: str) -> str:
    return printable_line(shorten(text.partition("\n")[0], _MAX_REASON))


async def _runs(temporal: Temporal, project: Project) -> AsyncIterator[RunInfo]:
    """The open runs of the task queue, then the runs of completed sagas that can be undone."""
    queue = project.settings.temporal.task_queue
    async for run in list_runs(temporal, f"ExecutionStatus = 'Running' AND {keyword_condition('TaskQueue', queue)}"):
        if run.task_queue == queue:
            yield run
    async for run in list_saga_runs(temporal, SagaFilter(states=("COMPLETED",), task_queue=queue)):
        if run.running or run.id.endswith(UNDO_SUFFIX):
            continue
        view = await closed_view(run)
        if view is not None and view.can_undo:
            yield run


async def _recorded_sagas(locator: Locator) -> AsyncIterator[tuple[SagaView, str]]:
    """The completed sagas that only the ledger has and that can be undone, each with the state an undo starts from."""
    async for view in ledger_views(locator, SagaFilter(states=("COMPLETED",))):
        if view.can_undo and (packed := await locator.ledger.machine(view.id)) is not None:
            yield view, packed


async def _limited(check: DeployCheck, items: AsyncIterator[_Item], limit: int) -> AsyncIterator[_Item]:
    count = 0
    async for item in items:
        if count == limit:
            check.is_complete = False
            return
        count += 1
        yield item
