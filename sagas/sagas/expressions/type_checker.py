"""Static type checks of expressions: unknown functions, wrong arity, arithmetic on strings.

Types are those of JSON Schema (string, integer, number, boolean, array, object, null). None means unknown, and an
unknown type is never reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from sagas.expressions import nodes
from sagas.expressions.analysis import call_error, is_text
from sagas.expressions.expression import Expression
from sagas.expressions.functions import FUNCTIONS
from sagas.expressions.nodes import ExpressionNode
from sagas.expressions.other_languages import FIELDS

TypeOf = Callable[[tuple[str, ...]], str | None]

ANY_ELEMENT = "[]"
"""Any element of a list, in a path: ``input.lines.map(l, l.sku)`` looks up ("input", "lines", "[]", "sku")."""

_NUMBERS = ("integer", "number")
_WITHOUT_FIELDS = {"string": "a string", "integer": "a number", "number": "a number", "boolean": "true or false"}
"""The types whose values have no fields, each with its article."""
_ADVICE = "write decimal(x) to calculate with a number in a string"


@dataclass(frozen=True, slots=True)
class _InferredType:
    """The inferred type of a value: its type, the path it was read from, and the type of its elements."""

    kind: str | None = None
    path: tuple[str, ...] | None = None
    element: _InferredType | None = None


_UNKNOWN_TYPE = _InferredType()


@dataclass(frozen=True, slots=True, order=True)
class TypeMistake:
    """A mistake at an offset; the help is empty if the message says what to write."""

    offset: int
    message: str
    kind: Literal["operator", "call", "field", "comparison"]
    help: str = ""


def check_types(
    expression: Expression,
    type_of: TypeOf,
    problem_of: Callable[[tuple[str, ...]], tuple[str, str] | None] = lambda _: None,
    values_of: Callable[[tuple[str, ...]], tuple[str, ...]] = lambda _: (),
) -> list[TypeMistake]:
    """Every mistake, in source order.

    ``type_of`` returns the type of the value at a path, or None if unknown; paths may contain :data:`ANY_ELEMENT`.
    ``problem_of`` returns the message and the help for a path that cannot exist, ``values_of`` the only strings that
    the value at a path can be.
    """
    checker = _TypeChecker(expression.source, type_of, problem_of, values_of)
    checker.infer(expression.node, {})
    return sorted(set(checker.found))


def infer_type(expression: Expression, type_of: TypeOf) -> str | None:
    """The type of the expression's value; None if unknown. ``type_of`` as for :func:`check_types`."""
    inferred = _TypeChecker(expression.source, type_of).infer(expression.node, {})
    return inferred.kind


