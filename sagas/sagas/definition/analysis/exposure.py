"""Finds the steps that may be undone, those under the saga's locks, and the results that they use. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sagas.definition.model import Definition, StepDefinition, is_nested
from sagas.expressions import ExpressionError, compile_value


def may_be_undone(definition: Definition, step: StepDefinition) -> bool:
    """True if a failure of the saga can undo the step after it is done."""
    return definition.recovery == "backward" and (step.kind == "compensatable" or (is_nested(step) and not step.pivot))


def locked_steps(definition: Definition) -> frozenset[str]:
    """The steps that run while the saga holds its locks; a step parallel to that of `from` may run without them."""
    locks = definition.locks
    if locks is None:
        return frozenset()
    if locks.from_ is None:
        return frozenset(step.id for step in definition.steps)
    after = {locks.from_}
    for step in definition.steps:  # in topological order
        if after.intersection(step.needs):
            after.add(step.id)
    return frozenset(after)


def used_steps(step: StepDefinition) -> frozenset[str]:
    """The steps whose results the forward action and the conditions of ``step`` use."""
    values: list[Any] = [step.do.with_, step.for_each]
    if step.if_ is not None:
        values.append(step.if_ if "${{" in step.if_ else f"${{{{ {step.if_} }}}}")
    return frozenset(name for value in values for name in steps_in(value))


def steps_in(value: Any) -> frozenset[str]:
    """The steps whose results the expressions in a value name."""
    try:
        template = compile_value(value)
    except ExpressionError:
        return frozenset()  # reported by the checks of expressions
    paths: Iterable[tuple[str, ...]] = (
        reference.path for _, expression in template.expressions for reference in expression.references
    )
    return frozenset(path[1] for path in paths if path[:1] == ("steps",) and len(path) > 1)
