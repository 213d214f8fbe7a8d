"""Looks up what the saga's input schema says about a path, validates inputs, and fills in defaults."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sagas.definition.model import Definition
from sagas.definition.schema_validation import MAX_VALUES, bounded, canonical_schema, charge, first_errors
from sagas.errors import UsageError
from sagas.expressions import ANY_ELEMENT
from sagas.text.json_values import json_problem

_UNDECIDABLE_KEYWORDS = ("allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas", "$dynamicRef")
_MANY_REFERENCES = 20
SENSITIVE_KEYWORD = "x-sensitive"


@dataclass(frozen=True, slots=True)
class UndeclaredProperty:
    """The result for a property that the schema does not declare; ``known`` are the declared ones."""

    name: str
    known: tuple[str, ...]


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
    properties, required = _mapping(schema.get("properties")), _names(schema)
    if name in properties:
        return properties[name]
    if "patternProperties" in schema:
        return None  # a pattern may match; `additionalProperties` applies only if none does
    rest = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
    if rest is False:
        return UndeclaredProperty(name, tuple(properties))
    if rest is None and "properties" in schema and name not in required:
        return UndeclaredProperty(name, tuple(dict.fromkeys((*properties, *required))))
    return rest


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


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


def both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """One schema that combines both; in a conflict ``other`` wins."""
    merged = {**one, **other}
    for key in ("properties", "patternProperties", "$defs"):
        parts = [part[key] for part in (one, other) if isinstance(part.get(key), Mapping)]
        if len(parts) == 2:
            merged[key] = {**parts[0], **parts[1]}
    if names := [*_names(one), *_names(other)]:
        merged["required"] = list(dict.fromkeys(names))
    return merged


def single_type(schema: Any) -> str | None:
    """The single JSON type that the schema allows; None if there are several or it does not specify one."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return kind if isinstance(kind, str) else None


def is_sensitive(schema: Any, path: tuple[str, ...]) -> bool:
    """True if the value at ``path``, a value that contains it, or a value inside it is `x-sensitive`.

    Branches of `anyOf`, `if` and the like always count, because any of them may apply.
    """
    return any(
        found.get(SENSITIVE_KEYWORD) is True or (not rest and _holds_sensitive(found, schema, set()))
        for found, rest in _describing(schema, path, schema, 0)
    )


def _describing(schema: Any, path: tuple[str, ...], root: Any, depth: int) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Every schema that may describe the value at ``path`` or one that contains it, with the rest of the path."""
    schema = resolve_reference(schema, root)
    if not isinstance(schema, Mapping) or depth > _MANY_REFERENCES:
        return
    yield schema, path
    for branch in _branches(schema):
        yield from _describing(branch, path, root, depth + 1)
    for child in _children(schema, path[0]) if path else ():
        yield from _describing(child, path[1:], root, depth + 1)


def _branches(schema: Mapping[str, Any]) -> list[Any]:
    """The subschemas that describe the same value."""
    lists = [schema[key] for key in ("allOf", "anyOf", "oneOf") if isinstance(schema.get(key), list)]
    single = [schema[key] for key in ("then", "else") if key in schema]
    return [*(one for branches in lists for one in branches), *single]


def _children(schema: Mapping[str, Any], name: str | None = None) -> list[Any]:
    """The subschemas of the values inside a value; with ``name`` those of one property, or of the elements."""
    properties, patterns = _mapping(schema.get("properties")), _mapping(schema.get("patternProperties"))
    elements = [schema.get("items"), *(schema.get("prefixItems") or ())]
    rest = [*patterns.values(), schema.get("additionalProperties"), schema.get("unevaluatedProperties")]
    if name is None:
        return [*properties.values(), *rest, *elements]
    if name == ANY_ELEMENT:
        return elements
    return [properties[name]] if name in properties else rest


def _holds_sensitive(schema: Any, root: Any, seen: set[str]) -> bool:
    """``seen``: the `$ref` values already followed, because schemas may be recursive."""
    reference = schema.get("$ref") if isinstance(schema, Mapping) else None
    if isinstance(reference, str):
        if reference in seen:
            return schema.get(SENSITIVE_KEYWORD) is True
        seen.add(reference)
    schema = resolve_reference(schema, root)
    if not isinstance(schema, Mapping):
        return False
    inside = [*_children(schema), *_branches(schema)]
    return schema.get(SENSITIVE_KEYWORD) is True or any(_holds_sensitive(one, root, seen) for one in inside)


# Validation of an input before its saga starts

MAX_ERRORS = 20


def validate_input(definition: Definition, input: Any) -> tuple[Any, list[str]]:
    """The input with defaults filled in, and a message per mistake (empty: the input is valid).

    None counts as `{}`. Defaults are those of properties (`default`), also in nested objects and list items.
    """
    schema = definition.input
    if problem := json_problem(input, max_values=MAX_VALUES):
        return input, [f"input: {problem}"]
    try:
        with bounded():
            canonical = canonical_schema(schema)
            filled = {} if input is None else input
            if '"default"' in canonical:  # else there is nothing to fill in, and copying takes a third of the time
                filled = with_defaults(schema, copy.deepcopy(filled))
            errors = first_errors(canonical, filled, MAX_ERRORS + 1) if schema else []
    except RecursionError:
        return input, ["input: the schema contains itself without end; correct its `$ref`"]
    except UsageError as error:
        return input, [f"input: {error.message}"]
    except ArithmeticError:
        return input, ["input: a number cannot be checked against the schema; correct the numbers in the schema"]
    errors.sort(key=lambda error: [str(part) for part in error.absolute_path])
    messages = [_error_message(error, schema) for error in errors[:MAX_ERRORS]]
    if len(errors) > MAX_ERRORS:
        messages.append("and more errors")
    return filled, messages


def with_defaults(schema: Any, value: Any, root: Any = None) -> Any:
    """``value``, modified in place, with the defaults of missing properties."""
    charge()
    root = schema if root is None else root
    schema = resolve_reference(schema, root)
    if not isinstance(schema, Mapping):
        return value
    if isinstance(value, dict):
        for name, property in (schema.get("properties") or {}).items():
            described = resolve_reference(property, root)
            if name not in value and isinstance(described, Mapping) and "default" in described:
                value[name] = copy.deepcopy(described["default"])
            if name in value:
                value[name] = with_defaults(property, value[name], root)
    elif isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        value[:] = [with_defaults(schema["items"], item, root) for item in value]
    for part in schema.get("allOf") or ():
        value = with_defaults(part, value, root)
    return value


def _error_message(error: Any, schema: Any) -> str:
    location = "input" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in error.instance)
        return f"{location} needs `{missing}`"
    message = error.message
    if len(message) > 200 or _quotes_sensitive(error, schema):
        message = f"does not fit `{error.validator}`: {error.validator_value!r}"[:200]
    return f"{location}: {message}"


def _quotes_sensitive(error: Any, schema: Any) -> bool:
    """Whether the message may quote a sensitive value: it becomes part of logs, dead letters and the history."""
    path = tuple(ANY_ELEMENT if isinstance(part, int) else part for part in error.absolute_path)
    if error.validator in ("additionalProperties", "unevaluatedProperties") and error.validator_value is False:
        # The message quotes names only, which are content where the object itself is sensitive.
        return any(found.get(SENSITIVE_KEYWORD) is True for found, _ in _describing(schema, path, schema, 0))
    return is_sensitive(schema, path)
