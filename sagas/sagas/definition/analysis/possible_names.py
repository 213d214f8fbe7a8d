"""The names that an expression may give, as far as its parts are a closed list.

Conditions are not evaluated: each side of one counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sagas.expressions import compile_expression, nodes
from sagas.expressions.template_syntax import split_template

_MOST_NAMES = 100
_MOST_CHARACTERS = 1_000
"""No name of a saga is longer, nor is a part of it."""


@dataclass(frozen=True, slots=True)
class PossibleNames:
    """Different names, or parts of them. ``is_complete`` is False if there may be others, which nobody can tell yet."""

    names: tuple[str, ...] = ()
    is_complete: bool = False


UNKNOWN = PossibleNames()

_AtPath = Callable[[Sequence[str]], PossibleNames]
"""The values of a path such as `input.kind`."""


def names_of_template(written: str, at_path: _AtPath) -> PossibleNames:
    """Every name that the template may give, as far as its parts are literals or have values ``at_path``.

    Raises :class:`sagas.expressions.ExpressionError` for an expression that cannot be read.
    """
    names = distinct_names([""])
    for part in split_template(written):
        if part.expression:
            names = _joined(names, _of_node(compile_expression(part.text).node, at_path))
        else:
            names = _joined(names, distinct_names([part.text]))
    return names


def _of_node(node: nodes.ExpressionNode, at_path: _AtPath) -> PossibleNames:
    match node:
        case nodes.Constant(value=value):
            return distinct_names([value])
        case nodes.Conditional(then=then, otherwise=otherwise):
            return _any_of((then, otherwise), at_path)
        case nodes.Default(value=value, fallback=fallback):
            return _any_of((value, fallback), at_path)
        case nodes.Binary(op="+", left=first, right=second):
            return _joined(_of_node(first, at_path), _of_node(second, at_path))
        case nodes.Index(operand=nodes.MapLiteral(entries=entries)):
            return _any_of([value for _, value in entries], at_path)
        case nodes.Index(operand=nodes.ListLiteral(items=items)):
            return _any_of(items, at_path)
        case nodes.FunctionCall(name="string", args=(argument,)):
            return _of_node(argument, at_path)
    path = nodes.path_of(node)
    return UNKNOWN if path is None else at_path(path)


def _any_of(choices: Iterable[nodes.ExpressionNode], at_path: _AtPath) -> PossibleNames:
    parts = [_of_node(choice, at_path) for choice in choices]
    names = itertools.chain.from_iterable(part.names for part in parts)
    return distinct_names(names, all(part.is_complete for part in parts))


def _joined(first: PossibleNames, second: PossibleNames) -> PossibleNames:
    names = (before + after for before, after in itertools.product(first.names, second.names))
    return distinct_names(names, first.is_complete and second.is_complete)


def distinct_names(values: Iterable[Any], is_complete: bool = True) -> PossibleNames:
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
