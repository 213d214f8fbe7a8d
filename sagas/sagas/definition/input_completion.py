"""Completes an input by its schema: missing properties get their defaults, and whole numbers become integers.

A default is filled in where exactly one schema says so: under `properties`, through `$ref` and `allOf`, in the branch
of `if` that is taken, in the only part of `anyOf` or `oneOf` that fits, and under `dependentSchemas` of a property that
is there. Two schemas with different defaults for one property fill in nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from sagas.definition.schema_nodes import SchemaNode, always_applied, closure, default_nodes
from sagas.definition.schema_validation import CompiledSchema, canonical_schema, wants_integer
from sagas.expressions.work_budget import charge
from sagas.input_limits import MAX_JSON_DEPTH
from sagas.text.exact_numbers import is_whole
from sagas.text.json_values import json_copy

_CONDITIONS = ("if", "anyOf", "oneOf", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems", "contains")
"""Keywords by which it depends on a value which schemas apply to it, or to its parts."""

_TEXT_PER_STEP = 32
"""Characters of a default that is filled in, or digits of an integer that an exponent stands for, for one step."""

_NAMES_PER_STEP = 8
"""Names that are passed by, for one step."""

_MAX_SHAPES = 10_000

_CURED_BY_DEFAULTS = ("required", "dependentRequired", "minProperties", "anyOf", "oneOf", "not", "contains")


def fill_in_defaults(schema: CompiledSchema, value: Any) -> Any:
    """``value``, modified in place. Raises RecursionError for defaults that contain each other without end."""
    return _Defaults(schema, schema.leading_to_defaults, schema.shapes_of_defaults).complete([schema.root], value, 0)


def with_integers(schema: CompiledSchema, value: Any) -> Any:
    """The valid ``value``, modified in place: whole numbers as int where a schema that applies says `integer`."""
    return _Integers(schema, schema.leading_to_integers, schema.shapes_of_integers).complete([schema.root], value, 0)


@dataclass(slots=True)
class _Shape:
    """Schemas that apply to a value together, whatever the value is.

    ``defaults``: the defaults of missing properties, each with its size. ``inner``: the schemas of properties and
    elements; empty where nothing is to be completed. The key None stands for all names that are not ``declared``.
    """

    nodes: list[SchemaNode]
    declared: Collection[str]
    has_patterns: bool
    prefix: int
    defaults: Mapping[str, tuple[Any, int]]
    inner: dict[str | int | None, list[SchemaNode]] = field(default_factory=dict)


@dataclass(slots=True)
class _Walker:
    """Visits a value together with all schemas that apply to each part of it, and matter.

    ``relevant``: the ids of those that matter, or lead to one that does; None: all do. ``shapes``: by the ids of their
    schemas; None for schemas of which others apply to some values only.
    """

    compiled: CompiledSchema
    relevant: frozenset[int] | None
    shapes: dict[tuple[int, ...], _Shape | None] = field(default_factory=dict)
    decided: dict[int, list[SchemaNode]] = field(default_factory=dict)

    def complete(self, nodes: list[SchemaNode], value: Any, depth: int) -> Any:
        """The completed value; ``nodes`` apply to it."""
        if depth > MAX_JSON_DEPTH + 1:
            raise RecursionError
        key = tuple([id(node.schema) for node in nodes])
        if key not in self.shapes:
            if len(self.shapes) > _MAX_SHAPES:  # names that match different patterns give different ones
                self.shapes.clear()
            self.shapes[key] = self._shape(nodes)
        charge()
        if (shape := self.shapes[key]) is not None:
            return self._complete_shape(shape, value, depth)
        charge(6)
        self.decided = {}  # what applies is decided once for each value
        nodes = self._complete_value(nodes, value)
        if isinstance(value, dict):
            parts = {name: self._of_property(nodes, value, name) for name in value}
            for name, applied in parts.items():
                if applied:
                    value[name] = self.complete(applied, value[name], depth + 1)
        elif isinstance(value, list):
            lists = [self._of_element(nodes, value, index) for index in range(len(value))]
            for index, applied in enumerate(lists):
                if applied:
                    value[index] = self.complete(applied, value[index], depth + 1)
        else:
            return self._leaf(nodes, value)
        return value

    def _shape(self, nodes: list[SchemaNode]) -> _Shape | None:
        applied = list(closure(nodes, lambda node: filter(self._matters, always_applied(node))))
        if any(keyword in node.schema for node in applied for keyword in _CONDITIONS):
            return None
        declared = {name for node in applied for name, _ in node.properties()}
        has_patterns = any(True for node in applied for _ in node.patterns())
        prefix = max((len(node.prefix_items()) for node in applied), default=0)
        return _Shape(applied, declared, has_patterns, prefix, self._defaults(applied))

    def _complete_shape(self, shape: _Shape, value: Any, depth: int) -> Any:
        """Complete a value whose schemas do not depend on it."""
        if isinstance(value, dict):
            charge(len(value) // _NAMES_PER_STEP + 2 * len(shape.defaults))
            for name, (default, size) in shape.defaults.items():
                if name not in value:
                    if size > _TEXT_PER_STEP:
                        charge(size // _TEXT_PER_STEP)
                    value[name] = json_copy(default)
            for name, item in value.items():
                key = name if name in shape.declared else None
                if key is None and shape.has_patterns:
                    inner = self._inner(part for node in shape.nodes for part in node.covering(name))
                elif (inner := shape.inner.get(key)) is None:
                    inner = shape.inner[key] = self._inner(part for node in shape.nodes for part in node.covering(name))
                if inner:
                    value[name] = self.complete(inner, item, depth + 1)
        elif isinstance(value, list):
            charge(len(value) // _NAMES_PER_STEP)
            for index, item in enumerate(value):
                key = min(index, shape.prefix)
                if (inner := shape.inner.get(key)) is None:
                    inner = shape.inner[key] = self._inner(_element_part(node, index) for node in shape.nodes)
                if inner:
                    value[index] = self.complete(inner, item, depth + 1)
        else:
            return self._leaf(shape.nodes, value)
        return value

    def _inner(self, parts: Iterable[SchemaNode | None]) -> list[SchemaNode]:
        """The parts that matter."""
        return [part for part in parts if part is not None and self._matters(part)]

    def _defaults(self, nodes: list[SchemaNode]) -> Mapping[str, tuple[Any, int]]:
        """Each default that the schemas agree about, and its size."""
        return {}

    def _complete_value(self, nodes: list[SchemaNode], value: Any) -> list[SchemaNode]:
        return self._applied(nodes, value, conditions=True)

    def _leaf(self, nodes: list[SchemaNode], value: Any) -> Any:
        return value

    def _applied(self, nodes: list[SchemaNode], value: Any, *, conditions: bool) -> list[SchemaNode]:
        """The schemas ``nodes`` and all that apply with them to the same value."""

        def following(node: SchemaNode) -> Iterator[SchemaNode]:
            charge(10)
            yield from filter(self._matters, always_applied(node))
            if isinstance(value, dict):
                yield from (part for name, part in node.dependent_schemas() if name in value and self._matters(part))
            if conditions:
                yield from filter(self._matters, self._conditional(node, value))

        return list(closure(filter(self._matters, nodes), following))

    def _conditional(self, node: SchemaNode, value: Any) -> list[SchemaNode]:
        key = id(node.schema)
        if key not in self.decided:
            self.decided[key] = list(self._decide(node, value))
        return self.decided[key]

    def _decide(self, node: SchemaNode, value: Any) -> Iterator[SchemaNode]:
        condition = node.part("if")
        if condition is not None and any(self._matters(node.part(keyword)) for keyword in ("if", "then", "else")):
            holds = self.compiled.fits(condition, value)
            if holds:
                yield from self._condition_held(condition)
            branch = node.part("then" if holds else "else")
            yield from () if branch is None else (branch,)
        for keyword in ("anyOf", "oneOf"):
            parts = node.alternatives(keyword)
            if any(map(self._matters, parts)):
                yield from self._chosen([part for part in parts if self._fits(part, value)])

    def _matters(self, part: SchemaNode | None) -> bool:
        if part is None or not isinstance(part.schema, dict):
            return False
        return self.relevant is None or id(part.schema) in self.relevant

    def _fits(self, part: SchemaNode, value: Any) -> bool:
        return self.compiled.fits(part, value)

    def _condition_held(self, condition: SchemaNode) -> list[SchemaNode]:
        return []

    def _chosen(self, fitting: list[SchemaNode]) -> list[SchemaNode]:
        return fitting

    def _of_property(self, nodes: list[SchemaNode], value: dict[str, Any], name: str) -> list[SchemaNode]:
        charge(len(nodes))
        parts = [part for node in nodes for part in node.covering(name) if self._matters(part)]
        for node in nodes:
            unevaluated = node.part("unevaluatedProperties")
            if (
                unevaluated is not None
                and self._matters(unevaluated)
                and not any(part.covering(name) for part in self._evaluated_by(node, value))
            ):
                parts.append(unevaluated)
        return parts

    def _evaluated_by(self, node: SchemaNode, value: Any) -> list[SchemaNode]:
        """All that `unevaluatedProperties` and `unevaluatedItems` of a schema look at."""
        return _Everything(self.compiled, None)._applied([node], value, conditions=True)

    def _of_element(self, nodes: list[SchemaNode], value: list[Any], index: int) -> list[SchemaNode]:
        charge(len(nodes))
        parts = [part for node in nodes if (part := _element_part(node, index)) is not None and self._matters(part)]
        for node in nodes:
            unevaluated = node.part("unevaluatedItems")
            if (
                unevaluated is not None
                and self._matters(unevaluated)
                and not any(_element_part(part, index) for part in self._evaluated_by(node, value))
            ):
                parts.append(unevaluated)
        return parts


def _element_part(node: SchemaNode, index: int) -> SchemaNode | None:
    """The part of `prefixItems`, or else `items`, which describes the elements after them."""
    prefix = node.prefix_items()
    return prefix[index] if index < len(prefix) else node.part("items")


class _Everything(_Walker):
    def _condition_held(self, condition: SchemaNode) -> list[SchemaNode]:
        return [condition]


class _Defaults(_Walker):
    def _complete_value(self, nodes: list[SchemaNode], value: Any) -> list[SchemaNode]:
        if not isinstance(value, dict):
            return self._applied(nodes, value, conditions=True)
        applied = self._fill_in(nodes, value, conditions=False)
        if any(keyword in node.schema for node in applied for keyword in ("if", "anyOf", "oneOf")):
            return self._fill_in(nodes, value, conditions=True)
        return applied

    def _fill_in(self, nodes: list[SchemaNode], value: dict[str, Any], *, conditions: bool) -> list[SchemaNode]:
        applied = self._applied(nodes, value, conditions=conditions)
        while missing := self._missing(applied, value):
            value.update(missing)
            applied = self._applied(nodes, value, conditions=conditions)
        return applied

    def _missing(self, nodes: list[SchemaNode], value: dict[str, Any]) -> dict[str, Any]:
        missing: dict[str, Any] = {}
        for name, (default, size) in self._defaults(nodes, value).items():
            charge(2 + size // _TEXT_PER_STEP)
            missing[name] = json_copy(default)
        return missing

    def _defaults(self, nodes: list[SchemaNode], given: Collection[str] = ()) -> Mapping[str, tuple[Any, int]]:
        defaults: dict[str, list[SchemaNode]] = {}
        for node in nodes:
            for name, part in node.properties():
                if name not in given:
                    charge(4)
                    defaults.setdefault(name, []).extend(default_nodes(part))
        agreed = {name: given[0].schema["default"] for name, given in defaults.items() if same_default(given)}
        return {name: (default, len(canonical_schema(default))) for name, default in agreed.items()}

    def _chosen(self, fitting: list[SchemaNode]) -> list[SchemaNode]:
        return fitting if len(fitting) == 1 else []

    def _fits(self, part: SchemaNode, value: Any) -> bool:
        """If need be with its own defaults, as a schema without alternatives is checked after they are filled in."""
        errors = self.compiled.first_errors(value, 20, part)
        if not errors or not all(error.validator in _CURED_BY_DEFAULTS for error in errors):
            return not errors
        completed = _Defaults(self.compiled, self.relevant, self.shapes).complete([part], json_copy(value), 0)
        return self.compiled.fits(part, completed)


def same_default(nodes: list[SchemaNode]) -> bool:
    """True if these schemas give one default."""
    return len({canonical_schema(node.schema["default"]) for node in nodes}) == 1


class _Integers(_Everything):
    def _leaf(self, nodes: list[SchemaNode], value: Any) -> Any:
        if not (isinstance(value, Decimal) and is_whole(value) and any(map(wants_integer, nodes))):
            return value
        charge(max(value.adjusted(), 0) // _TEXT_PER_STEP)  # 1e999 becomes a thousand digits
        return int(value)

    def _of_element(self, nodes: list[SchemaNode], value: list[Any], index: int) -> list[SchemaNode]:
        containing = [part for node in nodes if (part := node.part("contains")) is not None and self._matters(part)]
        fitting = [part for part in containing if self.compiled.fits(part, value[index])]
        return super()._of_element(nodes, value, index) + fitting
