"""The names that the `name` of a nested saga may have, if an expression chooses among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sagas.definition.analysis.possible_names import UNKNOWN, PossibleNames, distinct_names, names_of_template
from sagas.definition.model import StepDefinition
from sagas.expressions import ExpressionError, compile_value
from sagas.expressions.limits import WorkMeter
from sagas.machine.expressions.context import expression_context
from sagas.machine.state import SagaRun, StepRecord

_Scope = Mapping[str, Sequence[Any]]
"""The values that each name of an expression may have; those of a name that is missing are not known."""


def possible_names(run: SagaRun, record: StepRecord, written: Any) -> PossibleNames:
    """Every name that the template may give in this run, as far as its parts are literals, the input or `vars`.

    Conditions are not evaluated: each side of one counts. A template that can give none fails, and then an operator may
    give any.
    """
    if not isinstance(written, str):
        return UNKNOWN
    scope: dict[str, Sequence[Any]] = {
        "input": [run.input],
        "vars": [run.variables],
        "saga": [{"name": run.definition.saga}],
    }
    items = record.items if record.items is not None else _items(run, run.plan.steps[record.id])
    if items is not None:
        scope.update(item=items, index=range(len(items)))
    names = names_of_template(written, lambda path: _at_path(path, scope))
    return names if names.names or items == [] else UNKNOWN


def _items(run: SagaRun, step: StepDefinition) -> list[Any] | None:
    """The list of a `for_each` that has not begun; None if it depends on a step that is not done."""
    try:
        value = compile_value(step.for_each).render(expression_context(run), WorkMeter())
    except ExpressionError:
        return None
    return value if isinstance(value, list) else None


def _at_path(path: Sequence[str], scope: _Scope) -> PossibleNames:
    if path[0] not in scope:
        return UNKNOWN
    return distinct_names(_field(value, path[1:]) for value in scope[path[0]])


def _field(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
