"""Nodes to Python closures, once per source; evaluating is then only calls.

Each closure takes the Run and returns a value that has been pulled. Depth is bounded by the parser, loops by the
Run's steps, so evaluation ends and never exhausts the stack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sagas.expressions import access, loops
from sagas.expressions.errors import ExpressionError, LimitError, MissingError
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
from sagas.expressions.values import kind_of

Code = Callable[[Run], Any]

_SHOWN_SOURCE = 50


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
        slot = self._scope.get(node.name)
        if slot is not None:
            return lambda run: run.slots[slot]
        return access.root(node.name, node.offset)

    def _select(self, node: Select) -> Code:
        return access.field(self.compile(node.operand), node.field, self._text(node.operand), node.offset)

    def _index(self, node: Index) -> Code:
        operand, key = self.compile(node.operand), self.compile(node.key)
        return access.element(operand, key, self._text(node.operand), node.offset)

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
        operand = self._lenient(node.operand, missing=missing)
        return access.lenient_field(operand, node.field, self._text(node.operand), node.offset, missing=missing)

    def _has(self, node: Has) -> Code:
        path = node.operand
        operand = self._lenient(path.operand, missing=True)
        return access.has_field(operand, path.field, self._text(path.operand), node.offset)

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
