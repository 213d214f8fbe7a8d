"""Sample values: an input that matches the saga's schema, and results that the expressions of a definition can read.

For each property the input uses `const`, the first of `examples` or `enum`, `default`, or else a small value that the
schema allows; a list has two items if allowed, so that the order of for_each is visible. Results follow the return
annotation of the action and, where there is none, their use in expressions.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from sagas.definition.input_schema import both, resolve_reference
from sagas.definition.model import Definition
from sagas.definition.step_expressions import expressions_in, step_expressions
from sagas.expressions.nodes import (
    Binary,
    Comprehension,
    Constant,
    ExpressionNode,
    FunctionCall,
    Identifier,
    Index,
    Select,
)

SAMPLE_ITEMS = 2
DIGIT_STRING = "1"
"""A string that is also a valid amount."""

MAX_DEPTH = 12
FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "duration": "PT1M",
    "email": "somebody@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "hostname": "host.example.com",
}


def sample_input_of(definition: Definition, text: str | None) -> Any:
    """A sample input for a saga. ``text`` is used for unconstrained strings; None: the name of the property."""
    schema = definition.input
    return sample(schema, "input", schema, text) if isinstance(schema, Mapping) and schema else {}


def sample(schema: Any, name: str, root: Any, text: str | None = None, depth: int = 0) -> Any:
    """A value for one schema. It may violate schemas with conditions or patterns."""
    schema = resolve_reference(schema, root)
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return text or name
    if "const" in schema:
        return schema["const"]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    # An empty default list would leave a for_each without items.
    if "default" in schema and not (schema["default"] == [] and "items" in schema):
        return schema["default"]
    for key in ("oneOf", "anyOf", "allOf"):
        if schema.get(key):
            merged: Any = {k: v for k, v in schema.items() if k != key}
            for branch in schema[key] if key == "allOf" else schema[key][:1]:
                branch = resolve_reference(branch, root)
                merged = both(merged, branch) if isinstance(branch, Mapping) else merged
            return sample(merged, name, root, text, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((type for type in kind if type != "null"), "null")
    if kind is None:
        named = "properties" in schema or "required" in schema
        kind = "object" if named else "array" if "items" in schema else "string"
    match kind:
        case "object":
            properties = schema.get("properties") or {}
            wanted = [
                *properties,
                *(field for field in schema.get("required") or () if field not in properties),
            ]
            additional = schema.get("additionalProperties", {})
            return {field: sample(properties.get(field, additional), field, root, text, depth + 1) for field in wanted}
        case "array":
            count = min(max(SAMPLE_ITEMS, schema.get("minItems", 0)), schema.get("maxItems", 1_000_000))
            items = [sample(schema.get("items", {}), _singular(name), root, text, depth + 1) for _ in range(count)]
            return [_numbered(item, n) for n, item in enumerate(items)] if schema.get("uniqueItems") else items
        case "integer" | "number":
            return _sample_number(schema)
        case "boolean":
            return True
        case "null":
            return None
    return _sample_string(schema, text or name)


def _sample_number(schema: Mapping[str, Any]) -> Any:
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    value = max(1, least + 1 if "exclusiveMinimum" in schema and least >= 1 else least)
    value = min(value, schema.get("maximum", value))
    step = schema.get("multipleOf")
    return -(-value // step) * step if step else value


def _sample_string(schema: Mapping[str, Any], text: str) -> str:
    if schema.get("format") in FORMATS:
        return FORMATS[schema["format"]]
    least = max(schema.get("minLength", 0), 1)
    return (text * least if len(text) < least else text)[: schema.get("maxLength")]


def _singular(name: str) -> str:
    return name.removesuffix("s") or name


def _numbered(item: Any, number: int) -> Any:
    if isinstance(item, str):
        return f"{item}{number + 1}"
    return item + number if isinstance(item, int | Decimal) and not isinstance(item, bool) else item


def sample_results(definition: Definition, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """A sample result for every step of a definition. ``schemas``: JSON Schema of the result, by action."""
    wishes = {step.id: _ExpectedShape() for step in definition.steps}
    reader = _ShapeReader(wishes)
    for expression in expressions_in(definition.output):
        reader.read(expression.node)
    for step in definition.steps:
        scope: dict[str, _ExpectedShape] = {}
        for expression in expressions_in(step.for_each):
            items = reader.read(expression.node)
            if items is not None:
                scope["item"] = items.element()
        for _, expression in step_expressions(step):
            reader.read(expression.node, scope)
    results: dict[str, Any] = {}
    for step in definition.steps:
        schema = schemas.get(step.do.uses)
        shape = sample(schema, "result", schema, DIGIT_STRING) if schema is not None else None
        results[step.id] = _merge(shape, wishes[step.id])
    return results


class _ExpectedShape:
    """The shape that expressions expect of a value: fields, items, or a constant."""

    def __init__(self) -> None:
        self.fields: dict[str, _ExpectedShape] = {}
        self.item: _ExpectedShape | None = None
        self.value: Any = None

    def field(self, name: str) -> _ExpectedShape:
        return self.fields.setdefault(name, _ExpectedShape())

    def element(self) -> _ExpectedShape:
        self.item = self.item or _ExpectedShape()
        return self.item

    def sample(self) -> Any:
        if self.item is not None:
            return [self.item.sample()]
        if self.fields:
            return {name: wish.sample() for name, wish in self.fields.items()}
        return 1 if self.value is None else self.value

    @property
    def is_specified(self) -> bool:
        return bool(self.fields) or self.item is not None or self.value is not None


def _merge(shape: Any, wish: _ExpectedShape) -> Any:
    """Merge the value from the annotation with the expected shape, which adds what the annotation leaves open."""
    if shape is None:
        return wish.sample() if wish.is_specified else {}
    if isinstance(shape, dict):
        return {
            **shape,
            **{
                name: _merge(shape[name], inner) if name in shape else inner.sample()
                for name, inner in wish.fields.items()
            },
        }
    if isinstance(shape, list) and wish.item is not None:
        return [_merge(item, wish.item) for item in shape] or [wish.item.sample()]
    return shape if wish.value is None else wish.value


class _ShapeReader:
    """Derives expected shapes from expressions such as ``steps.x.result.a.b`` or ``steps.x.results.map(r, r.a)``."""

    STRING_FUNCTIONS = frozenset({"lower", "upper", "split", "startsWith", "endsWith", "contains", "matches", "date"})
    LIST_FUNCTIONS = frozenset({"sum", "join", "sort"})

    def __init__(self, wishes: Mapping[str, _ExpectedShape]) -> None:
        self.shapes = wishes

    def read(self, node: ExpressionNode, scope: Mapping[str, _ExpectedShape] | None = None) -> _ExpectedShape | None:
        """Record the shapes that this node expects; return its own shape when it denotes (a part of) a result."""
        scope = scope or {}
        match node:
            case Identifier(name=name):
                return scope.get(name)
            case Select(operand=Select(operand=Identifier(name="steps"), field=step), field=field):
                if step not in self.shapes or "steps" in scope:
                    return None
                if field == "results":
                    every = _ExpectedShape()
                    every.item = self.shapes[step]
                    return every
                return self.shapes[step] if field == "result" else None
            case Select(operand=operand, field=field):
                inside = self.read(operand, scope)
                return inside.field(field) if inside is not None else None
            case Index(operand=operand, key=key):
                inside = self.read(operand, scope)
                self.read(key, scope)
                if inside is None:
                    return None
                named = isinstance(key, Constant) and isinstance(key.value, str)
                return inside.field(key.value) if named and isinstance(key, Constant) else inside.element()
            case Comprehension(source=source, variable=variable):
                inside = self.read(source, scope)
                inner = {**scope, variable: inside.element()} if inside is not None else dict(scope)
                for part in node.children()[1:]:
                    self.read(part, inner)
                return inside if node.kind == "filter" else None
            case Binary(op="==", left=left, right=right):
                for operand, other in ((left, right), (right, left)):
                    wish = self.read(operand, scope)
                    if wish is not None and isinstance(other, Constant) and other.value is not None:
                        wish.value = other.value if isinstance(other.value, bool | int | str) else str(other.value)
                return None
            case FunctionCall(name=name, args=args):
                values = [self.read(arg, scope) for arg in args]
                first = values[0] if values else None
                if first is not None and name in self.STRING_FUNCTIONS and not first.is_specified:
                    first.value = "1"
                elif first is not None and name in self.LIST_FUNCTIONS and len(args) <= 2:
                    first.element()
                return None
        for child in node.children():
            self.read(child, scope)
        return None
