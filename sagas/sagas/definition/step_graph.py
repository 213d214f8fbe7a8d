"""The graph of a saga's steps: explicit needs, topological order, ancestors, and what runs after the commit point."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sagas.definition.model import Definition, StepDefinition
from sagas.expressions import Template, compile_value


class CycleError(Exception):
    """Steps need each other in a circle; ``steps`` lists it, first step not repeated."""

    def __init__(self, steps: Sequence[str]) -> None:
        super().__init__(" → ".join((*steps, steps[0])))
        self.steps = tuple(steps)


@dataclass(frozen=True, slots=True)
class StepGraph:
    """``order`` is topological, ties in file order; ``needs`` is transitively reduced."""

    order: tuple[str, ...]
    needs: Mapping[str, tuple[str, ...]]
    _bit: Mapping[str, int]
    _ancestors: Mapping[str, int]

    def is_ancestor(self, ancestor: str, step: str) -> bool:
        """True if ``ancestor`` always ends before ``step`` starts."""
        return bool(self._ancestors[step] & self._bit[ancestor])

    def ancestors(self, step: str) -> tuple[str, ...]:
        """All ancestors, in topological order."""
        return tuple(one for one in self.order if self.is_ancestor(one, step))


def build_step_graph(needs: Mapping[str, Iterable[str] | None]) -> StepGraph:
    """The graph of the steps, given in file order. None as needs means all steps above.

    Every need must be a step. Raises CycleError. Sets are bit masks, so that 300 steps stay cheap.
    """
    ids = list(needs)
    position = {id: index for index, id in enumerate(ids)}
    wanted = {id: ids[: position[id]] if some is None else list(dict.fromkeys(some)) for id, some in needs.items()}
    order = _topological(wanted, position)
    rank = {id: index for index, id in enumerate(order)}
    bit = {id: 1 << index for index, id in enumerate(order)}
    ancestors: dict[str, int] = {}
    reduced: dict[str, tuple[str, ...]] = {}
    for id in order:
        covered, kept, seen = 0, [], 0
        # From the latest need to the earliest, leaving out those that a later one implies.
        for need in sorted(wanted[id], key=rank.__getitem__, reverse=True):
            seen |= bit[need] | ancestors[need]
            if not covered & bit[need]:
                kept.append(need)
                covered |= ancestors[need]
        ancestors[id] = seen
        reduced[id] = tuple(reversed(kept))
    return StepGraph(tuple(order), reduced, bit, ancestors)


def _topological(wanted: Mapping[str, Sequence[str]], position: Mapping[str, int]) -> list[str]:
    waiting = {id: len(some) for id, some in wanted.items()}
    dependants: dict[str, list[str]] = {id: [] for id in wanted}
    for id, some in wanted.items():
        for need in some:
            dependants[need].append(id)
    ready = [(position[id], id) for id, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, id = heapq.heappop(ready)
        order.append(id)
        for dependant in dependants[id]:
            waiting[dependant] -= 1
            if waiting[dependant] == 0:
                heapq.heappush(ready, (position[dependant], dependant))
    if len(order) < len(wanted):
        raise CycleError(_cycle(wanted, set(order)))
    return order


def _cycle(wanted: Mapping[str, Sequence[str]], done: set[str]) -> list[str]:
    """One cycle among the steps that never became ready: follow needs until a step repeats."""
    path: list[str] = [next(id for id in wanted if id not in done)]
    while True:
        following = next(need for need in wanted[path[-1]] if need not in done)
        if following in path:
            return path[path.index(following) :]
        path.append(following)


# Execution plan

BUILT_IN = frozenset({"wait", "require", "saga"})
"""The actions that the state machine performs itself, or through a nested saga."""


class ExecutionPlan:
    """Facts about the graph of a definition: dependants, steps after the pivot, and steps to confirm.

    They are computed once, in time linear in the size of the graph; state machines may share a plan.
    """

    def __init__(self, definition: Definition) -> None:
        self.steps: dict[str, StepDefinition] = {step.id: step for step in definition.steps}
        self.order: dict[str, int] = {step.id: number for number, step in enumerate(definition.steps)}
        self.dependants: dict[str, list[str]] = {step.id: [] for step in definition.steps}
        for step in definition.steps:
            for need in step.needs:
                self.dependants[need].append(step.id)
        self.pivot: StepDefinition | None = definition.pivot
        self.forward_only = definition.recovery == "forward"
        self.after_pivot = self._descendants(self.pivot.id) if self.pivot else set()
        self._templates: dict[tuple[str, ...], Template] = {}
        self.to_confirm = [s.id for s in definition.steps if s.confirm is not None and not self.runs_after_commit(s.id)]

    def _descendants(self, start: str) -> set[str]:
        found: set[str] = set()
        open_ = list(self.dependants[start])
        while open_:
            step = open_.pop()
            if step not in found:
                found.add(step)
                open_.extend(self.dependants[step])
        return found

    def compiled_template(self, path: tuple[str, ...], value: Any) -> Template:
        """The compiled template at this path of the definition, cached. Raises ExpressionError."""
        found = self._templates.get(path)
        if found is None:
            found = self._templates[path] = compile_value(value)
        return found

    def runs_after_commit(self, step: str) -> bool:
        """True for a step that runs after the commit point, so that it is confirmed as soon as it is done."""
        return self.forward_only or step in self.after_pivot
