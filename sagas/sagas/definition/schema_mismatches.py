"""Checks values against the JSON Schemas of arguments: literals of a definition, and the values of a call.

Only the keywords that signatures and the language's tables use are supported; unknown keywords allow everything.
Strings with an expression fit everywhere, because their value is unknown before the run; jsonschema cannot skip them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import cached_property
from typing import Any, Protocol, TypeVar

from sagas.builtins.messaging import FORM_DESCRIPTION
from sagas.definition.diagnostics import suggestion_help
from sagas.definition.json_types import has_type
from sagas.definition.schema_messages import TYPE_DESCRIPTIONS, describe_types
from sagas.definition.schema_patterns import may_match
from sagas.text.exact_numbers import is_equal


class Node(Protocol):
    """A value and its place. ``value`` is a scalar, or a ``dict`` or ``list`` of nodes."""

    @property
    def value(self) -> Any: ...

    @property
    def has_expression(self) -> bool:
        """True for a string whose value is unknown before the run."""
        ...

    def to_json(self) -> Any: ...


class JsonNode:
    """A JSON value and the path that leads to it: ``run[0].sql``."""

    has_expression = False

    def __init__(self, json: Any, path: str) -> None:
        self._json = json
        self.path = path

    @cached_property
    def value(self) -> Any:
        if isinstance(self._json, Mapping):
            return {str(name): JsonNode(value, f"{self.path}.{name}") for name, value in self._json.items()}
        if isinstance(self._json, list):
            return [JsonNode(value, f"{self.path}[{index}]") for index, value in enumerate(self._json)]
        return self._json

    def to_json(self) -> Any:
        return self._json


AnyNode = TypeVar("AnyNode", bound=Node)


def describe_node(node: Node) -> str:
    """Return what stands at this node, in words."""
    value = node.value
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= 40 else "a string"
    return str(value)


def mismatches(node: AnyNode, schema: Any, root: Mapping[str, Any]) -> Iterator[tuple[AnyNode, str]]:
    """Every mismatch of a value; ``root`` holds the `$defs` that `$ref` refers to."""
    if not isinstance(schema, Mapping) or node.has_expression:
        return
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        yield from mismatches(node, root.get("$defs", {}).get(reference[8:]), root)
    for part in schema.get("allOf", ()):
        yield from mismatches(node, part, root)
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        yield from _best_option(node, options, root)
    kinds = schema.get("type")
    if kinds is not None:
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if not any(has_type(node.value, kind) for kind in kinds):
            expected = describe_types(kinds)
            if FORM_DESCRIPTION in schema and "string" not in kinds:
                expected = schema[FORM_DESCRIPTION]
            yield node, f"expected {expected}, found {describe_node(node)}{_quote_hint(node.value, kinds)}"
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


def _quote_hint(value: Any, kinds: list[str]) -> str:
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    return ": quote it" if is_number and "string" in kinds else ""


def _best_option(node: AnyNode, options: list[Any], root: Mapping[str, Any]) -> Iterator[tuple[AnyNode, str]]:
    """The mismatches of the node with the option that comes closest; none if one fits."""
    tried = [list(mismatches(node, option, root)) for option in options]
    if not all(tried):
        return
    deeper = [problems for problems in tried if problems[0][0] is not node]
    if deeper:
        yield from min(deeper, key=len)
        return
    kinds = [
        option["type"] for option in options if isinstance(option, Mapping) and isinstance(option.get("type"), str)
    ]
    words = " or ".join(dict.fromkeys(TYPE_DESCRIPTIONS[kind] for kind in kinds if kind in TYPE_DESCRIPTIONS))
    if words and not any(has_type(node.value, kind) for kind in kinds):
        yield node, f"expected {words}, found {describe_node(node)}"
    else:
        yield tried[0][0]


def _value_mismatches(node: AnyNode, schema: Mapping[str, Any]) -> Iterator[tuple[AnyNode, str]]:
    value = node.value
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if choices is not None and not any(is_equal(node.to_json(), choice) for choice in choices):
        words = ", ".join(map(str, choices))
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
    elif isinstance(value, int | Decimal) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            yield node, f"expected at least {schema['minimum']}, found {value}"
        if "maximum" in schema and value > schema["maximum"]:
            yield node, f"expected at most {schema['maximum']}, found {value}"


def _matches(pattern: str, text: str, *, own: bool) -> bool:
    """``own``: a pattern of the engine, which may use what RE2 does not support. One of an author that RE2 does not
    support is reported elsewhere."""
    # `$` of Python's module is also before a line break at the end.
    return re.search(re.sub(r"\$\Z", r"\\Z", pattern), text) is not None if own else may_match(pattern, text)


def _object_mismatches(
    node: AnyNode, schema: Mapping[str, Any], root: Mapping[str, Any]
) -> Iterator[tuple[AnyNode, str]]:
    properties = schema.get("properties") or {}
    for name in schema.get("required", ()):
        if name not in node.value:
            yield node, f"`{name}` is missing"
    for name, child in node.value.items():
        if name in properties:
            yield from mismatches(child, properties[name], root)
        elif schema.get("additionalProperties") is False:
            takes = ", ".join(f"`{each}`" for each in properties)
            help = suggestion_help(name, properties, f"it takes {takes}" if takes else "")
            yield child, f"`{name}` is not known here" + (f". {help}" if help else "")
        elif isinstance(schema.get("additionalProperties"), Mapping):
            yield from mismatches(child, schema["additionalProperties"], root)
