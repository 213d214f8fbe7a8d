"""Made-up values: an input that fits the saga's schema, and results that the expressions of a definition can read.

The input takes, for each property, `const`, the first of `examples` or `enum`, `default`, or else a small value that
the schema allows; a list gets two items where it may, so that for_each has an order to show. Results come from the
return annotation of the action, and from how expressions use them where it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sagas.definition.model import Definition
from sagas.definition.operations import bare
from sagas.definition.schema_paths import both, resolve
from sagas.expressions import Expression, ExpressionError, compile_value
from sagas.expressions.nodes import Binary, Call, Comprehension, Constant, Index, Name, Node, Select

ITEMS = 2
DIGITS = "1"
"""A text that can also be read as an amount."""

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
}


def sample_of(definition: Definition, text: str | None) -> Any:
    """A made-up input for a saga. ``text`` stands wherever any text will do; None: the name of the property."""
    return sample(definition.input, "input", definition.input, text) if definition.input else {}


def sample(schema: Any, name: str, root: Any, text: str | None = None, depth: int = 0) -> Any:
    """A value for one schema. Not every schema can be met this way."""
    schema = resolve(schema, root)
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return text or name
    if "const" in schema:
        return schema["const"]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    # An empty list by default would leave a for_each with nothing to show.
    if "default" in schema and not (schema["default"] == [] and "items" in schema):
        return schema["default"]
    for key in ("oneOf", "anyOf", "allOf"):
        if schema.get(key):
            merged: Any = {k: v for k, v in schema.items() if k != key}
            for branch in schema[key] if key == "allOf" else schema[key][:1]:
                branch = resolve(branch, root)
                merged = both(merged, branch) if isinstance(branch, Mapping) else merged
            return sample(merged, name, root, text, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    if kind is None:
        named = "properties" in schema or "required" in schema
        kind = "object" if named else "array" if "items" in schema else "string"
    match kind:
        case "object":
            properties = schema.get("properties") or {}
            wanted = [*properties, *(one for one in schema.get("required") or () if one not in properties)]
            rest = schema.get("additionalProperties", {})
            return {one: sample(properties.get(one, rest), one, root, text, depth + 1) for one in wanted}
        case "array":
            count = min(max(ITEMS, schema.get("minItems", 0)), schema.get("maxItems", 1_000_000))
            items = [sample(schema.get("items", {}), _singular(name), root, text, depth + 1) for _ in range(count)]
            return [_numbered(item, n) for n, item in enumerate(items)] if schema.get("uniqueItems") else items
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return True
        case "null":
            return None
    return _text(schema, text or name)


def _number(schema: Mapping[str, Any]) -> Any:
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    value = max(1, least + 1 if "exclusiveMinimum" in schema and least >= 1 else least)
    value = min(value, schema.get("maximum", value))
    step = schema.get("multipleOf")
    return -(-value // step) * step if step else value


def _text(schema: Mapping[str, Any], text: str) -> str:
    if schema.get("format") in FORMATS:
        return FORMATS[schema["format"]]
    least = max(schema.get("minLength", 0), 1)
    return (text * least if len(text) < least else text)[: schema.get("maxLength")]


def _singular(name: str) -> str:
    return name.removesuffix("s") or name


def _numbered(item: Any, number: int) -> Any:
    if isinstance(item, str):
        return f"{item}{number + 1}"
    return item + number if isinstance(item, int | float) and not isinstance(item, bool) else item


# --- results -------------------------------------------------------------------------------------------------------


def made_up_results(definition: Definition, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """A result for every step of a definition. ``schemas``: JSON Schema of the result by action."""
    wishes = {step.id: _Wish() for step in definition.steps}
    for expression in _expressions(definition):
        _Reader(wishes).read(expression.node)
    results: dict[str, Any] = {}
    for step in definition.steps:
        schema = schemas.get(step.do.uses)
        known = sample(schema, "result", schema, DIGITS) if schema is not None else None
        results[step.id] = _merged(known, wishes[step.id])
    return results


class _Wish:
    """What expressions want to find at one place: fields, items, a certain value."""

    def __init__(self) -> None:
        self.fields: dict[str, _Wish] = {}
        self.item: _Wish | None = None
        self.value: Any = None

    def field(self, name: str) -> _Wish:
        return self.fields.setdefault(name, _Wish())

    def element(self) -> _Wish:
        self.item = self.item or _Wish()
        return self.item

    def made(self) -> Any:
        if self.item is not None:
            return [self.item.made()]
        if self.fields:
            return {name: wish.made() for name, wish in self.fields.items()}
        return 1 if self.value is None else self.value

    @property
    def wanted(self) -> bool:
        return bool(self.fields) or self.item is not None or self.value is not None


def _merged(known: Any, wish: _Wish) -> Any:
    """The annotated value; an expression's wish fills in what the annotation leaves open."""
    if known is None:
        return wish.made() if wish.wanted else {}
    if isinstance(known, dict):
        return {
            **known,
            **{
                name: _merged(known[name], inner) if name in known else inner.made()
                for name, inner in wish.fields.items()
            },
        }
    if isinstance(known, list) and wish.item is not None:
        return [_merged(item, wish.item) for item in known] or [wish.item.made()]
    return known if wish.value is None else wish.value


