"""What the value of a field may look like. Each shape reads a node and describes itself as JSON Schema.

``read`` returns the plain value, or None after it has reported a mistake. Shapes know nothing about sagas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from sagas.definition.diagnostics import Report, did_you_mean
from sagas.definition.durations import PATTERN, parse_duration
from sagas.definition.source import Node
from sagas.step import ENVELOPE

Schema = dict[str, Any]


class Shape(Protocol):
    """One kind of value."""

    def read(self, node: Node, report: Report) -> Any: ...

    def schema(self) -> Schema: ...


def describe(node: Node) -> str:
    """What the author wrote there, in words."""
    value = node.value
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= 40 else "a text"
    return str(value)


def wrong(node: Node, report: Report, wanted: str) -> None:
    report.add("SAGA106", node, f"expected {wanted}, found {describe(node)}", f"Write {wanted} here.")


@dataclass(frozen=True)
class Text:
    """A string; with ``pattern`` a name (``wanted`` says in words which)."""

    pattern: str | None = None
    wanted: str = "a text"
    reserved: tuple[str, ...] = ()
    allow_empty: bool = False

    def read(self, node: Node, report: Report) -> str | None:
        if not isinstance(node.value, str) or (not node.value and not self.allow_empty):
            return wrong(node, report, self.wanted)
        if self.pattern and not re.fullmatch(self.pattern, node.value):
            report.add("SAGA107", node, f"`{node.value}` is not {self.wanted}")
        elif node.value in self.reserved:
            report.add("SAGA107", node, f"`{node.value}` is a reserved word")
        return node.value

    def schema(self) -> Schema:
        result: Schema = {"type": "string"}
        if not self.allow_empty:
            result["minLength"] = 1
        if self.pattern:
            result["pattern"] = f"^({self.pattern})$"
        if self.reserved:
            result["not"] = {"enum": list(self.reserved)}
        return result


@dataclass(frozen=True)
class Duration:
    """Seconds. ``zero`` allows 0s."""

    zero: bool = False

    def read(self, node: Node, report: Report) -> float | None:
        if not isinstance(node.value, str):
            report.add("SAGA109", node, f"expected a duration, found {describe(node)}")
            return None
        try:
            seconds = parse_duration(node.value)
        except ValueError as error:
            report.add("SAGA109", node, str(error))
            return None
        if seconds <= 0 and not self.zero:
            report.add("SAGA109", node, "a duration of nothing is not possible here")
            return None
        return seconds

    def schema(self) -> Schema:
        result: Schema = {"type": "string", "pattern": PATTERN}
        return result if self.zero else {**result, "not": {"pattern": "^[0.]+(ms|s|m|h|d)$"}}


@dataclass(frozen=True)
class Integer:
    minimum: int = 0
    maximum: int | None = None

    def read(self, node: Node, report: Report) -> int | None:
        value = node.value
        upper = self.maximum
        if not isinstance(value, int) or isinstance(value, bool):
            return wrong(node, report, "a whole number")
        if value < self.minimum or (upper is not None and value > upper):
            bounds = f"of at least {self.minimum}" if upper is None else f"from {self.minimum} to {upper}"
            return wrong(node, report, f"a whole number {bounds}")
        return value

    def schema(self) -> Schema:
        result: Schema = {"type": "integer", "minimum": self.minimum}
        return result if self.maximum is None else {**result, "maximum": self.maximum}


@dataclass(frozen=True)
class Number:
    minimum: float

    def read(self, node: Node, report: Report) -> float | None:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float) or node.value < self.minimum:
            return wrong(node, report, f"a number of at least {self.minimum:g}")
        return float(node.value)

    def schema(self) -> Schema:
        return {"type": "number", "minimum": self.minimum}


@dataclass(frozen=True)
class Boolean:
    def read(self, node: Node, report: Report) -> bool | None:
        return node.value if isinstance(node.value, bool) else wrong(node, report, "true or false")

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Choice:
    options: tuple[Any, ...]

    def read(self, node: Node, report: Report) -> Any:
        for option in self.options:
            if type(node.value) is type(option) and node.value == option:
                return option
        words = ", ".join(f"`{str(option).lower()}`" for option in self.options)
        close = did_you_mean(node.value, map(str, self.options)) if isinstance(node.value, str) else ""
        wanted = f"one of {words}" if len(self.options) > 1 else words
        report.add("SAGA106", node, f"expected {wanted}, found {describe(node)}", close or f"Write {wanted} here.")
        return None

    def schema(self) -> Schema:
        return {"enum": list(self.options)}


@dataclass(frozen=True)
class Json:
    """Any JSON value, perhaps with expressions in it."""

    def read(self, node: Node, report: Report) -> Any:
        return node.json()

    def schema(self) -> Schema:
        return {}


@dataclass(frozen=True)
class Arguments:
    """The arguments of an action, by name, perhaps with expressions in them."""

    def read(self, node: Node, report: Report) -> dict[str, Any] | None:
        if not isinstance(node.value, dict):
            return wrong(node, report, "a mapping")
        if ENVELOPE in node.value:
            report.add("SAGA107", node.key(ENVELOPE), f"the engine itself gives every action an argument `{ENVELOPE}`")
        return node.json()

    def schema(self) -> Schema:
        return {"type": "object", "properties": {ENVELOPE: False}}


@dataclass(frozen=True)
class Condition:
    """A CEL expression that gives true or false, bare or in ``${{ }}``, or a literal true or false."""

    def read(self, node: Node, report: Report) -> str | None:
        if isinstance(node.value, bool):
            return str(node.value).lower()
        if not isinstance(node.value, str) or not node.value.strip():
            return wrong(node, report, "an expression")
        return node.value

    def schema(self) -> Schema:
        return {"type": ["string", "boolean"]}


@dataclass(frozen=True)
class Items:
    """A list literal, or one expression that gives the list."""

    def read(self, node: Node, report: Report) -> Any:
        if isinstance(node.value, list):
            return node.json()
        if isinstance(node.value, str) and "${{" in node.value:
            return node.value
        return wrong(node, report, 'a list or an expression such as "${{ input.lines }}"')

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "array"}, {"type": "string", "pattern": r"\$\{\{"}]}


@dataclass(frozen=True)
class ListOf:
    shape: Shape
    minimum: int = 0

    def read(self, node: Node, report: Report) -> list[Any] | None:
        if not isinstance(node.value, list):
            return wrong(node, report, "a list")
        if len(node.value) < self.minimum:
            entries = "one entry" if self.minimum == 1 else f"{self.minimum} entries"
            found = "an empty list" if not node.value else f"{len(node.value)}"
            report.add("SAGA106", node, f"expected a list of at least {entries}, found {found}", "Add what is missing.")
            return None
        return [value for value in (self.shape.read(item, report) for item in node.value) if value is not None]

    def schema(self) -> Schema:
        result: Schema = {"type": "array", "items": self.shape.schema()}
        return {**result, "minItems": self.minimum} if self.minimum else result


@dataclass(frozen=True)
class Texts:
    """A mapping of names to texts: labels. Numbers and booleans are taken as text."""

    maximum: int
    pattern: str

    def read(self, node: Node, report: Report) -> dict[str, str] | None:
        if not isinstance(node.value, dict):
            return wrong(node, report, "a mapping of names to texts")
        if len(node.value) > self.maximum:
            report.add(
                "SAGA106", node, f"at most {self.maximum} are allowed, found {len(node.value)}", "Remove some of them."
            )
        result = {}
        for name, value in node.value.items():
            if not re.fullmatch(self.pattern, name):
                report.add("SAGA107", node.key(name), f"`{name}` is not a name of letters, digits, `.`, `-` and `_`")
            if isinstance(value.value, dict | list) or value.value is None:
                wrong(value, report, "a text")
            else:
                text = value.value
                result[name] = str(text).lower() if isinstance(text, bool) else str(text)
        return result

    def schema(self) -> Schema:
        return {
            "type": "object",
            "maxProperties": self.maximum,
            "propertyNames": {"pattern": f"^({self.pattern})$"},
            "additionalProperties": {"type": ["string", "number", "boolean"]},
        }


@dataclass(frozen=True)
class OneOrMore:
    """One value, or a list of them; always read as a list."""

    shape: Shape
    minimum: int = 1

    def read(self, node: Node, report: Report) -> list[Any] | None:
        if isinstance(node.value, list):
            return ListOf(self.shape, minimum=self.minimum).read(node, report)
        value = self.shape.read(node, report)
        return None if value is None else [value]

    def schema(self) -> Schema:
        one = self.shape.schema()
        return {"anyOf": [one, {"type": "array", "items": one, "minItems": self.minimum}]}


def names(items: Iterable[str]) -> str:
    """`a`, `b` and `c`."""
    quoted = [f"`{item}`" for item in items]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
