"""The parsed form of an expression. Offsets count characters of the source; ``end`` is the first one after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Loop = Literal["all", "exists", "exists_one", "filter", "map"]


@dataclass(frozen=True, slots=True)
class Node:
    offset: int
    end: int
    depth: int

    def children(self) -> tuple[Node, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Constant(Node):
    """A literal: None, a boolean, an int, a Decimal or a string."""

    value: Any


@dataclass(frozen=True, slots=True)
class Name(Node):
    name: str


@dataclass(frozen=True, slots=True)
class Select(Node):
    """``operand.field``."""

    operand: Node
    field: str

    def children(self) -> tuple[Node, ...]:
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Index(Node):
    """``operand[key]``."""

    operand: Node
    key: Node

    def children(self) -> tuple[Node, ...]:
        return (self.operand, self.key)


@dataclass(frozen=True, slots=True)
class ListOf(Node):
    items: tuple[Node, ...]

    def children(self) -> tuple[Node, ...]:
        return self.items


@dataclass(frozen=True, slots=True)
class MapOf(Node):
    entries: tuple[tuple[Node, Node], ...]

    def children(self) -> tuple[Node, ...]:
        return tuple(part for entry in self.entries for part in entry)


@dataclass(frozen=True, slots=True)
class Unary(Node):
    op: Literal["!", "-"]
    operand: Node

    def children(self) -> tuple[Node, ...]:
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Binary(Node):
    """Arithmetic, comparison and ``in``."""

    op: str
    left: Node
    right: Node

    def children(self) -> tuple[Node, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Logic(Node):
    """``&&`` and ``||``: not in Binary because an error on one side may be absorbed by the other."""

    op: Literal["&&", "||"]
    left: Node
    right: Node

    def children(self) -> tuple[Node, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Conditional(Node):
    condition: Node
    then: Node
    otherwise: Node

    def children(self) -> tuple[Node, ...]:
        return (self.condition, self.then, self.otherwise)


@dataclass(frozen=True, slots=True)
class Has(Node):
    """``has(a.b)``."""

    operand: Select

    def children(self) -> tuple[Node, ...]:
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Default(Node):
    """``default(value, fallback)``: not a function because a missing field in ``value`` is no error."""

    value: Node
    fallback: Node

    def children(self) -> tuple[Node, ...]:
        return (self.value, self.fallback)


@dataclass(frozen=True, slots=True)
class Call(Node):
    """``name(args)``, or with ``method`` ``args[0].name(args[1:])``."""

    name: str
    args: tuple[Node, ...]
    method: bool

    def children(self) -> tuple[Node, ...]:
        return self.args


@dataclass(frozen=True, slots=True)
class Comprehension(Node):
    """``source.loop(variable, body)``; ``map`` may have a ``condition`` between the two."""

    loop: Loop
    source: Node
    variable: str
    condition: Node | None
    body: Node

    def children(self) -> tuple[Node, ...]:
        inner = (self.body,) if self.condition is None else (self.condition, self.body)
        return (self.source, *inner)


def walk(node: Node) -> Iterator[Node]:
    """The node and everything in it, in the order of the source for equal levels."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children()))


def path_of(node: Node) -> tuple[str, ...] | None:
    """``a.b["c"]`` as ("a", "b", "c"); None for anything that is not a name with fields."""
    fields: list[str] = []
    while True:
        match node:
            case Select(operand=operand, field=field):
                fields.append(field)
                node = operand
            case Index(operand=operand, key=Constant(value=str(field))):
                fields.append(field)
                node = operand
            case Name(name=name):
                return (name, *reversed(fields))
            case _:
                return None
