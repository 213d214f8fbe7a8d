"""Looks up what the saga's input schema says about a path, and validates inputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sagas.definition.input_completion import fill_in_defaults, with_integers
from sagas.definition.model import Definition
from sagas.definition.schema_messages import closest_error, sentence
from sagas.definition.schema_patterns import bounded
from sagas.definition.schema_validation import MAX_VALUES, canonical_schema, compile_schema
from sagas.definition.sensitivity import has_sensitive_names, is_sensitive
from sagas.errors import UsageError
from sagas.expressions import ANY_ELEMENT
from sagas.text.exact_numbers import is_whole
from sagas.text.json_values import json_problem

_UNDECIDABLE_KEYWORDS = ("allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas", "$dynamicRef")
_MANY_REFERENCES = 20


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


MAX_ERRORS = 20


def validate_input(definition: Definition, input: Any) -> tuple[Any, list[str]]:
    """The normalised input, and a message per mistake (empty: it is valid). Every way of starting a saga uses it.

    None counts as `{}`. Defaults are filled in, and 12.0 becomes 12 where the schema says `integer`: ids, labels,
    arguments, outputs and digests see the result. A ``float``, which Python code may pass, is the decimal that it
    prints.
    """
    schema = definition.input
    if problem := json_problem(input, max_values=MAX_VALUES):
        return input, [f"input: {problem}"]
    value = {} if input is None else exact_value(input)
    try:
        with bounded():
            if schema == {}:
                return value, []
            compiled = compile_schema(canonical_schema(schema))
            if compiled.has_defaults:  # else there is nothing to fill in, and copying takes a third of the time
                value = fill_in_defaults(compiled, copy.deepcopy(value))
            errors = compiled.first_errors(value, MAX_ERRORS + 1)
            if not errors and compiled.has_integers and has_whole_decimal(value):
                value = with_integers(compiled, value if compiled.has_defaults else copy.deepcopy(value))
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
    return value, messages


def exact_value(value: Any) -> Any:
    """The value with every ``float`` as the decimal that it prints; the value itself if it has none."""
    if not any(isinstance(item, float) for item in _scalars(value)):
        return value
    return _exact_copy(value)


def _exact_copy(value: Any) -> Any:
    match value:
        case float():
            return Decimal(repr(value))
        case dict():
            return {key: _exact_copy(item) for key, item in value.items()}
        case list():
            return [_exact_copy(item) for item in value]
    return value


def has_whole_decimal(value: Any) -> bool:
    """True if a number of the value is whole and has a point or an exponent, such as 12.0."""
    return any(isinstance(item, Decimal) and is_whole(item) for item in _scalars(value))


def _scalars(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
        else:
            yield item


def _error_message(error: Any, schema: Any) -> str:
    error = closest_error(error)
    location, path = "input", ()
    for part in error.absolute_path:
        if isinstance(part, int):
            location, path = f"{location}[{part}]", (*path, ANY_ELEMENT)
        else:
            hidden = has_sensitive_names(schema, path)
            location, path = f"{location}.{'…' if hidden else part}", (*path, part)
    message = sentence(error, hide_value=is_sensitive(schema, path), hide_names=has_sensitive_names(schema, path))
    return f"{location} {message}" if message.startswith(("needs", "has")) else f"{location}: {message}"