class _TypeChecker:
    def __init__(
        self,
        source: str,
        type_of: TypeOf,
        problem_of: Callable[[tuple[str, ...]], tuple[str, str] | None] = lambda _: None,
        values_of: Callable[[tuple[str, ...]], tuple[str, ...]] = lambda _: (),
    ) -> None:
        self._source = source
        self._type_of = type_of
        self._problem_of = problem_of
        self._values_of = values_of
        self.found: list[TypeMistake] = []

    def _report(
        self,
        node: ExpressionNode,
        message: str,
        kind: Literal["operator", "call", "field", "comparison"] = "operator",
        help: str = "",
    ) -> None:
        self.found.append(TypeMistake(node.offset, message, kind, help))

    def _text(self, node: ExpressionNode) -> str:
        return self._source[node.offset : node.end]

    def _at(self, path: tuple[str, ...]) -> _InferredType:
        return _InferredType(self._type_of(path), path)

    def _element(self, of: _InferredType) -> _InferredType:
        if of.element is not None:
            return of.element
        return (
            self._at((*of.path, ANY_ELEMENT)) if of.path is not None and of.kind in ("array", None) else _UNKNOWN_TYPE
        )

    def infer(self, node: ExpressionNode, scope: Mapping[str, _InferredType]) -> _InferredType:
        """The type of a node's value; reports the errors in it."""
        match node:
            case nodes.Constant(value=value):
                return _InferredType(_constant_type(value))
            case nodes.Identifier(name=name):
                return scope[name] if name in scope else self._at((name,))
            case nodes.Select(operand=operand, field=field):
                return self._select(node, self.infer(operand, scope), field)
            case nodes.Index():
                return self._index(node, scope)
            case nodes.ListLiteral(items=items):
                types = [self.infer(item, scope) for item in items]
                alike = bool(types) and all(item.kind == types[0].kind for item in types)
                strings = any(item.kind == "string" for item in types)
                return _InferredType(
                    "array", element=types[0] if alike else _InferredType("string") if strings else None
                )
            case nodes.MapLiteral():
                self._visit(node, scope)
                return _InferredType("object")
            case nodes.Has():
                self._visit(node, scope)
                return _InferredType("boolean")
            case nodes.Unary(op=op, operand=operand):
                types = self.infer(operand, scope)
                if op == "-" and types.kind == "string":
                    self._report(node, f"'-' cannot take {self._text(operand)}, a string; {_ADVICE}")
                if op == "!":
                    self._check_condition(op, operand, types)
                return _InferredType("boolean") if op == "!" else _InferredType(types.kind)
            case nodes.Logic(op=op, left=left, right=right):
                for operand in (left, right):
                    self._check_condition(op, operand, self.infer(operand, scope))
                return _InferredType("boolean")
            case nodes.Binary():
                return self._binary(node, scope)
            case nodes.Conditional(condition=condition, then=then, otherwise=otherwise):
                self._check_condition("?", condition, self.infer(condition, scope))
                return _common_type(self.infer(then, scope), self.infer(otherwise, scope))
            case nodes.Default(value=value, fallback=fallback):
                return _common_type(self.infer(value, scope), self.infer(fallback, scope))
            case nodes.FunctionCall():
                return self._call(node, scope)
            case nodes.Comprehension():
                return self._comprehension(node, scope)
        return _UNKNOWN_TYPE

    def _visit(self, node: ExpressionNode, scope: Mapping[str, _InferredType]) -> None:
        for child in node.children():
            self.infer(child, scope)

    def _select(self, node: nodes.Select | nodes.Index, owner: _InferredType, field: str) -> _InferredType:
        if owner.kind == "array":
            whole = self._text(node.operand)
            written = FIELDS[field].format(whole) if field in FIELDS else f"{whole}[0].{field}"
            self._report(node, f"`{whole}` is a list, which has no `{field}`", "field", f"write {written}")
            return _UNKNOWN_TYPE
        if owner.kind in _WITHOUT_FIELDS:
            whole = self._text(node.operand)
            written = FIELDS[field].format(whole) if field in FIELDS and owner.kind == "string" else whole
            self._report(
                node, f"`{whole}` is {_WITHOUT_FIELDS[owner.kind]}, which has no `{field}`", "field", f"write {written}"
            )
            return _UNKNOWN_TYPE
        if owner.path is None:
            return _UNKNOWN_TYPE
        path = (*owner.path, field)
        if (problem := self._problem_of(path)) is not None:
            self._report(node, problem[0], "field", problem[1])
            return _UNKNOWN_TYPE
        return self._at(path)

    def _check_condition(self, op: str, operand: ExpressionNode, type: _InferredType) -> None:
        """Report an operand that is certainly neither true nor false."""
        if type.kind not in (None, "boolean"):
            help = "write a comparison, or default(x, y) for a value that may be missing"
            self._report(
                operand, f"'{op}' needs true or false, and {self._text(operand)} is of type {type.kind}", help=help
            )

    def _check_comparison(self, path: tuple[str, ...] | None, other: ExpressionNode) -> None:
        values = self._values_of(path) if path is not None else ()
        compared = other.items if isinstance(other, nodes.ListLiteral) else (other,)
        for side in compared if values else ():
            if isinstance(side, nodes.Constant) and isinstance(side.value, str) and side.value not in values:
                shown = ", ".join(values)
                message = f"{self._text(side)} is not a value of `{'.'.join(path or ())}`"
                self._report(side, message, "comparison", f"its values are {shown}")

    def _index(self, node: nodes.Index, scope: Mapping[str, _InferredType]) -> _InferredType:
        owner, key = self.infer(node.operand, scope), self.infer(node.key, scope)
        if isinstance(node.key, nodes.Constant) and isinstance(node.key.value, str):
            return self._select(node, owner, node.key.value)
        return self._element(owner) if key.kind == "integer" else _UNKNOWN_TYPE

    def _binary(self, node: nodes.Binary, scope: Mapping[str, _InferredType]) -> _InferredType:
        left, right = self.infer(node.left, scope), self.infer(node.right, scope)
        kinds = (left.kind, right.kind)
        if node.op in ("+", "-", "*", "/", "%"):
            return self._arithmetic(node, kinds)
        if node.op in ("==", "!=", "in"):
            self._check_comparison(left.path, node.right)
            self._check_comparison(right.path, node.left)
        if node.op == "in" and right.kind == "string":
            text = f"{self._text(node.right)}.contains({self._text(node.left)})"
            self._report(node, f"'in' cannot take {self._text(node.right)}, a string; write {text}")
        mixed = "string" in kinds and any(kind in _NUMBERS for kind in kinds)
        if node.op != "in" and mixed:
            self._report(node, f"'{node.op}' compares a string with a number in {self._text(node)}; {_ADVICE}")
        return _InferredType("boolean")

    def _arithmetic(self, node: nodes.Binary, kinds: tuple[str | None, str | None]) -> _InferredType:
        if node.op in ("/", "%") and _is_zero(node.right):
            self._report(node, f"{self._text(node)} divides by zero", help="divide by a number other than zero")
        if node.op == "+" and kinds == ("array", "array"):
            return _InferredType("array")
        if node.op == "+" and (is_text(node.left) or is_text(node.right)):
            if any(kind not in ("string", None) for kind in kinds):
                self._report(
                    node, f"'+' cannot concatenate a value that is not a string in {self._text(node)}; write string(x)"
                )
            return _InferredType("string")
        for operand, kind in ((node.left, kinds[0]), (node.right, kinds[1])):
            if kind == "string":
                self._report(node, f"'{node.op}' cannot take {self._text(operand)}, a string; {_ADVICE}")
                return _UNKNOWN_TYPE
            if kind in ("boolean", "object", "null"):
                self._report(node, f"'{node.op}' cannot take {self._text(operand)}: its type is {kind}")
                return _UNKNOWN_TYPE
        if kinds == ("integer", "integer"):
            return _InferredType("integer")
        return _InferredType("number") if all(kind in _NUMBERS for kind in kinds) else _UNKNOWN_TYPE

    def _call(self, node: nodes.FunctionCall, scope: Mapping[str, _InferredType]) -> _InferredType:
        types = [self.infer(arg, scope) for arg in node.args]
        problem = call_error(node)
        if problem is not None:
            self._report(node, problem, "call")
            return _UNKNOWN_TYPE
        function = FUNCTIONS[node.name]
        if function.takes_numbers:
            for arg, value in zip(node.args, types, strict=True):
                if "string" in (value.kind, self._element(value).kind):
                    self._report(node, f"{node.name} takes numbers, and {self._text(arg)} has strings; {_ADVICE}")
        return _InferredType(function.result)

    def _comprehension(self, node: nodes.Comprehension, scope: Mapping[str, _InferredType]) -> _InferredType:
        source = self.infer(node.source, scope)
        variable = _InferredType("string") if source.kind == "object" else self._element(source)
        inner = {**scope, node.variable: variable}
        if node.condition is not None:
            self.infer(node.condition, inner)
        body = self.infer(node.body, inner)
        if node.kind == "map":
            return _InferredType("array", element=body)
        return (
            _InferredType("array", source.path, source.element) if node.kind == "filter" else _InferredType("boolean")
        )


def _common_type(first: _InferredType, other: _InferredType) -> _InferredType:
    return first if first.kind == other.kind else _UNKNOWN_TYPE


def _is_zero(node: ExpressionNode) -> bool:
    match node:
        case nodes.Constant(value=bool()):
            return False
        case nodes.Constant(value=int() | Decimal() as value):
            return value == 0
        case nodes.Unary(op="-", operand=operand):
            return _is_zero(operand)
    return False


def _constant_type(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case Decimal():
            return "number"
    return "string"
