"""The types of fields: each reads a node and describes itself as JSON Schema.

``read`` returns the plain value, or None after it has reported a mistake. The types know nothing about sagas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

from sagas.actions.envelope import ENVELOPE
from sagas.definition.diagnostics import Positioned, Report, suggestion_help
from sagas.definition.parser.other_names import NO_OTHER_NAMES, OtherNames
from sagas.definition.parser.yaml_nodes import YamlNode
from sagas.definition.schema_mismatches import describe_node
from sagas.definition.times import DURATION_PATTERN, parse_duration

Schema = dict[str, Any]


class FieldType(Protocol):
    """The type of a field's value."""

    def read(self, node: YamlNode, report: Report) -> Any: ...

    def schema(self) -> Schema: ...


def report_mismatch(node: YamlNode, report: Report, expected: str, help: str = "") -> None:
    report.add("SAGA106", node, f"expected {expected}, found {describe_node(node)}", help or f"write {expected} here")


@dataclass(frozen=True)
class String:
    """A string; with ``pattern`` a name, whose form ``description`` gives in words."""

    pattern: str | None = None
    description: str = "a string"
    reserved: tuple[str, ...] = ()
    allow_empty: bool = False

    def read(self, node: YamlNode, report: Report) -> str | None:
        if not isinstance(node.value, str) or (not node.value and not self.allow_empty):
            return report_mismatch(node, report, self.description)
        if self.pattern and not re.fullmatch(self.pattern, node.value):
            report.add("SAGA107", node, f"`{node.value}` is not {self.description}", self._possible_name(node.value))
        elif node.value in self.reserved:
            report.add("SAGA107", node, f"`{node.value}` is a reserved word")
        return node.value

    def _possible_name(self, text: str) -> str | None:
        """The help for `write-invoice` as the id of a step: the nearest name that is possible."""
        if "${{" in text:
            return "write the name itself: an expression is not possible here"
        for separator in "_-":
            name = re.sub(r"[^a-z0-9]+", separator, text.lower()).strip(separator)
            if self.pattern and re.fullmatch(self.pattern, name) and name not in self.reserved:
                return f"write `{name}`"
        return None

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
    """A duration, read as seconds. ``zero`` allows 0s."""

    zero: bool = False

    def read(self, node: YamlNode, report: Report) -> float | None:
        if not isinstance(node.value, str):
            report.add("SAGA109", node, f"expected a duration, found {describe_node(node)}")
            return None
        try:
            seconds = parse_duration(node.value)
        except ValueError as error:
            report.add("SAGA109", node, str(error))
            return None
        if seconds <= 0 and not self.zero:
            report.add("SAGA109", node, "a duration of zero is not possible here")
            return None
        return seconds

    def schema(self) -> Schema:
        result: Schema = {"type": "string", "pattern": DURATION_PATTERN}
        return result if self.zero else {**result, "not": {"pattern": "^[0.]+(ms|s|m|h|d)$"}}


@dataclass(frozen=True)
class DurationOrWord:
    """A duration, or a word that stands for zero seconds."""

    word: str

    def read(self, node: YamlNode, report: Report) -> float | None:
        return 0.0 if node.value == self.word else Duration().read(node, report)

    def schema(self) -> Schema:
        return {"anyOf": [Duration().schema(), {"const": self.word}]}


@dataclass(frozen=True)
class Integer:
    minimum: int = 0
    maximum: int | None = None

    def read(self, node: YamlNode, report: Report) -> int | None:
        value = node.value
        upper = self.maximum
        if not isinstance(value, int) or isinstance(value, bool):
            return report_mismatch(node, report, "a whole number")
        if value < self.minimum or (upper is not None and value > upper):
            bounds = f"of at least {self.minimum}" if upper is None else f"from {self.minimum} to {upper}"
            return report_mismatch(node, report, f"a whole number {bounds}")
        return value

    def schema(self) -> Schema:
        result: Schema = {"type": "integer", "minimum": self.minimum}
        return result if self.maximum is None else {**result, "maximum": self.maximum}


@dataclass(frozen=True)
class Number:
    minimum: float
    maximum: float

    def read(self, node: YamlNode, report: Report) -> float | None:
        if isinstance(node.value, bool) or not isinstance(node.value, int | Decimal):
            return report_mismatch(node, report, "a number")
        if not self.minimum <= node.value <= self.maximum:
            return report_mismatch(node, report, f"a number from {self.minimum:g} to {self.maximum:g}")
        return float(node.value)

    def schema(self) -> Schema:
        return {"type": "number", "minimum": self.minimum, "maximum": self.maximum}


