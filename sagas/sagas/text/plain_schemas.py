"""Recognises common JSON Schemas without jsonschema, whose import alone takes a tenth of a second."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

_TYPE_NAMES = {"string", "integer", "number", "boolean", "array", "object", "null"}
_STRING_KEYWORDS = {"title", "description", "$comment", "format"}
_COUNT_KEYWORDS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_NUMBER_KEYWORDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_VALUE_KEYWORDS = {"default", "const", "examples"}
_SCHEMA_KEYWORDS = {"items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"}
_SCHEMA_MAP_KEYWORDS = {"properties", "$defs"}
_SCHEMA_LIST_KEYWORDS = {"allOf", "anyOf", "oneOf", "prefixItems"}


def is_certainly_valid(schema: Any) -> bool:
    """True if the schema is certainly valid; False if jsonschema must decide."""
    if isinstance(schema, bool):
        return True
    return isinstance(schema, dict) and all(_is_valid_keyword(key, value) for key, value in schema.items())


def _is_valid_keyword(key: str, value: Any) -> bool:
    if key == "type":
        return isinstance(value, str) and value in _TYPE_NAMES
    if key in _STRING_KEYWORDS:
        return isinstance(value, str)
    if key == "pattern":
        return isinstance(value, str) and _is_regular_expression(value)
    if key == "required":
        return (
            isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)
        )
    if key == "enum":
        return isinstance(value, list)
    if key in _COUNT_KEYWORDS:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if key in _NUMBER_KEYWORDS:
        return isinstance(value, int | Decimal) and not isinstance(value, bool)
    if key in _SCHEMA_MAP_KEYWORDS:
        return isinstance(value, dict) and all(map(is_certainly_valid, value.values()))
    if key in _SCHEMA_LIST_KEYWORDS:
        return isinstance(value, list) and bool(value) and all(map(is_certainly_valid, value))
    if key in _SCHEMA_KEYWORDS:
        return is_certainly_valid(value)
    return (
        key in _VALUE_KEYWORDS
        or key.startswith("x-")
        or (key in ("uniqueItems", "deprecated") and isinstance(value, bool))
    )


def _is_regular_expression(text: str) -> bool:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return False
    return True
