"""Compiles the nodes of an expression to Python closures, once per source.

Each closure takes the Evaluation and returns a value that has been converted by ``to_cel``. The parser bounds the
depth and the Evaluation's steps bound the loops, so evaluation terminates and never exhausts the stack.
"""

from __future__ import annotations

from typing import Any

from sagas.expressions import closures, nodes
from sagas.expressions.analysis import call_error, is_text, null_test_operand
from sagas.expressions.closures import Code
from sagas.expressions.errors import ExpressionError, LimitError, MissingError
from sagas.expressions.functions import FUNCTIONS
from sagas.expressions.limits import ERROR_WORK, VALUES_PER_STEP, Evaluation
from sagas.expressions.nodes import ExpressionNode
from sagas.expressions.operators import OPERATORS, UnsuitableOperandsError, concatenate, negate, operand_error_message
from sagas.expressions.values import type_name
from sagas.text.shortening import shorten

_SHOWN_SOURCE = 50


class Compiler:
    """Compiles one expression; afterwards ``slots`` is the number of comprehension variables an Evaluation needs."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._scope: dict[str, int] = {}
        self.slots = 0

    def compile(self, node: ExpressionNode) -> Code:
        match node:
            case nodes.Constant(value=value):
                return lambda run: value
            case nodes.Identifier():
                return self._name(node)
            case nodes.Select():
                return self._select(node)
            case nodes.Index():
                return self._index(node)
            case nodes.ListLiteral(items=items):
                return closures.list_literal([self.compile(item) for item in items])
            case nodes.MapLiteral():
                return self._map(node)
            case nodes.Unary():
                return self._unary(node)
            case nodes.Binary():
                return self._binary(node)
            case nodes.Logic():
                return self._logic(node)
            case nodes.Conditional():
                return self._conditional(node)
            case nodes.Has():
                return self._has(node)
            case nodes.Default():
                return self._default(node)
            case nodes.FunctionCall():
                return self._call(node)
            case nodes.Comprehension():
                return self._comprehension(node)
        raise TypeError(type(node).__name__)

    def _text(self, node: ExpressionNode) -> str:
        return shorten(" ".join(self._source[node.offset : node.end].split()), _SHOWN_SOURCE)

    def _name(self, node: nodes.Identifier) -> Code:
        slot = self._scope.get(node.name)
        if slot is not None:
            return lambda run: run.slots[slot]
        return closures.name_access(node.name, node.offset)

    def _select(self, node: nodes.Select) -> Code:
        return closures.field_access(self.compile(node.operand), node.field, self._text(node.operand), node.offset)

    def _index(self, node: nodes.Index) -> Code:
        operand, key = self.compile(node.operand), self.compile(node.key)
        return closures.element_access(operand, key, self._text(node.operand), node.offset)

    def _map(self, node: nodes.MapLiteral) -> Code:
        entries = [(self.compile(key), self.compile(value), key.offset) for key, value in node.entries]

        def build(run: Evaluation) -> Any:
            run.charge(1 + len(entries) // VALUES_PER_STEP)
            made: dict[str, Any] = {}
            for key_code, value_code, offset in entries:
                key = key_code(run)
                if key.__class__ is not str:
                    raise ExpressionError(f"a map key is {type_name(key)}; keys are strings", offset)
                if key in made:
                    raise ExpressionError(f"the map has the key '{key[:40]}' twice", offset)
                made[key] = value_code(run)
            return made

        return build

    def _unary(self, node: nodes.Unary) -> Code:
        operand, offset, text, op = self.compile(node.operand), node.offset, self._text(node.operand), node.op

        def invert(run: Evaluation) -> bool:
            value = operand(run)
            if value.__class__ is bool:
                return not value
            raise ExpressionError(f"'!' cannot take {text} ({type_name(value)}); it takes true or false", offset)

        def minus(run: Evaluation) -> Any:
            value = operand(run)
            try:
                return negate(value)
            except UnsuitableOperandsError:
                raise ExpressionError(f"'-' cannot take {text} ({type_name(value)})", offset) from None

        return invert if op == "!" else minus

    def _binary(self, node: nodes.Binary) -> Code:
        op, offset = node.op, node.offset
        if (nullable := null_test_operand(node)) is not None:
            return self._null_test(nullable, op)
        left, right = self.compile(node.left), self.compile(node.right)
        apply = concatenate if op == "+" and (is_text(node.left) or is_text(node.right)) else OPERATORS[op]
        left_text, right_text = self._text(node.left), self._text(node.right)

        def binary(run: Evaluation) -> Any:
            a, b = left(run), right(run)
            try:
                return apply(run, a, b)
            except UnsuitableOperandsError as error:
                raise ExpressionError(
                    operand_error_message(op, left_text, a, right_text, b, error.message), offset
                ) from None
            except ExpressionError as error:
                raise _with_offset(error, offset) from None

        return binary

    def _null_test(self, node: ExpressionNode, op: str) -> Code:
        """``x.y == null`` also holds if x is null, so that the test needs no guard of its own."""
        operand, wanted = self._lenient(node, missing=False), op == "=="
        return lambda run: (operand(run) is None) is wanted

    def _lenient(self, node: ExpressionNode, *, missing: bool) -> Code:
        """The value of a path, or null if a part of it is null; with ``missing`` also if a field is missing."""
        if not isinstance(node, nodes.Select):
            return self.compile(node)
        operand = self._lenient(node.operand, missing=missing)
        return closures.lenient_field_access(
            operand, node.field, self._text(node.operand), node.offset, missing=missing
        )

    def _has(self, node: nodes.Has) -> Code:
        path = node.operand
        operand = self._lenient(path.operand, missing=True)
        return closures.field_presence(operand, path.field, self._text(path.operand), node.offset)

    def _default(self, node: nodes.Default) -> Code:
        value, fallback = self.compile(node.value), self.compile(node.fallback)

        def default(run: Evaluation) -> Any:
            try:
                result = value(run)
            except MissingError:
                run.charge_work(ERROR_WORK)
                result = None
            return fallback(run) if result is None else result

        return default

    def _logic(self, node: nodes.Logic) -> Code:
        left, right = self._condition(node.left, node.op), self._condition(node.right, node.op)
        decisive = node.op == "||"

        def logic(run: Evaluation) -> bool:
            try:
                if left(run) is decisive:
                    return decisive
            except LimitError:
                raise
            except ExpressionError:
                run.charge_work(ERROR_WORK)
                # CEL ignores an error on one side if the other side decides the result.
                if right(run) is decisive:
                    return decisive
                raise
            return right(run)

        return logic

    def _condition(self, node: ExpressionNode, where: str) -> Code:
        code, offset, text = self.compile(node), node.offset, self._text(node)

        def condition(run: Evaluation) -> bool:
            value = code(run)
            if value.__class__ is bool:
                return value
            raise ExpressionError(f"'{where}' needs true or false, and {text} is {type_name(value)}", offset)

        return condition

    def _conditional(self, node: nodes.Conditional) -> Code:
        condition = self._condition(node.condition, "?")
        then, otherwise = self.compile(node.then), self.compile(node.otherwise)
        return lambda run: then(run) if condition(run) else otherwise(run)

    def _call(self, node: nodes.FunctionCall) -> Code:
        args, offset = [self.compile(arg) for arg in node.args], node.offset
        problem = call_error(node)
        if problem is not None:
            message = problem

            def refuse(run: Evaluation) -> Any:
                raise ExpressionError(message, offset)

            return refuse
        apply, work = FUNCTIONS[node.name].call, FUNCTIONS[node.name].work

        def call(run: Evaluation) -> Any:
            values = [arg(run) for arg in args]
            run.charge_work(work)
            try:
                return apply(run, *values)
            except ExpressionError as error:
                raise _with_offset(error, offset) from None

        return call

    def _comprehension(self, node: nodes.Comprehension) -> Code:
        source, source_text = self.compile(node.source), self._text(node.source)
        slot, hidden = self.slots, self._scope.get(node.variable)
        self.slots += 1
        self._scope[node.variable] = slot
        is_test = node.kind != "map"
        body = self._condition(node.body, node.kind) if is_test else self.compile(node.body)
        condition = self._condition(node.condition, node.kind) if node.condition is not None else None
        if hidden is None:
            del self._scope[node.variable]
        else:
            self._scope[node.variable] = hidden
        items = closures.iterated_items(source, source_text, node.source.offset, node.kind)
        return closures.comprehension(node, items, slot, condition, body)


def _with_offset(error: ExpressionError, offset: int) -> ExpressionError:
    if error.offset < 0:
        error.offset = offset
    return error
