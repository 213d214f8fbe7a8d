"""The names that the `name` of a nested saga may have, if an expression chooses among them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sagas.expressions import compile_expression, nodes
from sagas.expressions.template_syntax import split_template
from sagas.machine.state import SagaRun, StepRecord

_MOST_NAMES = 100


def possible_names(run: SagaRun, record: StepRecord, written: Any) -> list[str]:
    """Every name that the template may give in this run, as far as its parts are literals, the input or `vars`.

    Conditions are not evaluated: each side of one counts.
    """
    if not isinstance(written, str):
        return []
    scope: Mapping[str, Sequence[Any]] = {
        "input": [run.input],
        "vars": [run.variables],
        "saga": [{"name": run.definition.saga}],
        "item": record.items or [],
        "index": range(len(record.items or [])),
    }
    parts: list[list[str]] = []
    for part in split_template(written):
        values = _values(compile_expression(part.text).node, scope) if part.expression else iter([part.text])
        parts.append([str(value) for value in itertools.islice(values, _MOST_NAMES)])
    names = map("".join, itertools.product(*parts))
    return list(dict.fromkeys(itertools.islice(names, _MOST_NAMES)))


def _values(node: nodes.ExpressionNode, scope: Mapping[str, Sequence[Any]]) -> Iterator[Any]:
    match node:
        case nodes.Constant(value=value):
            yield value
        case nodes.Conditional(then=then, otherwise=otherwise):
            yield from _values(then, scope)
            yield from _values(otherwise, scope)
        case nodes.Default(value=value, fallback=fallback):
            yield from _values(value, scope)
            yield from _values(fallback, scope)
        case nodes.Binary(op="+", left=left, right=right):
            for first, second in itertools.product(_values(left, scope), _values(right, scope)):
                yield f"{first}{second}"
        case nodes.Index(operand=nodes.MapLiteral(entries=entries)):
            for _, value in entries:
                yield from _values(value, scope)
        case nodes.Index(operand=nodes.ListLiteral(items=items)):
            for item in items:
                yield from _values(item, scope)
        case _:
            yield from _at_path(nodes.path_of(node), scope)


def _at_path(path: Sequence[str] | None, scope: Mapping[str, Sequence[Any]]) -> Iterator[Any]:
    if path is None:
        return
    for value in scope.get(path[0], ()):
        for field in path[1:]:
            value = value.get(field) if isinstance(value, Mapping) else None
        if isinstance(value, str | int):
            yield value
