"""The syntax tree of an expression. Offsets count characters of the source; ``end`` is exclusive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

ComprehensionKind = Literal["all", "exists", "exists_one", "filter", "map"]


@dataclass(frozen=True, slots=True)
class ExpressionNode:
    """Base of all nodes. ``depth`` is the height of the subtree, 1 for a leaf."""

    offset: int
    end: int
    depth: int

    def children(self) -> tuple[ExpressionNode, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Constant(ExpressionNode):
    """A literal: None, a boolean, an int, a Decimal or a string."""

    value: Any


@dataclass(frozen=True, slots=True)
class Identifier(ExpressionNode):
    name: str


@dataclass(frozen=True, slots=True)
class Select(ExpressionNode):
    """``operand.field``."""

    operand: ExpressionNode
    field: str

    def children(self) -> tuple[ExpressionNode, ...]:
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Index(ExpressionNode):
    """``operand[key]``."""

    operand: ExpressionNode
    key: ExpressionNode

    def children(self) -> tuple[ExpressionNode, ...]:
        return (self.operand, self.key)


@dataclass(frozen=True, slots=True)
class ListLiteral(ExpressionNode):
    items: tuple[ExpressionNode, ...]

    def children(self) -> tuple[ExpressionNode, ...]:
        return self.items


@dataclass(frozen=True, slots=True)
class MapLiteral(ExpressionNode):
    entries: tuple[tuple[ExpressionNode, ExpressionNode], ...]

    def children(self) -> tuple[ExpressionNode, ...]:
        return tuple(part for entry in self.entries for part in entry)


@dataclass(frozen=True, slots=True)
class Unary(ExpressionNode):
    op: Literal["!", "-"]
    operand: ExpressionNode

    def children(self) -> tuple[ExpressionNode, ...]:
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Binary(ExpressionNode):
    """Arithmetic, comparison and ``in``."""

    op: str
    left: ExpressionNode
    right: ExpressionNode

    def children(self) -> tuple[ExpressionNode, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Logic(ExpressionNode):
    """``&&`` and ``||``: separate from Binary because an error on one side may be absorbed by the other."""

    op: Literal["&&", "||"]
    left: ExpressionNode
    right: ExpressionNode

    def children(self) -> tuple[ExpressionNode, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Conditional(ExpressionNode):
    condition: ExpressionNode
    then: ExpressionNode
    otherwise: ExpressionNode

    def children(self) -> tuple[ExpressionNode, ...]:
        return (self.condition, self.then, self.otherwise)


@dataclass(frozen=True, slots=True)
class Has(ExpressionNode):
    """``has(a.b)``."""

    operand: Select

    def children(self) -> tuple[ExpressionNode, ...]:
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Default(ExpressionNode):
    """``default(value, fallback)``: not a FunctionCall because a missing field in ``value`` is not an error."""

    value: ExpressionNode
    fallback: ExpressionNode

    def children(self) -> tuple[ExpressionNode, ...]:
        return (self.value, self.fallback)


@dataclass(frozen=True, slots=True)
class FunctionCall(ExpressionNode):
    """A call of a function, written ``name(args)``, or with ``method`` as ``args[0].name(args[1:])``."""

    name: str
    args: tuple[ExpressionNode, ...]
    method: bool

    def children(self) -> tuple[ExpressionNode, ...]:
        return self.args


@dataclass(frozen=True, slots=True)
class Comprehension(ExpressionNode):
    """``source.kind(variable, body)``; ``map`` may have a ``condition`` before the body."""

    kind: ComprehensionKind
    source: ExpressionNode
    variable: str
    condition: ExpressionNode | None
    body: ExpressionNode

    def children(self) -> tuple[ExpressionNode, ...]:
        inner = (self.body,) if self.condition is None else (self.condition, self.body)
        return (self.source, *inner)


def walk(node: ExpressionNode) -> Iterator[ExpressionNode]:
    """The node and all its descendants, depth first, in pre-order."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children()))


def path_of(node: ExpressionNode) -> tuple[str, ...] | None:
    """``a.b["c"]`` as ("a", "b", "c"); None for anything but a name followed by fields."""
    fields: list[str] = []
    while True:
        match node:
            case Select(operand=operand, field=field):
                fields.append(field)
                node = operand
            case Index(operand=operand, key=Constant(value=str(field))):
                fields.append(field)
                node = operand
            case Identifier(name=name):
                return (name, *reversed(fields))
            case _:
                return None
