"""Compares a result that an operator gives with what the definition reads from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sagas.definition.step_expressions import expressions_in, step_expressions
from sagas.expressions import ANY_ELEMENT, Expression, ExpressionError, compile_expression
from sagas.expressions.presence import NO_FACTS, Facts, facts_of, find_uses
from sagas.machine.decisions.form import json_type
from sagas.machine.expressions import context
from sagas.machine.state import Entry, SagaRun

_SHOWN = 120
"""Characters of an expression in a message."""


@dataclass(frozen=True, slots=True)
class _ResultReader:
    """An expression that may read the result. ``condition`` is the `if` of its step, ``name`` is for messages."""

    name: str
    expression: Expression
    condition: Expression | None = None


def result_problem(run: SagaRun, entry: Entry, result: Any) -> str | None:
    """Why this result is refused: it lacks what an expression reads, so that step would park or an undo would fail.

    A part that the expression, or the `if` of its step, expects to be missing may be missing: inside `default(…)`,
    after `has(…)`, a comparison with null, or in a branch that is not evaluated. Items of a `for_each` are not
    compared.
    """
    if run.step(entry).for_each is not None:
        return None
    given = _GivenResult(run, entry, result)
    return next((problem for reader in _readers(run, entry) if (problem := given.problem(reader)) is not None), None)


def _readers(run: SagaRun, entry: Entry) -> Iterator[_ResultReader]:
    """All expressions that may still be evaluated."""
    backward = run.phase == "backward"
    for step in run.definition.steps:
        if backward and step.id != entry.step:
            continue  # what has run is undone with the results it had
        condition = None if step.if_ is None else _compiled(step.if_)
        for place, expression in step_expressions(step):
            if place == "if":
                yield _ResultReader(f"the `if` of step {step.id}", expression)
            elif not backward or place == "compensation":
                name = f"step {step.id}" if place == "do" else f"the {place} of step {step.id}"
                yield _ResultReader(name, expression, condition)
        for expression in expressions_in(step.for_each):
            yield _ResultReader(f"the `for_each` of step {step.id}", expression, condition)
    if backward:
        return
    for expression in expressions_in(run.definition.locks.keys if run.definition.locks is not None else None):
        yield _ResultReader("`locks`", expression)
    for expression in expressions_in(run.definition.output):
        yield _ResultReader("`output`", expression)


def _compiled(source: str) -> Expression | None:
    try:
        return compile_expression(source)
    except ExpressionError:
        return None  # the run itself reports it


class _GivenResult:
    """A result that an operator gives for an entry."""

    def __init__(self, run: SagaRun, entry: Entry, result: Any) -> None:
        self._result = result
        self._path = ("steps", entry.step, "result")
        names = context.expression_context(run)
        settled = {"result": result, "results": None, "state": "DONE"}
        self._names = {**names, "steps": {**names["steps"], entry.step: settled}}

    def problem(self, reader: _ResultReader) -> str | None:
        """Why the expression cannot be evaluated with the result."""
        condition = reader.condition
        facts = NO_FACTS if condition is None else facts_of(condition.node, True)
        for use in find_uses(reader.expression.node, facts):
            if use.path[:3] != self._path or use.absorbed or self._contradicts(use.facts):
                continue
            gap = _first_gap(self._result, use.path[3:])
            if gap is None or (gap.is_element and not self._is_complete(reader.expression)):
                continue
            if not self._has_value(reader.expression) and not self._is_false(condition):
                return gap.describe(reader)
        return None

    def _contradicts(self, facts: Facts) -> bool:
        """True if facts that hold wherever the use is evaluated do not hold for the result."""
        return any(self._lookup(path) is _MISSING for path in facts.present) or any(
            self._lookup(path) is None for path in facts.values
        )

    def _lookup(self, path: tuple[str, ...]) -> Any:
        if path[:3] != self._path:
            return ...
        value = self._result
        for name in path[3:]:
            if name == ANY_ELEMENT:
                return ...
            if not isinstance(value, Mapping) or name not in value:
                return _MISSING
            value = value[name]
        return value

    def _has_value(self, expression: Expression) -> bool:
        """True if the expression has a value with what is known now: it does not come to the missing part."""
        try:
            expression.evaluate(self._names)
        except ExpressionError:
            return False
        return True

    def _is_false(self, condition: Expression | None) -> bool:
        """True if the step will be skipped."""
        if condition is None:
            return False
        try:
            return condition.evaluate(self._names) is False
        except ExpressionError:
            return False

    def _is_complete(self, expression: Expression) -> bool:
        """True if all values that the expression reads are known now."""
        return all(
            reference.path[0] in ("input", "vars", "saga")
            or (reference.path[0] == "steps" and reference.path[1:2] and reference.path[1] in self._names["steps"])
            for reference in expression.references
        )


_MISSING = object()


@dataclass(frozen=True, slots=True)
class _Gap:
    """The first part that a result lacks: the path of the part, and the value in which it is missing."""

    path: tuple[str, ...]
    value: Any

    @property
    def is_element(self) -> bool:
        """True if an element of an object or of an empty list is missing: what selects it may never be evaluated."""
        return self.path[-1] == ANY_ELEMENT and (isinstance(self.value, Mapping) or self.value == [])

    def describe(self, reader: _ResultReader) -> str:
        source = " ".join(reader.expression.source.split())
        reads = f"{reader.name} reads: `{source if len(source) <= _SHOWN else source[:_SHOWN] + '…'}`"
        *owner, part = self.path
        if part != ANY_ELEMENT and isinstance(self.value, Mapping):
            return f"--result lacks `{_written(self.path)}`, which {reads}"
        where = f"`{_written(owner)}` in --result" if owner else "--result"
        if part == ANY_ELEMENT:
            kind = "an empty list" if self.value == [] else f"{json_type(self.value)}, not a list"
            return f"{where} is {kind}, and {reads}"
        return f"{where} is {json_type(self.value)} without the field `{part}`, which {reads}"


def _first_gap(value: Any, path: tuple[str, ...], start: int = 0) -> _Gap | None:
    for index in range(start, len(path)):
        name = path[index]
        if name == ANY_ELEMENT and isinstance(value, list) and value:
            return next((gap for item in value if (gap := _first_gap(item, path, index + 1)) is not None), None)
        if name == ANY_ELEMENT or not isinstance(value, Mapping) or name not in value:
            return _Gap(path[: index + 1], value)
        value = value[name]
    return None


def _written(path: Sequence[str]) -> str:
    return "".join(name if name == ANY_ELEMENT else f".{name}" for name in path).removeprefix(".")
