"""Looks up what the saga's input schema says about a path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sagas.expressions import ANY_ELEMENT
from sagas.text.json_values import as_mapping

_UNDECIDABLE_KEYWORDS = ("allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas", "$dynamicRef")
_MANY_REFERENCES = 20


@dataclass(frozen=True, slots=True)
class UndeclaredProperty:
    """The result for a property that the schema does not declare; ``declared_names``: those that it does."""

    name: str
    declared_names: tuple[str, ...]


def schema_at(schema: Any, path: tuple[str, ...], root: Any = None) -> Any:
    """The schema of the value at ``path``; None if the schema does not determine it.

    The result is an UndeclaredProperty for a name that is neither under `properties` nor under `required`.
    """
    root = schema if root is None else root
    schema = resolve_reference(schema, root)
    for part in path:
        if not isinstance(schema, Mapping) or any(key in schema for key in _UNDECIDABLE_KEYWORDS):
            return None
        schema = _element(schema) if part == ANY_ELEMENT else _property(schema, part)
        if isinstance(schema, UndeclaredProperty):
            return schema
        schema = resolve_reference(schema, root)
    return schema


def _element(schema: Mapping[str, Any]) -> Any:
    # With `prefixItems`, `items` describes only the elements after them.
    return None if "prefixItems" in schema else schema.get("items")


def _property(schema: Mapping[str, Any], name: str) -> Any:
    properties, required = as_mapping(schema.get("properties")), _names(schema)
    if name in properties:
        return properties[name]
    if "patternProperties" in schema:
        return None  # a pattern may match; `additionalProperties` applies only if none does
    additional = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
    if additional is False:
        return UndeclaredProperty(name, tuple(properties))
    if additional is None and "properties" in schema and name not in required:
        return UndeclaredProperty(name, tuple(dict.fromkeys((*properties, *required))))
    return additional


def _names(schema: Mapping[str, Any]) -> list[Any]:
    required = schema.get("required")
    return required if isinstance(required, list) else []


def resolve_reference(schema: Any, root: Any) -> Any:
    """Follow a `$ref` within the document, merging in its sibling keywords; other schemas are returned unchanged."""
    for _ in range(_MANY_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
            return schema
        target = root
        for part in reference[2:].split("/") if reference != "#" else ():
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or part not in target:
                return schema
            target = target[part]
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        schema = both(target, siblings) if siblings and isinstance(target, Mapping) else target
    return schema


def both(first: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """One schema that combines both; in a conflict ``other`` wins."""
    merged = {**first, **other}
    for key in ("properties", "patternProperties", "$defs"):
        parts = [part[key] for part in (first, other) if isinstance(part.get(key), Mapping)]
        if len(parts) == 2:
            merged[key] = {**parts[0], **parts[1]}
    if names := [*_names(first), *_names(other)]:
        merged["required"] = list(dict.fromkeys(names))
    return merged


def single_type(schema: Any) -> str | None:
    """The single JSON type that the schema allows; None if there are several or it does not specify one."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return kind if isinstance(kind, str) else None
