"""Checks a build against the sagas that are open, and those that can still be undone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from temporalio.client import Client as Temporal

from saga_workers.deploy.call_problems import call_problem
from saga_workers.deploy.run_replays import replay_runs
from saga_workers.temporal.claimed_states import closed_view
from saga_workers.temporal.temporal_runs import RunInfo, list_runs
from saga_workers.temporal.visibility_filter import keyword_condition
from saga_workers.views.saga_list import SagaFilter, list_saga_runs
from sagas.project import Project
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

_MAX_IDS = 10
_MAX_REASON = 300

ProblemKind = Literal["call", "replay"]


@dataclass(slots=True)
class DeployProblem:
    """A problem of this build with sagas of one name. ``ids``: the first of them, ``count``: of all."""

    kind: ProblemKind
    saga: str
    what: str
    ids: list[str] = field(default_factory=list[str])
    count: int = 0

    def add(self, run: RunInfo) -> None:
        self.count += 1
        if len(self.ids) < _MAX_IDS:
            self.ids.append(run.id)

    def to_json(self) -> dict[str, Any]:
        """An entry of `problems` in the JSON document of `saga check-deploy`."""
        return {"kind": self.kind, "saga": self.saga, "what": self.what, "ids": self.ids, "count": self.count}


@dataclass(slots=True)
class DeployCheck:
    """The result. ``is_complete`` is False if there are more runs than were to be checked."""

    running: int = 0
    undoable: int = 0
    is_complete: bool = True
    problems: list[DeployProblem] = field(default_factory=list[DeployProblem])

    def to_json(self) -> dict[str, Any]:
        """The JSON document of `saga check-deploy`."""
        return {
            "running": self.running,
            "undoable": self.undoable,
            "complete": self.is_complete,
            "problems": [problem.to_json() for problem in self.problems],
        }


async def check_deploy(
    temporal: Temporal, project: Project, *, limit: int, on_progress: Callable[[str], None] = lambda _: None
) -> DeployCheck:
    """Replay the runs of the project's task queue, and check the calls that they may still make.

    At most ``limit`` runs, the open ones first. Raises SagaError, RPCError.
    """
    check = DeployCheck()
    problems: dict[tuple[str, str, str], DeployProblem] = {}

    def note(kind: ProblemKind, run: RunInfo, what: str) -> None:
        saga = run.workflow_type
        problems.setdefault((kind, saga, what), DeployProblem(kind, saga, what)).add(run)

    runs = _limited(check, _runs(temporal, project), limit)
    async for replayed in replay_runs(temporal, project, runs):
        run = replayed.run
        if run.running:
            check.running += 1
        else:
            check.undoable += 1
        on_progress(f"{check.running + check.undoable} runs checked")
        if replayed.failure is not None:
            note("replay", run, printable_line(shorten(str(replayed.failure).partition("\n")[0], _MAX_REASON)))
        for what in dict.fromkeys(_problems_of_calls(project, replayed.calls)):
            note("call", run, what)
    check.problems = list(problems.values())
    return check


def _problems_of_calls(project: Project, calls: Any) -> list[str]:
    problems = ((call, call_problem(project, call)) for call in calls)
    return [f"{call.step}, {call.role}: {problem}" for call, problem in problems if problem is not None]


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


async def _limited(check: DeployCheck, runs: AsyncIterator[RunInfo], limit: int) -> AsyncIterator[RunInfo]:
    count = 0
    async for run in runs:
        if count == limit:
            check.is_complete = False
            return
        count += 1
        yield run
