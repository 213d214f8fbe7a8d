"""The graph of a saga's steps: explicit needs, topological order, ancestors, and what runs after the commit point."""

from __future__ import annotations

import graphlib
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sagas.builtins.callbacks import CALLBACK
from sagas.definition.model import Definition, StepDefinition
from sagas.definition.sensitivity import has_sensitive_values, searched_texts, sensitive_values
from sagas.expressions import Template, compile_value


class CycleError(Exception):
    """Steps need each other in a cycle; ``steps`` lists it, beginning with the step that is written first."""

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


def build_step_graph(needs: Mapping[str, Iterable[str] | None]) -> StepGraph:
    """The graph of the steps, given in file order. None as needs means all steps above.

    Every need must be a step. Raises CycleError. Sets are bit masks, so that 300 steps stay cheap.
    """
    ids = list(needs)
    position = {id: index for index, id in enumerate(ids)}
    needed = {id: ids[: position[id]] if some is None else list(dict.fromkeys(some)) for id, some in needs.items()}
    order = _topological(needed, position)
    rank = {id: index for index, id in enumerate(order)}
    bit = {id: 1 << index for index, id in enumerate(order)}
    ancestors: dict[str, int] = {}
    reduced: dict[str, tuple[str, ...]] = {}
    for id in order:
        covered, kept, seen = 0, [], 0
        # From the latest need to the earliest, leaving out those that a later one implies.
        for need in sorted(needed[id], key=rank.__getitem__, reverse=True):
            seen |= bit[need] | ancestors[need]
            if not covered & bit[need]:
                kept.append(need)
                covered |= ancestors[need]
        ancestors[id] = seen
        reduced[id] = tuple(reversed(kept))
    return StepGraph(tuple(order), reduced, bit, ancestors)


def _topological(needed: Mapping[str, Sequence[str]], position: Mapping[str, int]) -> list[str]:
    sorter = graphlib.TopologicalSorter(needed)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        cycle = error.args[1][:0:-1]  # from each step to one that it needs
        # The step that is written first needs a later one, so its `needs` are written.
        start = min(range(len(cycle)), key=lambda index: position[cycle[index]])
        raise CycleError(cycle[start:] + cycle[:start]) from None
    order, ready = [], []
    while sorter.is_active():
        for id in sorter.get_ready():
            heapq.heappush(ready, (position[id], id))
        _, id = heapq.heappop(ready)
        order.append(id)
        sorter.done(id)
    return order


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
        self.after_pivot = self.descendants(self.pivot.id) if self.pivot else set()
        self.savepoints = {step.id: self.descendants(step.id) for step in definition.steps if step.savepoint}
        """The steps that follow each savepoint, which a failure among them undoes and runs again."""
        self.finishes = {step.id: self.descendants(step.id) for step in definition.steps if step.do.uses == "finish"}
        """The steps below each `finish`, which are skipped when it completes the saga."""
        self.sensitive_schema = definition.input if has_sensitive_values(definition.input) else None
        """The schema of the input if it marks values as `x-sensitive`."""
        self._sensitive: tuple[Any, frozenset[str]] | None = None
        """The last input that was asked for, and what is sensitive in it: each call of a saga asks again."""
        self.has_callbacks = any(
            CALLBACK in (call.with_ or {}) for step in definition.steps for call in step.operations
        )
        self._templates: dict[tuple[str, ...], Template] = {}
        self._alone: set[str] | None = None
        self.to_confirm = [s.id for s in definition.steps if s.confirm is not None and not self.runs_after_commit(s.id)]

    def sensitive_texts(self, input: Any) -> tuple[str, ...]:
        """Return what no message may quote of an input."""
        return searched_texts(self.sensitive_values(input))

    def sensitive_values(self, input: Any) -> frozenset[str]:
        """Return what no document for people may show of an input."""
        if self.sensitive_schema is None:
            return frozenset()
        if self._sensitive is None or self._sensitive[0] is not input:
            self._sensitive = (input, sensitive_values(self.sensitive_schema, input))
        return self._sensitive[1]

    def descendants(self, start: str) -> set[str]:
        """All steps that directly or indirectly need this one."""
        ancestors: set[str] = set()
        open_ = list(self.dependants[start])
        while open_:
            step = open_.pop()
            if step not in ancestors:
                ancestors.add(step)
                open_.extend(self.dependants[step])
        return ancestors

    def is_alone(self, step: str) -> bool:
        """True for a step to which no other one can run in parallel: each is before it or after it."""
        if self._alone is None:
            self._alone = self._steps_alone()
        return step in self._alone

    def _steps_alone(self) -> set[str]:
        before: dict[str, int] = {}
        after = dict.fromkeys(self.steps, 0)
        for id, step in self.steps.items():  # in topological order
            before[id] = 0
            for need in step.needs:
                before[id] |= before.get(need, 0) | 1 << self.order[need]
        for id in reversed(self.steps):
            for need in self.steps[id].needs:
                after[need] |= after[id] | 1 << self.order[id]
        return {id for id in self.steps if (before[id] | after[id]).bit_count() == len(self.steps) - 1}

    def compiled_template(self, path: tuple[str, ...], value: Any) -> Template:
        """The compiled template at this path of the definition, cached. Raises ExpressionError."""
        template = self._templates.get(path)
        if template is None:
            template = self._templates[path] = compile_value(value)
        return template

    def runs_after_commit(self, step: str) -> bool:
        """True for a step that runs after the commit point, so that it is confirmed as soon as it is done."""
        return self.forward_only or step in self.after_pivot
