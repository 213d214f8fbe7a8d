"""Mappings with known fields: how a table of fields is read, and how it describes itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sagas.definition.diagnostics import Place, Report, did_you_mean
from sagas.definition.shapes import Schema, Shape, wrong
from sagas.definition.source import Node


class Parsed:
    """A mapping that was read: ``values`` by field name, ``node`` for the places."""

    __slots__ = ("node", "values")

    def __init__(self, node: Node, values: dict[str, Any]) -> None:
        self.node = node
        self.values = values

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def __contains__(self, name: str) -> bool:
        """True when the author wrote the field, whatever its value."""
        return isinstance(self.node.value, dict) and name in self.node.value

    def at(self, name: str) -> Node:
        """The node of a field that is there."""
        return self.node.value[name]

    def place(self, name: str) -> Place:
        """The place of the field's name; of the whole mapping when the field is missing."""
        return self.node.key(name)


@dataclass(frozen=True)
class Field:
    """One field of a mapping. ``later`` names the part of the product that brings it (SAGA900 until then)."""

    name: str
    shape: Shape
    summary: str
    required: bool = False
    later: str | None = None


@dataclass(frozen=True)
class Record:
    """A mapping with known fields. ``short`` names the field that a bare text stands for."""

    what: str
    fields: tuple[Field, ...]
    short: str | None = None
    extensible: bool = False
    exclusive: Sequence[tuple[str, str]] = ()
    by_name: Mapping[str, Field] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {one.name: one for one in self.fields})

    def read(self, node: Node, report: Report) -> Parsed | None:
        if self.short and isinstance(node.value, str):
            value = self.by_name[self.short].shape.read(node, report)
            return Parsed(node, {self.short: value})
        if not isinstance(node.value, dict):
            wanted = "a name or a mapping" if self.short else "a mapping"
            return wrong(node, report, f"{wanted} for {self.what}")
        values = {}
        for name, value in node.value.items():
            one = self.by_name.get(name)
            if one is None:
                self._unknown(name, node, report)
            elif one.later:
                later_part(name, one.later, node.key(name), report)
            else:
                values[name] = one.shape.read(value, report)
        for one in self.fields:
            if one.required and one.name not in node.value:
                report.add("SAGA105", node, f"{self.what} needs the field `{one.name}`")
        for first, second in self.exclusive:
            if first in node.value and second in node.value:
                place = max(node.key(first), node.key(second), key=lambda mark: (mark.line, mark.column))
                report.add("SAGA113", place, f"`{second}` and `{first}` exclude each other")
        return Parsed(node, values)

    def _unknown(self, name: str, node: Node, report: Report) -> None:
        if self.extensible and name.startswith("x-"):
            return
        help = did_you_mean(name, self.by_name)
        report.add("SAGA104", node.key(name), f"{self.what} has no field `{name}`", help or None)

    def schema(self) -> Schema:
        current = [one for one in self.fields if not one.later]
        result: Schema = {
            "type": "object",
            "properties": {one.name: {**one.shape.schema(), "description": one.summary} for one in current},
            "additionalProperties": False,
        }
        if self.extensible:
            result["patternProperties"] = {"^x-": {}}
        if required := [one.name for one in current if one.required]:
            result["required"] = required
        if self.exclusive:
            result["not"] = {"anyOf": [{"required": list(pair)} for pair in self.exclusive]}
        if self.short is None:
            return result
        return {"anyOf": [self.by_name[self.short].shape.schema(), result]}


def later_part(what: str, part: str, place: Place, report: Report) -> None:
    """Say that something belongs to a later part of the product."""
    report.add("SAGA900", place, f"`{what}` is not in this version", f"It comes with {part}; leave it out for now.")
