"""Parts of the JSON Schemas of the built-in actions' arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

CODE = "x-code"
"""The keyword of a string that is more than data. ``sql``: code. ``name``: chooses a table, a column, a topic, a
connection, a module. ``path``: chooses a file or a folder."""

CodeKind = Literal["sql", "name", "path"]

STRING: dict[str, Any] = {"type": "string", "minLength": 1}
SQL: dict[str, Any] = {**STRING, CODE: "sql"}
NAME: dict[str, Any] = {**STRING, CODE: "name"}
PATH: dict[str, Any] = {**STRING, CODE: "path"}


def object_schema(properties: dict[str, Any], required: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """An object with these properties and no others; ``more`` are further keywords."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


def element_schemas(schema: Any, key: str | int) -> list[Mapping[str, Any]]:
    """The schemas that a field or an element of a value may have."""
    schemas = []
    for option in _options(schema):
        properties = option.get("properties", {})
        element = (
            option.get("items") if isinstance(key, int) else properties.get(key, option.get("additionalProperties"))
        )
        if isinstance(element, Mapping):
            schemas.append(element)
    return schemas


def code_kinds(schema: Any) -> set[CodeKind]:
    """The kinds of code that a value itself may be."""
    return {option[CODE] for option in _options(schema) if CODE in option}


def contains_code(schema: Any) -> bool:
    """True if the value, or a value inside it, may be code."""
    return any(CODE in option or any(map(contains_code, _elements(option))) for option in _options(schema))


def _options(schema: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(schema, Mapping):
        yield schema
        for option in schema.get("anyOf", ()):
            yield from _options(option)


def _elements(schema: Mapping[str, Any]) -> list[Any]:
    return [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
