"""The JSON types that an input schema allows for a field: a cell of a file, or an option of a command, has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from sagas.definition.schema_nodes import SchemaNode, inside, root_node
from sagas.text.exact_numbers import is_whole

_ALL = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})


def types_at(schema: Any, path: Sequence[str]) -> frozenset[str]:
    """The types of the field at ``path``; empty if the schema does not determine them.

    `number` comes with `integer`. Schemas that apply only sometimes count where no other describes the field.
    """
    always, sometimes = [root_node(schema)], list[SchemaNode]()
    for name in path:
        always, more = _together(always)
        sometimes = [part for node in (*more, *sometimes) for part in _all_parts(node)]
        always = [part for node in always for part in inside(node, name)]
        sometimes = [part for node in sometimes for part in inside(node, name)]
    if (known := _meet([_types(node, ()) for node in always])) is not None:
        return known
    possible = [types for node in sometimes if (types := _types(node, ())) is not None]
    return frozenset().union(*possible)


def json_types(value: Any) -> frozenset[str]:
    """The types that a JSON value fits."""
    match value:
        case str():
            return frozenset({"string"})
        case bool():
            return frozenset({"boolean"})
        case int() | Decimal():
            return frozenset({"integer", "number"}) if is_whole(value) else frozenset({"number"})
        case Mapping():
            return frozenset({"object"})
        case list():
            return frozenset({"array"})
    return frozenset({"null"})


def _together(nodes: list[SchemaNode]) -> tuple[list[SchemaNode], list[SchemaNode]]:
    """These with all that always apply with them, and those that apply sometimes."""
    always, sometimes, seen = list[SchemaNode](), list[SchemaNode](), set[int]()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if id(node.schema) not in seen:
            seen.add(id(node.schema))
            always.append(node)
            waiting += [*node.referenced(), *node.all_of()]
            sometimes += _alternatives(node)
    return always, sometimes


def _alternatives(node: SchemaNode) -> list[SchemaNode]:
    single = [part for keyword in ("then", "else") if (part := node.part(keyword)) is not None]
    dependent = [part for _, part in node.dependent_schemas()]
    return [*node.alternatives("anyOf"), *node.alternatives("oneOf"), *single, *dependent]


def _all_parts(node: SchemaNode) -> list[SchemaNode]:
    found, seen, waiting = list[SchemaNode](), set[int](), [node]
    while waiting:
        part = waiting.pop()
        if id(part.schema) not in seen:
            seen.add(id(part.schema))
            found.append(part)
            waiting += [*part.referenced(), *part.all_of(), *_alternatives(part)]
    return found


def _types(node: SchemaNode, around: tuple[int, ...]) -> frozenset[str] | None:
    """None if the schema allows every type. ``around``: the schemas that lead here, which may contain themselves."""
    if not isinstance(node.schema, Mapping) or id(node.schema) in around:
        return None
    around = (*around, id(node.schema))
    found = [_declared(node)]
    found += [_types(part, around) for part in (*node.referenced(), *node.all_of())]
    for keyword in ("anyOf", "oneOf"):
        parts = [_types(part, around) for part in node.alternatives(keyword)]
        if parts and None not in parts:
            found.append(frozenset().union(*(part for part in parts if part is not None)))
    return _meet(found)


def _declared(node: SchemaNode) -> frozenset[str] | None:
    kinds = node.get("type")
    if isinstance(kinds, str | list):
        named = frozenset([kinds] if isinstance(kinds, str) else kinds)
        return named | {"integer"} if "number" in named else named
    if isinstance(node.get("enum"), list):
        return frozenset().union(*map(json_types, node.schema["enum"]))
    return json_types(node.schema["const"]) if "const" in node.schema else None


def _meet(found: list[frozenset[str] | None]) -> frozenset[str] | None:
    known = [types for types in found if types is not None]
    return _ALL.intersection(*known) if known else None
