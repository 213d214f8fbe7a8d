"""The JSON types that an input schema allows for a field: a cell of a file, or an option of a command, has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from sagas.definition.schema_nodes import SchemaNode, always_applied, closure, inside, root_node, sometimes_applied
from sagas.text.exact_numbers import is_whole

_ALL = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})


def types_at(schema: Any, path: Sequence[str]) -> frozenset[str]:
    """The types of the field at ``path``; empty if the schema does not determine them.

    `number` comes with `integer`. Schemas that apply only sometimes count where no other describes the field.
    """
    always, sometimes = [root_node(schema)], list[SchemaNode]()
    for name in path:
        always = list(closure(always, always_applied))
        sometimes += [part for node in always for part in sometimes_applied(node)]
        sometimes = list(closure(sometimes, lambda node: (*always_applied(node), *sometimes_applied(node))))
        always = [part for node in always for part in inside(node, name)]
        sometimes = [part for node in sometimes for part in inside(node, name)]
    if (certain := _meet([_types(node, ()) for node in always])) is not None:
        return certain
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


def _types(node: SchemaNode, around: tuple[int, ...]) -> frozenset[str] | None:
    """The types that a schema allows; None for every type. ``around``: the schemas that lead to this one."""
    if not isinstance(node.schema, Mapping) or id(node.schema) in around:
        return None
    around = (*around, id(node.schema))
    together = [_declared(node)]
    together += [_types(part, around) for part in always_applied(node)]
    for keyword in ("anyOf", "oneOf"):
        parts = [_types(part, around) for part in node.alternatives(keyword)]
        if parts and None not in parts:
            together.append(frozenset().union(*(part for part in parts if part is not None)))
    return _meet(together)


def _declared(node: SchemaNode) -> frozenset[str] | None:
    kinds = node.get("type")
    if isinstance(kinds, str | list):
        named = frozenset([kinds] if isinstance(kinds, str) else kinds)
        return named | {"integer"} if "number" in named else named
    if isinstance(node.get("enum"), list):
        return frozenset().union(*map(json_types, node.schema["enum"]))
    return json_types(node.schema["const"]) if "const" in node.schema else None


def _meet(together: list[frozenset[str] | None]) -> frozenset[str] | None:
    restricting = [types for types in together if types is not None]
    return _ALL.intersection(*restricting) if restricting else None