class _Reader:
    """Follows ``steps.x.result.a.b``, ``steps.x.results.map(r, r.a)`` and the like to the wish they speak of."""

    TEXTS = frozenset({"lower", "upper", "split", "startsWith", "endsWith", "contains", "matches", "date"})
    LISTS = frozenset({"sum", "join", "sort"})

    def __init__(self, wishes: Mapping[str, _Wish]) -> None:
        self.wishes = wishes

    def read(self, node: Node, scope: Mapping[str, _Wish] | None = None) -> _Wish | None:
        """Note what this node wants; returns its own wish when it stands for (a part of) a result."""
        scope = scope or {}
        match node:
            case Name(name=name):
                return scope.get(name)
            case Select(operand=Select(operand=Name(name="steps"), field=step), field=field):
                if step not in self.wishes or "steps" in scope:
                    return None
                if field == "results":
                    every = _Wish()
                    every.item = self.wishes[step]
                    return every
                return self.wishes[step] if field == "result" else None
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
                return inside if node.loop == "filter" else None
            case Binary(op="==", left=left, right=right):
                for one, other in ((left, right), (right, left)):
                    wish = self.read(one, scope)
                    if wish is not None and isinstance(other, Constant) and other.value is not None:
                        wish.value = other.value if isinstance(other.value, bool | int | str) else str(other.value)
                return None
            case Call(name=name, args=args):
                found = [self.read(one, scope) for one in args]
                first = found[0] if found else None
                if first is not None and name in self.TEXTS and not first.wanted:
                    first.value = "1"
                elif first is not None and name in self.LISTS and len(args) <= 2:
                    first.element()
                return None
        for child in node.children():
            self.read(child, scope)
        return None


def _expressions(definition: Definition) -> Iterator[Expression]:
    """Every expression that may read a result."""
    sources: list[Any] = [definition.output]
    for step in definition.steps:
        sources += [step.do.with_, step.for_each, step.confirm.with_ if step.confirm else None]
        if step.if_ is not None:
            sources.append("${{ " + bare(step.if_) + " }}")
        if step.compensate is not None:
            sources += [one.with_ for one in step.compensate.alternates]
            sources.append(step.compensate.confirmed.with_ if step.compensate.confirmed else None)
    for source in sources:
        yield from _within(source)


def _within(value: Any) -> Iterator[Expression]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            # `result` of http is an expression over its response, written without ${{ }}.
            if not (key == "result" and isinstance(one, str) and "${{" not in one):
                yield from _within(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _within(one)
    elif isinstance(value, str) and "${{" in value:
        try:
            yield from (expression for _, expression in compile_value(value).expressions)
        except ExpressionError:
            return  # the run itself will say so, at the right step
