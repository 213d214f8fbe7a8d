"""The expressions of a step that may read results of other steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from sagas.builtins.registry import response_expressions
from sagas.definition.model import StepDefinition
from sagas.definition.parser.operation_builder import wrap
from sagas.expressions import Expression, ExpressionError, compile_value

Place = Literal["if", "do", "compensation", "confirm", "probe"]


def step_expressions(step: StepDefinition) -> Iterator[tuple[Place, Expression]]:
    """Every expression of a step that may read a result or an item of its `for_each`, with its place in the step."""
    sources: list[tuple[Place, Any]] = [("do", step.do.with_), ("do", step.fairness_key)]
    if step.if_ is not None:
        sources.append(("if", wrap(step.if_)))
    if step.confirm is not None:
        sources.append(("confirm", step.confirm.with_))
    if step.compensate is not None:
        for alternate in step.compensate.alternates:
            sources.append(("compensation", alternate.with_))
        if step.compensate.confirmed is not None:
            sources.append(("compensation", step.compensate.confirmed.with_))
    if step.probe is not None:
        sources.append(("probe", step.probe.operation.with_))
        for verdict in (step.probe.done, step.probe.absent, step.probe.result):
            sources.append(("probe", None if verdict is None else wrap(verdict)))
    for place, source in sources:
        for expression in expressions_in(source):
            yield place, expression


def expressions_in(value: Any) -> Iterator[Expression]:
    """Every expression in a value of a definition; one that does not compile is left to the run."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            # Expressions of http over its response are written without ${{ }}.
            if not (key in response_expressions("http") and isinstance(item, str) and "${{" not in item):
                yield from expressions_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from expressions_in(item)
    elif isinstance(value, str) and "${{" in value:
        try:
            yield from (expression for _, expression in compile_value(value).expressions)
        except ExpressionError:
            return  # the run itself reports it, at the right step
