"""The guarantees that the source of an expression gives where it uses a value: which fields are present, which
conditions hold.

A use that is reached only after ``has(a.b)``, ``"b" in a``, ``a.b != null`` or inside ``default(…)`` is guarded.
Elements of lists have the name ``[]``: ``lines.map(l, l.sku)`` uses ``lines.[].sku``, as ``lines[0].sku`` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sagas.expressions import nodes
from sagas.expressions.analysis import null_test_operand
from sagas.expressions.nodes import ExpressionNode
from sagas.expressions.type_checker import ANY_ELEMENT

NamePath = tuple[str, ...]
Canonical = tuple[Any, ...]
_NO_PATHS: frozenset[NamePath] = frozenset()


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that hold at one place of an expression: paths that are ``present``, paths that are not ``null``,
    conditions that hold.
    """

    present: frozenset[NamePath] = _NO_PATHS
    values: frozenset[NamePath] = _NO_PATHS
    conditions: Mapping[Canonical, bool] = field(default_factory=dict)

    def __or__(self, other: Facts) -> Facts:
        return Facts(self.present | other.present, self.values | other.values, {**self.conditions, **other.conditions})


NO_FACTS = Facts()


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a path from its root.

    ``absorbed``: a missing field in it is not an error here. ``certain``: whenever the expression has a value, the use
    was evaluated.
    """

    path: NamePath
    offset: int
    facts: Facts
    absorbed: bool
    certain: bool


def find_uses(node: ExpressionNode, facts: Facts = NO_FACTS) -> Iterator[Use]:
    """All uses, in source order; ``facts`` hold wherever the expression is evaluated."""
    yield from _uses(node, {}, facts, absorbed=False, certain=True)


Bound = Mapping[str, NamePath | None]
"""The path of the elements that a comprehension's variable stands for; None if they come from no path."""


def _uses(node: ExpressionNode, bound: Bound, facts: Facts, *, absorbed: bool, certain: bool) -> Iterator[Use]:
    path = _path(node, bound)
    if path is not None:
        yield Use(path, node.offset, facts, absorbed, certain and not absorbed)
        for key in _computed_keys(node):
            yield from _uses(key, bound, facts, absorbed=absorbed, certain=certain)
        return
    match node:
        case nodes.Identifier():
            return  # the variable of a comprehension over something computed
        case nodes.Has(operand=operand):
            yield from _uses(operand, bound, facts, absorbed=True, certain=False)
        case nodes.Default(value=value, fallback=fallback):
            yield from _uses(value, bound, facts, absorbed=True, certain=False)
            yield from _uses(fallback, bound, facts, absorbed=absorbed, certain=False)
        case nodes.Conditional(condition=condition, then=then, otherwise=otherwise):
            yield from _uses(condition, bound, facts, absorbed=absorbed, certain=certain)
            inner_facts = facts | facts_of(condition, True, bound)
            yield from _uses(then, bound, inner_facts, absorbed=absorbed, certain=False)
            inner_facts = facts | facts_of(condition, False, bound)
            yield from _uses(otherwise, bound, inner_facts, absorbed=absorbed, certain=False)
        case nodes.Logic(op=op, left=left, right=right):
            # In both directions, because an error on the left is absorbed if the right side decides.
            inner_facts = facts | facts_of(right, op == "&&", bound)
            yield from _uses(left, bound, inner_facts, absorbed=absorbed, certain=False)
            inner_facts = facts | facts_of(left, op == "&&", bound)
            yield from _uses(right, bound, inner_facts, absorbed=absorbed, certain=False)
        case nodes.Comprehension(source=source, variable=variable, condition=condition):
            yield from _uses(source, bound, facts, absorbed=absorbed, certain=certain)
            of = _path(source, bound)
            inner = {**bound, variable: None if of is None else (*of, ANY_ELEMENT)}
            for part in node.children()[1:]:
                inner_facts = facts if condition in (None, part) else facts | facts_of(condition, True, inner)
                yield from _uses(part, inner, inner_facts, absorbed=absorbed, certain=False)
        case _:
            for child in node.children():
                yield from _uses(child, bound, facts, absorbed=absorbed, certain=certain)


def facts_of_value(node: ExpressionNode) -> Facts:
    """Return what is known once the expression has been evaluated without an error."""
    paths = [use.path for use in find_uses(node) if use.certain]
    return Facts(
        frozenset().union(*map(_prefixes, paths)), frozenset().union(*(_prefixes(path[:-1]) for path in paths))
    )


