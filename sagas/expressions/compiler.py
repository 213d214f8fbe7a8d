"""Nodes to Python closures, once per source; evaluating is then only calls.

Each closure takes the Run and returns a value that has been pulled. Depth is bounded by the parser, loops by the
Run's steps, so evaluation ends and never exhausts the stack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sagas.expressions import loops
from sagas.expressions.errors import ExpressionError, LimitError, MissingError, did_you_mean
from sagas.expressions.functions import FUNCTIONS
from sagas.expressions.limits import Run
from sagas.expressions.nodes import (
    Binary,
    Call,
    Comprehension,
    Conditional,
    Constant,
    Default,
    Has,
    Index,
    ListOf,
    Logic,
    MapOf,
    Name,
    Node,
    Select,
    Unary,
)
from sagas.expressions.operators import OPERATORS, UnsuitableError, concatenate, negate, refusal
from sagas.expressions.static import call_problem, is_text, null_tested
from sagas.expressions.values import kind_of, pull

Code = Callable[[Run], Any]

_SHOWN_SOURCE = 50
_SHOWN_FIELDS = 8


class Compiler:
    """Compiles one expression; ``slots`` is then the number of comprehension variables a Run needs."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._scope: dict[str, int] = {}
        self.slots = 0

    def compile(self, node: Node) -> Code:
        match node:
            case Constant(value=value):
                return lambda run: value
            case Name():
                return self._name(node)
            case Select():
                return self._select(node)
            case Index():
                return self._index(node)
            case ListOf(items=items):
                parts = [self.compile(item) for item in items]
                return lambda run: [part(run) for part in parts]
            case MapOf():
                return self._map(node)
            case Unary():
                return self._unary(node)
            case Binary():
                return self._binary(node)
            case Logic():
                return self._logic(node)
            case Conditional():
                return self._conditional(node)
            case Has():
                return self._has(node)
            case Default():
                return self._default(node)
            case Call():
                return self._call(node)
            case Comprehension():
                return self._comprehension(node)
        raise TypeError(type(node).__name__)

    def _text(self, node: Node) -> str:
        text = " ".join(self._source[node.offset : node.end].split())
        return text if len(text) <= _SHOWN_SOURCE else text[:_SHOWN_SOURCE] + "…"

    def _name(self, node: Name) -> Code:
        name, offset = node.name, node.offset
        slot = self._scope.get(name)
        if slot is not None:
            return lambda run: run.slots[slot]

        def root(run: Run) -> Any:
            try:
                return pull(run.context[name])
            except KeyError:
                hint = did_you_mean(name, map(str, run.context))
                raise ExpressionError(f"there is nothing named '{name}' here{hint}", offset) from None

        return root

    def _select(self, node: Select) -> Code:
        operand, field, offset, owner = self.compile(node.operand), node.field, node.offset, self._text(node.operand)

        def select(run: Run) -> Any:
            value = operand(run)
            if value.__class__ is dict and field in value:
                return pull(value[field])
            raise _no_field(owner, value, field, offset)

        return select

    def _index(self, node: Index) -> Code:
        operand, key, offset, owner = (
            self.compile(node.operand),
            self.compile(node.key),
            node.offset,
            self._text(node.operand),
        )

        def index(run: Run) -> Any:
            value, at = operand(run), key(run)
            if value.__class__ is list and at.__class__ is int:
                if 0 <= at < len(value):
                    return pull(value[at])
                raise MissingError(f"{owner} has no element {_brief(at)}; it has {len(value)}, the first is 0", offset)
            if at.__class__ is str and value.__class__ is not list:
                if value.__class__ is dict and at in value:
                    return pull(value[at])
                raise _no_field(owner, value, at, offset)
            if value is None:
                raise MissingError(f"{owner} is null and has no elements", offset)
            wants = "an integer" if value.__class__ is list else "a string"
            if value.__class__ in (list, dict):
                raise ExpressionError(f"{owner} is {kind_of(value)}: its index is {wants}, not {kind_of(at)}", offset)
            raise ExpressionError(f"{owner} is {kind_of(value)} and has no elements", offset)

        return index

    def _map(self, node: MapOf) -> Code:
        entries = [(self.compile(key), self.compile(value), key.offset) for key, value in node.entries]

        def build(run: Run) -> Any:
            made: dict[str, Any] = {}
            for key_code, value_code, offset in entries:
                key = key_code(run)
                if key.__class__ is not str:
                    raise ExpressionError(f"a map key is {kind_of(key)}; keys are strings", offset)
                if key in made:
                    raise ExpressionError(f"the map has the key '{key[:40]}' twice", offset)
                made[key] = value_code(run)
            return made

        return build

    def _unary(self, node: Unary) -> Code:
        operand, offset, text, op = self.compile(node.operand), node.offset, self._text(node.operand), node.op

        def invert(run: Run) -> bool:
            value = operand(run)
            if value.__class__ is bool:
                return not value
            raise ExpressionError(f"'!' cannot take {text} ({kind_of(value)}); it takes true or false", offset)

        def minus(run: Run) -> Any:
            value = operand(run)
            try:
                return negate(value)
            except UnsuitableError:
                raise ExpressionError(f"'-' cannot take {text} ({kind_of(value)})", offset) from None

        return invert if op == "!" else minus

    def _binary(self, node: Binary) -> Code:
        op, offset = node.op, node.offset
        if (nullable := null_tested(node)) is not None:
            return self._null_test(nullable, op)
        left, right = self.compile(node.left), self.compile(node.right)
        apply = concatenate if op == "+" and (is_text(node.left) or is_text(node.right)) else OPERATORS[op]
        left_text, right_text = self._text(node.left), self._text(node.right)

        def binary(run: Run) -> Any:
            a, b = left(run), right(run)
            try:
                return apply(run, a, b)
            except UnsuitableError as error:
                raise ExpressionError(refusal(op, left_text, a, right_text, b, error.message), offset) from None
            except ExpressionError as error:
                raise _placed(error, offset) from None

        return binary

    def _null_test(self, node: Node, op: str) -> Code:
        """``x.y == null`` also holds where x is null, so that the test itself needs no test."""
        operand, wanted = self._lenient(node, missing=False), op == "=="
        return lambda run: (operand(run) is None) is wanted

    def _lenient(self, node: Node, *, missing: bool) -> Code:
        """The value of a path, null where a part of it is null; with ``missing`` also where a field is not there."""
        if not isinstance(node, Select):
            return self.compile(node)
        operand, field = self._lenient(node.operand, missing=missing), node.field
        offset, owner = node.offset, self._text(node.operand)

        def select(run: Run) -> Any:
            value = operand(run)
            if value is None:
                return None
            if value.__class__ is dict and field in value:
                return pull(value[field])
            if missing and value.__class__ is dict:
                return None
            raise _no_field(owner, value, field, offset)

        return select

    def _has(self, node: Has) -> Code:
        operand, field = self._lenient(node.operand.operand, missing=True), node.operand.field
        owner, offset = self._text(node.operand.operand), node.offset

        def has(run: Run) -> bool:
            value = operand(run)
            if value is None or value.__class__ is dict:
                return value is not None and field in value
            raise ExpressionError(f"{owner} is {kind_of(value)} and has no fields", offset)

        return has

    def _default(self, node: Default) -> Code:
        value, fallback = self.compile(node.value), self.compile(node.fallback)

        def default(run: Run) -> Any:
            try:
                found = value(run)
            except MissingError:
                found = None
            return fallback(run) if found is None else found

        return default

    def _logic(self, node: Logic) -> Code:
        left, right = self._condition(node.left, node.op), self._condition(node.right, node.op)
        decisive = node.op == "||"

        def logic(run: Run) -> bool:
            try:
                if left(run) is decisive:
                    return decisive
            except LimitError:
                raise
            except ExpressionError:
                # CEL: an error on one side does not matter when the other side decides alone.
                if right(run) is decisive:
                    return decisive
                raise
            return right(run)

        return logic

    def _condition(self, node: Node, where: str) -> Code:
        code, offset, text = self.compile(node), node.offset, self._text(node)

        def condition(run: Run) -> bool:
            value = code(run)
            if value.__class__ is bool:
                return value
            raise ExpressionError(f"'{where}' needs true or false, and {text} is {kind_of(value)}", offset)

        return condition

    def _conditional(self, node: Conditional) -> Code:
        condition = self._condition(node.condition, "?")
        then, otherwise = self.compile(node.then), self.compile(node.otherwise)
        return lambda run: then(run) if condition(run) else otherwise(run)

    def _call(self, node: Call) -> Code:
        args, offset = [self.compile(arg) for arg in node.args], node.offset
        problem = call_problem(node)
        if problem is not None:
            message = problem

            def refuse(run: Run) -> Any:
                raise ExpressionError(message, offset)

            return refuse
        apply = FUNCTIONS[node.name].call

        def call(run: Run) -> Any:
            values = [arg(run) for arg in args]
            try:
                return apply(run, *values)
            except ExpressionError as error:
                raise _placed(error, offset) from None

        return call

    def _comprehension(self, node: Comprehension) -> Code:
        source, source_text = self.compile(node.source), self._text(node.source)
        slot, hidden = self.slots, self._scope.get(node.variable)
        self.slots += 1
        self._scope[node.variable] = slot
        is_test = node.loop != "map"
        body = self._condition(node.body, node.loop) if is_test else self.compile(node.body)
        condition = self._condition(node.condition, node.loop) if node.condition is not None else None
        if hidden is None:
            del self._scope[node.variable]
        else:
            self._scope[node.variable] = hidden
        items = loops.over(source, source_text, node.source.offset, node.loop)
        return loops.loop(node, items, slot, condition, body)


def _placed(error: ExpressionError, offset: int) -> ExpressionError:
    if error.offset < 0:
        error.offset = offset
    return error


def _brief(number: int) -> str:
    text = str(number)
    return text if len(text) <= 20 else text[:20] + "…"


def _no_field(owner: str, value: Any, field: str, offset: int) -> ExpressionError:
    shown = field[:40]
    if value is None:
        return MissingError(f"{owner} is null and has no field '{shown}'; write default({owner}.{shown}, …)", offset)
    if value.__class__ is not dict:
        return ExpressionError(f"{owner} is {kind_of(value)} and has no field '{shown}'", offset)
    known = sorted(str(key) for key in value)
    listed = ", ".join(known[:_SHOWN_FIELDS]) + (", …" if len(known) > _SHOWN_FIELDS else "")
    has = f"it has {listed}" if known else "it is empty"
    return MissingError(f"{owner} has no field '{shown}'; {has}{did_you_mean(field, known)}", offset)
