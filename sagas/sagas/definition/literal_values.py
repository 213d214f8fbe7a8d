"""Checks values of a definition against JSON Schemas, although those of their expressions are not known before the run.

What an expression may decide is not a mistake; which names a mapping has is known all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sagas.definition.input_completion import fill_in_defaults
from sagas.definition.input_validation import MAX_ERRORS, error_message
from sagas.definition.model import Definition
from sagas.definition.parser.yaml_nodes import YamlNode
from sagas.definition.schema_messages import closest_error, sentence
from sagas.definition.schema_validation import CompiledSchema, canonical_schema, compile_schema
from sagas.errors import UsageError
from sagas.expressions.template_syntax import OPENING
from sagas.expressions.work_budget import bounded
from sagas.text.json_values import json_copy

_OF_NAMES = frozenset(
    {"required", "additionalProperties", "dependentRequired", "minProperties", "maxProperties", "minItems", "maxItems"}
)
"""Keywords that look at the names of a mapping, or the number of elements, alone."""

_MAX_COMPARED = 200
"""Errors of which those are chosen that no expression can end."""


def argument_mistakes(schema: str, node: YamlNode) -> Iterator[tuple[YamlNode, str]]:
    """The mistakes of an argument with their places. ``schema``: its canonical text."""
    for error in _certain_errors(compile_schema(schema), node.to_json()):
        yield _node_at(node, error), sentence(closest_error(error))


def input_mistakes(definition: Definition, node: YamlNode | None) -> Iterator[tuple[YamlNode | None, str]]:
    """The mistakes of the input of a saga with their places; ``node``: None if the input is not written."""
    value = {} if node is None or node.value is None else node.to_json()
    for error in _certain_errors(compile_schema(canonical_schema(definition.input)), value):
        yield node and _node_at(node, error), error_message(error, definition.input)


def certain_input_problems(definition: Definition, value: Any) -> list[str]:
    """The mistakes that the input of a saga has whatever the expressions in it give."""
    value = {} if value is None else value
    errors = _certain_errors(compile_schema(canonical_schema(definition.input)), value)
    return [error_message(error, definition.input) for error in errors]


def _certain_errors(compiled: CompiledSchema, value: Any) -> list[Any]:
    """The errors that a value has whatever its expressions give; none of a schema that is itself wrong."""
    if _is_unknown(value):
        return []
    try:
        with bounded():
            if compiled.has_defaults:
                value = fill_in_defaults(compiled, json_copy(value))
            errors = compiled.first_errors(value, _MAX_COMPARED)
    except (RecursionError, UsageError, ArithmeticError):
        return []  # reported with the schema
    computed = _has_unknown(value)
    return [error for error in errors if not computed or _is_certain(error)][:MAX_ERRORS]


def _is_certain(error: Any) -> bool:
    if not {"then", "else"}.isdisjoint(error.absolute_schema_path):
        return False  # an expression may decide the `if`
    instance = error.instance
    if error.validator in _OF_NAMES or (error.validator == "type" and not isinstance(instance, str)):
        return True
    return not _has_unknown(instance)


def _is_unknown(value: Any) -> bool:
    return isinstance(value, str) and OPENING in value


def _has_unknown(value: Any) -> bool:
    match value:
        case dict():
            return any(map(_has_unknown, value.values()))
        case list():
            return any(map(_has_unknown, value))
    return _is_unknown(value)


def _node_at(node: YamlNode, error: Any) -> YamlNode:
    """The place of an error. A default that was filled in has the place of what it is in."""
    for part in error.absolute_path:
        inside = node.value
        if (isinstance(inside, dict) and part in inside) or (
            isinstance(inside, list) and isinstance(part, int) and part < len(inside)
        ):
            node = inside[part]
        else:
            break
    return node