@dataclass(frozen=True)
class Boolean:
    def read(self, node: YamlNode, report: Report) -> bool | None:
        return node.value if isinstance(node.value, bool) else report_mismatch(node, report, "true or false")

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Choice:
    options: tuple[Any, ...]

    def read(self, node: YamlNode, report: Report) -> Any:
        for option in self.options:
            if type(node.value) is type(option) and node.value == option:
                return option
        words = ", ".join(f"`{str(option).lower()}`" for option in self.options)
        close = suggestion_help(node.value, map(str, self.options)) if isinstance(node.value, str) else ""
        expected = f"one of {words}" if len(self.options) > 1 else words
        report.add(
            "SAGA106", node, f"expected {expected}, found {describe_node(node)}", close or f"write {expected} here"
        )
        return None

    def schema(self) -> Schema:
        return {"enum": list(self.options)}


@dataclass(frozen=True)
class Json:
    """Any JSON value, which may contain expressions."""

    def read(self, node: YamlNode, report: Report) -> Any:
        return node.to_json()

    def schema(self) -> Schema:
        return {}


@dataclass(frozen=True)
class Arguments:
    """The arguments of an action, by name, which may contain expressions."""

    def read(self, node: YamlNode, report: Report) -> dict[str, Any] | None:
        if not isinstance(node.value, dict):
            return report_mismatch(node, report, "a mapping")
        if ENVELOPE in node.value:
            report.add(
                "SAGA107", node.key_position(ENVELOPE), f"the engine itself gives every action an argument `{ENVELOPE}`"
            )
        return node.to_json()

    def schema(self) -> Schema:
        return {"type": "object", "properties": {ENVELOPE: False}}


@dataclass(frozen=True)
class Condition:
    """A boolean CEL expression, bare or in ``${{ }}``, or a literal true or false."""

    def read(self, node: YamlNode, report: Report) -> str | None:
        if isinstance(node.value, bool):
            return str(node.value).lower()
        if not isinstance(node.value, str) or not node.value.strip():
            return report_mismatch(node, report, "an expression")
        return node.value

    def schema(self) -> Schema:
        return {"type": ["string", "boolean"]}


@dataclass(frozen=True)
class ListOrExpression:
    """A list literal, or one expression that evaluates to a list."""

    def read(self, node: YamlNode, report: Report) -> Any:
        if isinstance(node.value, list):
            return node.to_json()
        if isinstance(node.value, str) and "${{" in node.value:
            return node.value
        return report_mismatch(node, report, 'a list or an expression such as "${{ input.lines }}"')

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "array"}, {"type": "string", "pattern": r"\$\{\{"}]}


@dataclass(frozen=True)
class ListOf:
    """A list. ``example`` is what an author should write who wrote something else."""

    item_type: FieldType
    minimum: int = 0
    example: str = ""

    def read(self, node: YamlNode, report: Report) -> list[Any] | None:
        if not isinstance(node.value, list):
            return report_mismatch(node, report, "a list", self.example)
        if len(node.value) < self.minimum:
            entries = "one entry" if self.minimum == 1 else f"{self.minimum} entries"
            actual = "an empty list" if not node.value else f"{len(node.value)}"
            report.add(
                "SAGA106", node, f"expected a list of at least {entries}, found {actual}", "add the missing entries"
            )
            return None
        return [value for value in (self.item_type.read(item, report) for item in node.value) if value is not None]

    def schema(self) -> Schema:
        result: Schema = {"type": "array", "items": self.item_type.schema()}
        return {**result, "minItems": self.minimum} if self.minimum else result


@dataclass(frozen=True)
class StringMap:
    """A mapping of names to strings, as for labels. Numbers and booleans are converted to strings."""

    maximum: int
    pattern: str

    def read(self, node: YamlNode, report: Report) -> dict[str, str] | None:
        if not isinstance(node.value, dict):
            return report_mismatch(node, report, "a mapping of names to strings")
        if len(node.value) > self.maximum:
            report.add(
                "SAGA106", node, f"at most {self.maximum} are allowed, found {len(node.value)}", "remove some of them"
            )
        result = {}
        for name, value in node.value.items():
            if not re.fullmatch(self.pattern, name):
                report.add(
                    "SAGA107", node.key_position(name), f"`{name}` is not a name of letters, digits, `.`, `-` and `_`"
                )
            if isinstance(value.value, dict | list) or value.value is None:
                report_mismatch(value, report, "a string")
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
    """One value or a list of values; always read as a list."""

    item_type: FieldType
    minimum: int = 1

    def read(self, node: YamlNode, report: Report) -> list[Any] | None:
        if isinstance(node.value, list):
            return ListOf(self.item_type, minimum=self.minimum).read(node, report)
        value = self.item_type.read(node, report)
        return None if value is None else [value]

    def schema(self) -> Schema:
        item = self.item_type.schema()
        return {"anyOf": [item, {"type": "array", "items": item, "minItems": self.minimum}]}


