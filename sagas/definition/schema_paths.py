"""What a JSON Schema says about the value a path leads to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ELEMENT = "[]"
_OPEN_ENDED = ("allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas", "$dynamicRef")
SENSITIVE = "x-sensitive"


@dataclass(frozen=True, slots=True)
class Missing:
    """The schema knows no property ``name``; ``known`` are those it has."""

    name: str
    known: tuple[str, ...]


def follow(schema: Any, path: tuple[str, ...], root: Any = None) -> Any:
    """The schema of the value at ``path``; None when the schema does not tell; Missing for an undeclared property."""
    root = schema if root is None else root
    schema = resolve(schema, root)
    for part in path:
        if not isinstance(schema, Mapping) or any(key in schema for key in _OPEN_ENDED):
            return None
        if part == ELEMENT:
            schema = schema.get("items")
        else:
            properties = schema.get("properties")
            if not isinstance(properties, Mapping):
                return None
            if part not in properties:
                rest = schema.get("additionalProperties", False)
                if rest is not False or "patternProperties" in schema:
                    return None
                return Missing(part, tuple(properties))
            schema = properties[part]
        schema = resolve(schema, root)
    return schema


def resolve(schema: Any, root: Any) -> Any:
    """Follow a `$ref` into the same document; anything else is returned as it is."""
    for _ in range(20):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        target = root
        for part in reference[2:].split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or part not in target:
                return schema
            target = target[part]
        schema = target
    return schema


def kind_of(schema: Any) -> str | None:
    """The one JSON type the schema allows; None when there are several or it does not tell."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return kind if isinstance(kind, str) else None


def is_sensitive(schema: Any, path: tuple[str, ...]) -> bool:
    """True when the value at ``path``, something around it or something in it is `x-sensitive`."""
    for length in range(len(path) + 1):
        found = follow(schema, path[:length], schema)
        if isinstance(found, Mapping) and found.get(SENSITIVE) is True:
            return True
    return _holds_sensitive(follow(schema, path, schema), schema, 0)


def _holds_sensitive(schema: Any, root: Any, depth: int) -> bool:
    schema = resolve(schema, root)
    if not isinstance(schema, Mapping) or depth > 20:
        return False
    if schema.get(SENSITIVE) is True:
        return True
    children = [*(schema.get("properties") or {}).values(), schema.get("items")]
    children += [one for key in ("allOf", "anyOf", "oneOf") for one in schema.get(key) or ()]
    return any(_holds_sensitive(child, root, depth + 1) for child in children)
