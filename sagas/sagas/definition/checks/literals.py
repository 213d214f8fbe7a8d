"""Does a written value fit a JSON Schema, as far as it is literal?

Only the keywords that signatures and our own tables use; an unknown keyword allows everything. Texts with an expression
fit everywhere, because their value is known only in a run. jsonschema cannot leave such parts out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sagas.builtins import LATER
from sagas.builtins_messaging import FORM
from sagas.definition.diagnostics import did_you_mean
from sagas.definition.shapes import describe
from sagas.definition.source import Node

Mismatch = tuple[Node, str]

_KINDS: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
KIND_WORDS = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}


def mismatches(node: Node, schema: Any, root: Mapping[str, Any]) -> Iterator[Mismatch]:
    """Every place where a literal does not fit; ``root`` holds the `$defs` that `$ref` points into."""
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
        if not any(_is_kind(node.value, kind) for kind in kinds):
            yield node, f"expected {' or '.join(KIND_WORDS[kind] for kind in kinds)}, found {describe(node)}"
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


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS.get(kind, object))


def _best_option(node: Node, options: list[Any], root: Mapping[str, Any]) -> Iterator[Mismatch]:
    """Nothing when an option fits; else what is wrong with the option that comes closest."""
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
    words = " or ".join(dict.fromkeys(KIND_WORDS[kind] for kind in kinds if kind in KIND_WORDS))
    if words and not any(_is_kind(node.value, kind) for kind in kinds):
        yield node, f"expected {words}, found {describe(node)}"
    else:
        yield tried[0][0]


def _value_mismatches(node: Node, schema: Mapping[str, Any]) -> Iterator[Mismatch]:
    value = node.value
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if choices is not None and not any(value == one and type(value) is type(one) for one in choices):
        words = ", ".join(str(one) for one in choices)
        close = did_you_mean(value, map(str, choices)) if isinstance(value, str) else ""
        yield node, f"expected one of {words}, found {describe(node)}" + (f". {close}" if close else "")
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            yield node, "expected a text that is not empty"
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and not re.search(pattern, value):
            form = schema.get(FORM)
            yield (
                node,
                f"{describe(node)} is not {form}" if form else f"{describe(node)} does not have the form {pattern}",
            )
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            yield node, f"expected at least {schema['minimum']}, found {value}"
        if "maximum" in schema and value > schema["maximum"]:
            yield node, f"expected at most {schema['maximum']}, found {value}"


def _object_mismatches(node: Node, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Mismatch]:
    properties = schema.get("properties") or {}
    for name in schema.get("required", ()):
        if name not in node.value:
            yield node, f"`{name}` is missing"
    for name, child in node.value.items():
        if name in properties:
            if not (isinstance(properties[name], Mapping) and LATER in properties[name]):
                yield from mismatches(child, properties[name], root)
        elif schema.get("additionalProperties") is False:
            close = did_you_mean(name, properties)
            yield child, f"`{name}` is not known here" + (f". {close}" if close else "")
        elif isinstance(schema.get("additionalProperties"), Mapping):
            yield from mismatches(child, schema["additionalProperties"], root)