def facts_of(condition: ExpressionNode | None, outcome: bool, bound: Bound | None = None) -> Facts:
    """Return what is known once the condition has been evaluated to ``outcome``."""
    if condition is None:
        return NO_FACTS
    bound = bound or {}
    match condition:
        case nodes.Unary(op="!", operand=operand):
            return facts_of(operand, not outcome, bound)
        case nodes.Logic(op=op, left=left, right=right) if (op == "&&") is outcome:
            return facts_of(left, outcome, bound) | facts_of(right, outcome, bound) | _condition(condition, outcome)
    return _condition(condition, outcome) | _paths_known_after(condition, outcome, bound)


def _condition(node: ExpressionNode, outcome: bool) -> Facts:
    form, positive = canonical(node)
    return Facts(conditions={form: outcome is positive})


def _paths_known_after(condition: ExpressionNode, outcome: bool, bound: Bound) -> Facts:
    match condition:
        case nodes.Has(operand=operand) if outcome:
            path = _path(operand, bound)
            return NO_FACTS if path is None else Facts(_prefixes(path), _prefixes(path[:-1]))
        case nodes.Binary(op="in", left=nodes.Constant(value=str(name)), right=owner) if outcome:
            path = _path(owner, bound)
            return NO_FACTS if path is None else Facts(_prefixes((*path, name)), _prefixes(path))
        case nodes.Binary(op="==" | "!=" as op) if (operand := null_test_operand(condition)) is not None:
            path = _path(operand, bound)
            if path is None:
                return NO_FACTS
            is_value = (op == "!=") is outcome
            return Facts(_prefixes(path), _prefixes(path if is_value else path[:-1]))
    return NO_FACTS


def _prefixes(path: NamePath) -> frozenset[NamePath]:
    return frozenset(path[:length] for length in range(1, len(path) + 1))


def _path(node: ExpressionNode, bound: Bound) -> NamePath | None:
    """The path of ``a.b["c"][0]``, from the root of what a comprehension's variable stands for."""
    parts: list[str] = []
    while True:
        match node:
            case nodes.Select(operand=operand, field=field):
                parts.append(field)
                node = operand
            case nodes.Index(operand=operand, key=key):
                named = isinstance(key, nodes.Constant) and isinstance(key.value, str)
                parts.append(key.value if named else ANY_ELEMENT)  # pyright: ignore[reportAttributeAccessIssue]
                node = operand
            case nodes.Identifier(name=name):
                root = bound.get(name, (name,))
                return None if root is None else (*root, *reversed(parts))
            case _:
                return None


def _computed_keys(node: ExpressionNode) -> Iterator[ExpressionNode]:
    while isinstance(node, nodes.Select | nodes.Index):
        if isinstance(node, nodes.Index) and not isinstance(node.key, nodes.Constant):
            yield node.key
        node = node.operand


_SWAPPED = {">": "<", "<=": ">="}
_NEGATED = {"!=": "==", ">=": "<"}


def canonical(node: ExpressionNode) -> tuple[Canonical, bool]:
    """A form of the condition without positions, and whether it has the condition's sense or the opposite one."""
    match node:
        case nodes.Unary(op="!", operand=operand):
            form, positive = canonical(operand)
            return form, not positive
        case (
            nodes.Binary(op="==" | "!=" as op, left=operand, right=nodes.Constant(value=bool(value)))
            | nodes.Binary(op="==" | "!=" as op, left=nodes.Constant(value=bool(value)), right=operand)
        ):
            form, positive = canonical(operand)
            return form, positive is (value is (op == "=="))
        case nodes.Binary(op=op, left=left, right=right):
            if op in _SWAPPED:
                op, left, right = _SWAPPED[op], right, left
            positive = op not in _NEGATED
            op = _NEGATED.get(op, op)
            sides = [_form(left), _form(right)]
            return ("Binary", op, *(sorted(sides, key=repr) if op == "==" else sides)), positive
    return _form(node), True


def _form(node: ExpressionNode) -> Canonical:
    if isinstance(node, nodes.Logic):
        return ("Logic", node.op, *sorted(map(canonical, node.children()), key=repr))
    own = [
        value
        for name in type(node).__dataclass_fields__
        if name not in ("offset", "end", "depth")
        and not isinstance(value := getattr(node, name), ExpressionNode | tuple)
    ]
    return (type(node).__name__, *map(repr, own), *map(_form, node.children()))


def holds(node: ExpressionNode, facts: Facts) -> bool | None:
    """Return whether the condition is true or false where ``facts`` are known; None if they do not tell."""
    form, positive = canonical(node)
    if form in facts.conditions:
        return facts.conditions[form] is positive
    match node:
        case nodes.Unary(op="!", operand=operand):
            inner = holds(operand, facts)
            return None if inner is None else not inner
        case nodes.Logic(op=op, left=left, right=right):
            sides = (holds(left, facts), holds(right, facts))
            decisive = op == "||"
            if decisive in sides:
                return decisive
            return None if None in sides else not decisive
    return None
