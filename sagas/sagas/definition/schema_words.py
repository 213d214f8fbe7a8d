"""JSON Schema's words for what other languages write in a schema: ``int``, ``optional``, ``required: true``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sagas.definition.schema_nodes import Path, SchemaNode
from sagas.definition.sensitivity import SENSITIVE_KEYWORD

_TYPES = {
    "`type: integer`": "int long bigint smallint int32 int64 short uint",
    "`type: number`, which has exactly the digits that were written": "decimal float double numeric money real",
    "`type: string`": "str text varchar char bytes binary file",
    "`type: boolean`": "bool yesno flag",
    "`type: string` and `format: date-time`": "datetime timestamp timestamptz date_time",
    "`type: string` and `format: date`": "date",
    "`type: string` and `format: time`": "time",
    "`type: string` and `format: uuid`": "uuid guid",
    "`type: string` and `format: email`": "email mail",
    "`type: string` and `format: uri`": "url uri",
    "`type: array`, and the elements under `items`": "list tuple set sequence",
    "`type: object`, and the fields under `properties`": "dict map mapping hash json struct record",
    "`type: 'null'`, in quotes": "none nil undefined",
    "the values as `enum: [a, b]`, without `type`": "enum choice literal",
    "nothing: a schema without `type` allows every value": "any mixed unknown",
}
TYPE_WORDS = {word: what for what, words in _TYPES.items() for word in words.split()}
_TYPE_NAMES = ("string", "integer", "number", "boolean", "array", "object", "null")

_KEYWORDS = {
    "$anchor $comment $defs $dynamicAnchor $dynamicRef $id $ref $schema $vocabulary id": "",
    "allOf anyOf oneOf not if then else const enum type": "",
    "additionalProperties dependentRequired dependentSchemas dependencies definitions patternProperties": "",
    "maxContains minContains contains additionalItems unevaluatedItems unevaluatedProperties propertyNames": "",
    "uniqueItems multipleOf maxProperties minProperties contentEncoding contentMediaType contentSchema": "",
    "description title deprecated readOnly writeOnly exclusiveMinimum exclusiveMaximum format": "",
    "minimum": "min ge gte minvalue",
    "maximum": "max le lte maxvalue",
    "minLength": "minlen",
    "maxLength": "maxlen length",
    "minItems": "mincount",
    "maxItems": "maxcount",
    "pattern": "regex regexp match",
    "default": "defaultvalue",
    "examples": "example",
    "items": "item elements element",
    "prefixItems": "tuple",
    "properties": "fields props attributes columns",
    "required": "mandatory requiredfields",
}
_OFFICIAL = {name for names in _KEYWORDS for name in names.split()}
_MEANT = {
    **{name.lower(): name for name in _OFFICIAL},
    **{other: names for names, others in _KEYWORDS.items() for other in others.split()},
}
_IS_OPTIONAL = "leave it out: a property is optional unless the object around it lists its name under `required`"
_EXPLAINED = {
    "optional": _IS_OPTIONAL,
    **dict.fromkeys(("nullable", "allownull"), "write `type: [string, 'null']`"),
    **dict.fromkeys(("choices", "values", "options", "oneofvalues", "allowed"), "write `enum: [a, b]`"),
    **dict.fromkeys(("gt", "lt"), "write `exclusiveMinimum` or `exclusiveMaximum`"),
}
_SENSITIVE = ("sensitive", "secret", "xsensitive", "confidential", "pii")

_IS_NO_SCHEMA = "write a schema, for example `{type: string}`"


def schema_help(schema: Any, path: Path) -> str | None:
    """The advice for a part of a schema that is not JSON Schema: what to write instead; None if that is not clear."""
    value: Any = schema
    for part in path:
        value = value[part]
    keyword = next((part for part in reversed(path) if isinstance(part, str)), "")
    if keyword == "type":
        if value is None:
            return "write null in quotes: 'null'"
        meant = TYPE_WORDS.get(str(value).lower().strip("[]?"))
        return f"write {meant}" if meant else f"the types are {', '.join(_TYPE_NAMES)}"
    if keyword == "required" and isinstance(value, bool) and len(path) > 1:
        name = f": `required: [{path[-2]}]`" if path[-3:-2] == ("properties",) else ""
        return f"list the name under `required` of the object around it{name}" if value else _IS_OPTIONAL
    if keyword == "required" and isinstance(value, str):
        return f"write a list: `required: [{value}]`"
    if keyword == "items" and isinstance(value, list):
        return "write the one schema of all elements, `items: {type: string}`; `prefixItems` takes a list of schemas"
    if keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
        return f"write the limit itself: `{keyword}: 0`"
    if isinstance(value, str) and (value in _TYPE_NAMES or value.lower() in TYPE_WORDS):
        word = TYPE_WORDS.get(value.lower(), f"`type: {value}`")
        return f"write {word}"
    return _IS_NO_SCHEMA if isinstance(value, str) and path[-2:-1] == ("properties",) else None


def keyword_problems(parts: list[tuple[SchemaNode, Path]]) -> Iterator[tuple[str, Path, str, str]]:
    """The code, the path, the message and the help for each keyword that JSON Schema does not have and ignores."""
    for node, path in parts:
        for name, value in node.schema.items() if isinstance(node.schema, Mapping) else ():
            plain = re.sub(r"[-_]", "", str(name)).lower()
            if name in _OFFICIAL or (str(name).startswith("x-") and plain != "xsensitive"):
                continue
            if plain in _SENSITIVE and name != SENSITIVE_KEYWORD and isinstance(value, bool):
                yield "SAGA123", (*path, name), f"`{name}` protects nothing", f"write `{SENSITIVE_KEYWORD}: true`"
            elif name != SENSITIVE_KEYWORD and (help := _keyword_help(plain, value)) is not None:
                yield "SAGA118", (*path, name), f"`{name}` is not a keyword of JSON Schema and checks nothing", help


def _keyword_help(plain: str, value: Any) -> str | None:
    if plain in _EXPLAINED:
        return _EXPLAINED[plain]
    is_property = isinstance(value, Mapping) and bool({"type", "properties", "enum", "$ref"} & value.keys())
    if is_property or (isinstance(value, str) and (value in _TYPE_NAMES or value in ("int", "str", "bool", "decimal"))):
        return "describe a property under `properties`"
    return f"write `{_MEANT[plain]}`" if plain in _MEANT else None
