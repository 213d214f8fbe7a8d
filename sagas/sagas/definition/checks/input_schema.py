"""Is `input` a JSON Schema? The plain ones are recognised here; anything unusual is put to jsonschema, whose import
alone takes a tenth of a second."""

from __future__ import annotations

from typing import Any

from sagas.definition.diagnostics import Report
from sagas.definition.draft import Draft
from sagas.definition.source import Node

_TYPES = {"string", "integer", "number", "boolean", "array", "object", "null"}
_TEXTS = {"title", "description", "$comment", "$schema", "$id", "format"}
_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_ANYTHING = {"default", "const", "examples"}
_SCHEMAS = {"items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"}
_MAPS = {"properties", "$defs"}
_LISTS = {"allOf", "anyOf", "oneOf", "prefixItems"}


def check_input_schema(draft: Draft, report: Report) -> None:
    """Report where the input's schema is no schema."""
    if "input" not in draft.top:
        return
    node = draft.top.at("input")
    if _plain(node.json()):
        return
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(node.json())
    except SchemaError as error:
        place = _find(node, list(error.absolute_path))
        where = ".".join(str(part) for part in error.absolute_path)
        report.add("SAGA112", place, f"`input{'.' + where if where else ''}` is not JSON Schema: {error.message[:200]}")


def _plain(schema: Any) -> bool:
    """True when the schema is certainly valid; False when that is not certain."""
    if isinstance(schema, bool):
        return True
    return isinstance(schema, dict) and all(_plain_keyword(key, value) for key, value in schema.items())


def _plain_keyword(key: str, value: Any) -> bool:
    if key == "type":
        return isinstance(value, str) and value in _TYPES
    if key in _TEXTS:
        return isinstance(value, str) and not key.startswith("$s") and not key.startswith("$i")
    if key == "required":
        return (
            isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)
        )
    if key == "enum":
        return isinstance(value, list)
    if key in _COUNTS:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if key in _NUMBERS:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if key in _MAPS:
        return isinstance(value, dict) and all(_plain(one) for one in value.values())
    if key in _LISTS:
        return isinstance(value, list) and bool(value) and all(_plain(one) for one in value)
    if key in _SCHEMAS:
        return _plain(value)
    return (
        key in _ANYTHING or key.startswith("x-") or (key in ("uniqueItems", "deprecated") and isinstance(value, bool))
    )


def _find(node: Node, path: list[Any]) -> Node:
    for part in path:
        children = node.value
        known = part in children if isinstance(children, dict) else isinstance(part, int) and part < len(children)
        if not known:
            break
        node = children[part]
    return node
