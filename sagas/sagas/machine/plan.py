"""Facts about the graph of a definition, worked out once in time linear in its size; machines may share them."""

from __future__ import annotations

from typing import Any

from sagas.definition.model import Definition, Step
from sagas.expressions import Template, compile_value

BUILT_IN = frozenset({"wait", "require", "saga"})
"""The actions the machine performs itself, or through a nested machine."""


class Plan:
    """Who waits for whom, who lies beyond the pivot, and what there is to confirm."""

    def __init__(self, definition: Definition) -> None:
        self.steps: dict[str, Step] = {step.id: step for step in definition.steps}
        self.order: dict[str, int] = {step.id: number for number, step in enumerate(definition.steps)}
        self.dependants: dict[str, list[str]] = {step.id: [] for step in definition.steps}
        for step in definition.steps:
            for need in step.needs:
                self.dependants[need].append(step.id)
        self.pivot: Step | None = definition.pivot
        self.forward_only = definition.recovery == "forward"
        self.after_pivot = self._beyond(self.pivot.id) if self.pivot else set()
        self._templates: dict[tuple[str, ...], Template] = {}
        self.to_confirm = [s.id for s in definition.steps if s.confirm is not None and not self.commits_late(s.id)]

    def _beyond(self, start: str) -> set[str]:
        found: set[str] = set()
        open_ = list(self.dependants[start])
        while open_:
            step = open_.pop()
            if step not in found:
                found.add(step)
                open_.extend(self.dependants[step])
        return found

    def template(self, place: tuple[str, ...], value: Any) -> Template:
        """The compiled form of the value at this place of the definition. Raises ExpressionError."""
        found = self._templates.get(place)
        if found is None:
            found = self._templates[place] = compile_value(value)
        return found

    def commits_late(self, step: str) -> bool:
        """True for a step that runs when the commit point has passed, so that it is confirmed right after itself."""
        return self.forward_only or step in self.after_pivot


def is_read(step: Step) -> bool:
    """A read has no effect, so there is nothing to seal, to undo or to ask about."""
    return step.kind == "read" or step.do.uses in ("wait", "require")


def is_nested(step: Step) -> bool:
    return step.do.uses == "saga"
