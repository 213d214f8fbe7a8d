"""Checks literal values against JSON Schemas, and whether `input` is a valid JSON Schema.

Only the keywords that signatures and the language's tables use are supported; unknown keywords allow everything.
Strings with an expression fit everywhere, because their value is unknown before the run; jsonschema cannot skip them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sagas.builtins.messaging import FORM_DESCRIPTION
from sagas.builtins.registry import PLANNED
from sagas.definition.diagnostics import Report, suggestion_help
from sagas.definition.parser.draft import SagaDraft
from sagas.definition.parser.field_types import describe_node
from sagas.definition.parser.yaml_nodes import YamlNode
from sagas.definition.schema_validation import matches_pattern, schema_problems
from sagas.errors import UsageError

Mismatch = tuple[YamlNode, str]

_PYTHON_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
TYPE_DESCRIPTIONS = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}


def mismatches(node: YamlNode, schema: Any, root: Mapping[str, Any]) -> Iterator[Mismatch]:
    """Every mismatch of a literal; ``root`` holds the `$defs` that `$ref` refers to."""
    if not isinstance(schema, Mapping) or (isinstance(node.value, str) and "${{" in node.value):
        return
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        yield from mismatches(node, root.get("$defs", {}).get(reference[8:]), root)
    for one in schema.get("allOf", ()):
        yield from mismatches(node, one, root)
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        yield from _best_option(node, options, root)
    kinds = schema.get("type")
    if kinds is not None:
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if not any(_has_type(node.value, kind) for kind in kinds):
            yield (
                node,
                f"expected {' or '.join(TYPE_DESCRIPTIONS[kind] for kind in kinds)}, found {describe_node(node)}",
            )
            return
    yield from _value_mismatches(node, schema)
    if isinstance(node.value, dict):
        yield from _object_mismatches(node, schema, root)
    elif isinstance(node.value, list):
        if isinstance(schema.get("items"), Mapping):
            for item in node.value:
                yield from mismatches(item, schema["items"], root)
        if len(node.value) < schema.get("minItems", 0):
            yield node, f"expected at least {schema['minItems']} in the list"


def _has_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON_TYPES.get(kind, object))


def _best_option(node: YamlNode, options: list[Any], root: Mapping[str, Any]) -> Iterator[Mismatch]:
    """Nothing if an option fits; otherwise the mismatches of the option that comes closest."""
    tried = [list(mismatches(node, option, root)) for option in options]
    if not all(tried):
        return
    deeper = [found for found in tried if found[0][0] is not node]
    if deeper:
        yield from min(deeper, key=len)
        return
    kinds = [
        option["type"] for option in options if isinstance(option, Mapping) and isinstance(option.get("type"), str)
    ]
    words = " or ".join(dict.fromkeys(TYPE_DESCRIPTIONS[kind] for kind in kinds if kind in TYPE_DESCRIPTIONS))
    if words and not any(_has_type(node.value, kind) for kind in kinds):
        yield node, f"expected {words}, found {describe_node(node)}"
    else:
        yield tried[0][0]


def _value_mismatches(node: YamlNode, schema: Mapping[str, Any]) -> Iterator[Mismatch]:
    value = node.value
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if choices is not None and not any(value == one and type(value) is type(one) for one in choices):
        words = ", ".join(str(one) for one in choices)
        close = suggestion_help(value, map(str, choices)) if isinstance(value, str) else ""
        yield node, f"expected one of {words}, found {describe_node(node)}" + (f". {close}" if close else "")
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            yield node, "expected a string that is not empty"
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and not _matches(pattern, value, own=FORM_DESCRIPTION in schema):
            form = schema.get(FORM_DESCRIPTION)
            yield (
                node,
                f"{describe_node(node)} is not {form}"
                if form
                else f"{describe_node(node)} does not have the form {pattern}",
            )
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            yield node, f"expected at least {schema['minimum']}, found {value}"
        if "maximum" in schema and value > schema["maximum"]:
            yield node, f"expected at most {schema['maximum']}, found {value}"


def _matches(pattern: str, text: str, *, own: bool) -> bool:
    """``own``: a pattern of the engine, which may use what RE2 does not support. One of an author that RE2 does not
    support is reported elsewhere."""
    if own:
        return re.search(pattern, text) is not None
    try:
        return matches_pattern(pattern, text)
    except UsageError:
        return True


def _object_mismatches(node: YamlNode, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Mismatch]:
    properties = schema.get("properties") or {}
    for name in schema.get("required", ()):
        if name not in node.value:
            yield node, f"`{name}` is missing"
    for name, child in node.value.items():
        if name in properties:
            if not (isinstance(properties[name], Mapping) and PLANNED in properties[name]):
                yield from mismatches(child, properties[name], root)
        elif schema.get("additionalProperties") is False:
            close = suggestion_help(name, properties)
            yield child, f"`{name}` is not known here" + (f". {close}" if close else "")
        elif isinstance(schema.get("additionalProperties"), Mapping):
            yield from mismatches(child, schema["additionalProperties"], root)


# The schema of `input`. Common schemas are recognised here; others go to jsonschema, whose import alone takes a tenth
# of a second.

_TYPE_NAMES = {"string", "integer", "number", "boolean", "array", "object", "null"}
_STRING_KEYWORDS = {"title", "description", "$comment", "$schema", "$id", "format"}
_COUNT_KEYWORDS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_NUMBER_KEYWORDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_VALUE_KEYWORDS = {"default", "const", "examples"}
_SCHEMA_KEYWORDS = {"items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"}
_SCHEMA_MAP_KEYWORDS = {"properties", "$defs"}
_SCHEMA_LIST_KEYWORDS = {"allOf", "anyOf", "oneOf", "prefixItems"}


def check_input_schema(draft: SagaDraft, report: Report) -> None:
    """Report an input schema that is not a valid JSON Schema."""
    if "input" not in draft.root:
        return
    node = draft.root.node_of("input")
    schema = node.to_json()
    if _is_certainly_valid(schema):
        return
    from jsonschema import Draft202012Validator, FormatChecker, SchemaError

    try:
        Draft202012Validator.check_schema(schema, format_checker=FormatChecker(()))
        for code, path, message in schema_problems(schema):
            report.add(code, _node_at(node, list(path)), message)
    except SchemaError as error:
        position = _node_at(node, list(error.absolute_path))
        where = ".".join(str(part) for part in error.absolute_path)
        report.add(
            "SAGA112", position, f"`input{'.' + where if where else ''}` is not JSON Schema: {error.message[:200]}"
        )


def _is_certainly_valid(schema: Any) -> bool:
    """True if the schema is certainly valid; False if jsonschema must decide."""
    if isinstance(schema, bool):
        return True
    return isinstance(schema, dict) and all(_is_valid_keyword(key, value) for key, value in schema.items())


def _is_valid_keyword(key: str, value: Any) -> bool:
    if key == "type":
        return isinstance(value, str) and value in _TYPE_NAMES
    if key in _STRING_KEYWORDS:
        return isinstance(value, str) and not key.startswith("$s") and not key.startswith("$i")
    if key == "required":
        return (
            isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)
        )
    if key == "enum":
        return isinstance(value, list)
    if key in _COUNT_KEYWORDS:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if key in _NUMBER_KEYWORDS:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if key in _SCHEMA_MAP_KEYWORDS:
        return isinstance(value, dict) and all(_is_certainly_valid(one) for one in value.values())
    if key in _SCHEMA_LIST_KEYWORDS:
        return isinstance(value, list) and bool(value) and all(_is_certainly_valid(one) for one in value)
    if key in _SCHEMA_KEYWORDS:
        return _is_certainly_valid(value)
    return (
        key in _VALUE_KEYWORDS
        or key.startswith("x-")
        or (key in ("uniqueItems", "deprecated") and isinstance(value, bool))
    )


def _node_at(node: YamlNode, path: list[Any]) -> YamlNode:
    for part in path:
        children = node.value
        known = part in children if isinstance(children, dict) else isinstance(part, int) and part < len(children)
        if not known:
            break
        node = children[part]
    return node
