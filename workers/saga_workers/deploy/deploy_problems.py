"""The problems of a build, or of a database, with sagas: those of several sagas are one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from saga_workers.deploy.call_problems import call_problem
from saga_workers.deploy.statement_problems import StatementChecks
from sagas.machine.remaining_calls import RemainingCall
from sagas.project import Project

_MAX_IDS = 10

ProblemKind = Literal["call", "replay", "statement"]


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


class DeployProblems:
    """Collects problems. ``unseen``: the Python actions with a database among the calls, whose SQL nothing shows."""

    def __init__(self, project: Project, statements: StatementChecks) -> None:
        self._project = project
        self._statements = statements
        self.unseen: set[str] = set()
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
            action = self._project.actions.get(call.operation.uses or "") if call.operation.local else None
            if action is not None and action.connection is not None:
                self.unseen.add(action.name)
            if (problem := call_problem(self._project, call)) is not None:
                noted[("call", f"{place}: {problem}", True)] = None
            for each in await self._statements.problems(call):
                noted[("statement", f"{place}: {each.what}", each.is_certain)] = None
        for kind, what, is_certain in noted:
            self.note(kind, saga, saga_id, what, is_certain=is_certain)