def quoted_names(items: Iterable[str]) -> str:
    """`a`, `b` and `c`."""
    quoted = [f"`{item}`" for item in items]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"


class ParsedMapping:
    """A parsed mapping: ``values`` by field name, ``node`` for positions."""

    __slots__ = ("node", "values")

    def __init__(self, node: YamlNode, values: dict[str, Any]) -> None:
        self.node = node
        self.values = values

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def __contains__(self, name: str) -> bool:
        """True if the author wrote the field, whatever its value."""
        return isinstance(self.node.value, dict) and name in self.node.value

    def node_of(self, name: str) -> YamlNode:
        """The node of a field that is present."""
        return self.node.value[name]

    def position_of(self, name: str) -> Positioned:
        """The position of the field's name; of the whole mapping if the field is missing."""
        return self.node.key_position(name)


@dataclass(frozen=True)
class Field:
    """One field of a mapping."""

    name: str
    field_type: FieldType
    summary: str
    required: bool = False


@dataclass(frozen=True)
class MappingType:
    """A mapping with known fields. ``shorthand`` names the field that a bare string stands for.

    ``others`` are the names that other products have for the fields. ``example`` is what an author should write who
    wrote no mapping; it is also the help for the words of ``refused``, which are not shorthand.
    """

    label: str
    fields: tuple[Field, ...]
    shorthand: str | None = None
    extensible: bool = False
    exclusive: Sequence[tuple[str, str]] = ()
    others: OtherNames = NO_OTHER_NAMES
    example: str = ""
    refused: tuple[str, ...] = ()
    by_name: Mapping[str, Field] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {field.name: field for field in self.fields})

    def read(self, node: YamlNode, report: Report) -> ParsedMapping | None:
        if self.shorthand and isinstance(node.value, str) and node.value.lower() not in self.refused:
            value = self.by_name[self.shorthand].field_type.read(node, report)
            return ParsedMapping(node, {self.shorthand: value})
        if not isinstance(node.value, dict):
            expected = "a name or a mapping" if self.shorthand else "a mapping"
            return report_mismatch(node, report, f"{expected} for {self.label}", self.example)
        values = {}
        for name, value in list(node.value.items()):
            if (given := self.by_name.get(name) or self._meant(name, node, report)) is not None:
                values[given.name] = given.field_type.read(value, report)
        for declared in self.fields:
            if declared.required and declared.name not in node.value:
                report.add("SAGA105", node, f"{self.label} needs the field `{declared.name}`")
        for first, second in self.exclusive:
            if first in node.value and second in node.value:
                position = max(
                    node.key_position(first), node.key_position(second), key=lambda mark: (mark.line, mark.column)
                )
                report.add("SAGA113", position, f"`{second}` and `{first}` exclude each other")
        return ParsedMapping(node, values)

    def _meant(self, name: str, node: YamlNode, report: Report) -> Field | None:
        """Report an unknown field, and read it as the field that was meant: that seems missing otherwise."""
        if self.extensible and name.startswith("x-"):
            return None
        help = self.others.help(name, self.by_name)
        otherwise = None if self.extensible else "remove it"
        report.add("SAGA104", node.key_position(name), f"{self.label} has no field `{name}`", help or otherwise)
        close = self.others.meant(name, self.by_name)
        if close is None or close in node.value:
            return None
        node.rename(name, close)
        return self.by_name[close]

    def schema(self) -> Schema:
        result: Schema = {
            "type": "object",
            "properties": {
                field.name: {**field.field_type.schema(), "description": field.summary} for field in self.fields
            },
            "additionalProperties": False,
        }
        if self.extensible:
            result["patternProperties"] = {"^x-": {}}
        if required := [field.name for field in self.fields if field.required]:
            result["required"] = required
        if self.exclusive:
            result["not"] = {"anyOf": [{"required": list(pair)} for pair in self.exclusive]}
        if self.shorthand is None:
            return result
        return {"anyOf": [self.by_name[self.shorthand].field_type.schema(), result]}
