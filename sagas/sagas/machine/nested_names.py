"""The names that the `name` of a nested saga may have, if an expression chooses among them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sagas.definition.model import StepDefinition
from sagas.expressions import ExpressionError, compile_expression, compile_value, nodes
from sagas.expressions.limits import WorkMeter
from sagas.expressions.template_syntax import split_template
from sagas.machine.expressions.context import expression_context
from sagas.machine.state import SagaRun, StepRecord

_MOST_NAMES = 100
_MOST_CHARACTERS = 1_000
"""No name of a saga is longer, nor is a part of it."""


@dataclass(frozen=True, slots=True)
class PossibleNames:
    """Different names, or parts of them. ``is_complete`` is False if there may be others, which nobody can tell yet."""

    names: tuple[str, ...] = ()
    is_complete: bool = False


_UNKNOWN = PossibleNames()
_Scope = Mapping[str, Sequence[Any]]
"""The values that each name of an expression may have; those of a name that is missing are not known."""


def possible_names(run: SagaRun, record: StepRecord, written: Any) -> PossibleNames:
    """Every name that the template may give in this run, as far as its parts are literals, the input or `vars`.

    Conditions are not evaluated: each side of one counts. A template that can give none fails, and then an operator may
    give any.
    """
    if not isinstance(written, str):
        return _UNKNOWN
    scope: dict[str, Sequence[Any]] = {
        "input": [run.input],
        "vars": [run.variables],
        "saga": [{"name": run.definition.saga}],
    }
    items = record.items if record.items is not None else _items(run, run.plan.steps[record.id])
    if items is not None:
        scope.update(item=items, index=range(len(items)))
    names = _distinct([""])
    for part in split_template(written):
        is_code = part.expression
        names = _joined(
            names, _of_node(compile_expression(part.text).node, scope) if is_code else _distinct([part.text])
        )
    return names if names.names or items == [] else _UNKNOWN


def _items(run: SagaRun, step: StepDefinition) -> list[Any] | None:
    """The list of a `for_each` that has not begun; None if it depends on a step that is not done."""
    try:
        value = compile_value(step.for_each).render(expression_context(run), WorkMeter())
    except ExpressionError:
        return None
    return value if isinstance(value, list) else None


def _of_node(node: nodes.ExpressionNode, scope: _Scope) -> PossibleNames:
    match node:
        case nodes.Constant(value=value):
            return _distinct([value])
        case nodes.Conditional(then=then, otherwise=otherwise):
            return _any_of((then, otherwise), scope)
        case nodes.Default(value=value, fallback=fallback):
            return _any_of((value, fallback), scope)
        case nodes.Binary(op="+", left=first, right=second):
            return _joined(_of_node(first, scope), _of_node(second, scope))
        case nodes.Index(operand=nodes.MapLiteral(entries=entries)):
            return _any_of([value for _, value in entries], scope)
        case nodes.Index(operand=nodes.ListLiteral(items=items)):
            return _any_of(items, scope)
        case nodes.FunctionCall(name="string", args=(argument,)):
            return _of_node(argument, scope)
        case _:
            return _at_path(nodes.path_of(node), scope)


def _any_of(choices: Iterable[nodes.ExpressionNode], scope: _Scope) -> PossibleNames:
    parts = [_of_node(choice, scope) for choice in choices]
    names = itertools.chain.from_iterable(part.names for part in parts)
    return _distinct(names, all(part.is_complete for part in parts))


def _joined(first: PossibleNames, second: PossibleNames) -> PossibleNames:
    names = (before + after for before, after in itertools.product(first.names, second.names))
    return _distinct(names, first.is_complete and second.is_complete)


def _at_path(path: Sequence[str] | None, scope: _Scope) -> PossibleNames:
    if path is None or path[0] not in scope:
        return _UNKNOWN
    return _distinct(_field(value, path[1:]) for value in scope[path[0]])


def _field(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _distinct(values: Iterable[Any], is_complete: bool = True) -> PossibleNames:
    """The texts among these values, without those that are there already. Only text and numbers can be a name."""
    names: dict[str, None] = {}
    for value in values:
        if not isinstance(value, str | int):
            continue
        name = str(value)
        if len(name) > _MOST_CHARACTERS or (len(names) == _MOST_NAMES and name not in names):
            is_complete = False
        else:
            names[name] = None
    return PossibleNames(tuple(names), is_complete)
