"""The functions, operators and types of each database that take JSON or an array as a parameter. Pure."""

from __future__ import annotations

from typing import Any, Literal

Taken = Literal["json", "array"]

_OF_DOCUMENT = (
    *("JSONExtract", "JSONExtractScalar", "JSONValue", "JSONKeys", "JSONType", "JSONTable"),
    *("JSONSet", "JSONArrayAppend", "JSONArrayInsert", "JSONRemove"),
    *("JSONBExtract", "JSONBExtractScalar", "JSONBDeleteAtPath", "JSONBPathExists", "JSONBContainsTopKey"),
    *("JSONBContainsAnyTopKeys", "JSONBContainsAllTopKeys"),
)
"""Functions and operators whose first operand is JSON; the others are paths, keys and values."""

_OF_ELEMENTS = ("quote", "array", "object", "arrayagg", "objectagg", "group_array", "group_object")
"""Functions of MySQL, MariaDB and SQLite named `json_…` that take text as a string, also where it is JSON."""

_OF_DOCUMENTS = (
    *("contains", "overlaps", "equals", "merge", "merge_patch", "merge_preserve", "patch", "schema_valid"),
    *("array_intersect", "object_filter_keys"),
)
"""Functions named `json_…` whose first two arguments are JSON, and those of `merge` all."""

_OF_TEXT = ("extract_path", "extract_path_text", "exists", "exists_any", "exists_all", "delete")
"""Functions of PostgreSQL named `json_…` that take text after the document."""

_OF_ARRAY = ("unnest", "cardinality", "trim_array", "generate_subscripts", "any", "all", "some", "array_to_json")
_OF_ARRAYS = ("ArrayContainsAll", "ArrayContainedBy", "ArrayOverlaps", "JSONBContains")
_OF_KEYS = (
    *("JSONBContainsAnyTopKeys", "JSONBContainsAllTopKeys"),
    *("JSONBExtract", "JSONBExtractScalar", "JSONBDeleteAtPath"),
)


def taken_by(parent: Any, node: Any, dialect: str) -> Taken | None:
    """The values that ``parent`` takes where ``node`` stands: any JSON, an array, or a single value."""
    kind, is_first = type(parent).__name__, node.arg_key == "this"
    if kind in _OF_DOCUMENT and is_first:
        return "json"
    if kind == "JSONArrayContains":  # the value `member of` the document
        return None if is_first else "json"
    if kind == "Anonymous":
        return taken_by_name(parent.name.lower(), node.index or 0, dialect)
    return _by_operator(kind, is_first=is_first) if dialect == "postgresql" else None


def taken_by_name(name: str, position: int, dialect: str) -> Taken | None:
    """The values that a function takes as its argument at a position, from 0."""
    return _by_postgresql(name, position) if dialect == "postgresql" else _by_others(name, position)


def _by_operator(kind: str, *, is_first: bool) -> Taken | None:
    if kind in _OF_ARRAYS or kind.startswith(("JSONObject", "JSONKeyValue", "JSONArray")):
        return "json"  # the database knows the type of the other operand, or that of the parameter
    if kind in ("Any", "All", "Unnest", "Explode", "ArrayConcat", *_OF_KEYS):
        return "array"
    return "array" if is_first and (kind == "Bracket" or kind.startswith("Array")) else None


def _by_postgresql(name: str, position: int) -> Taken | None:
    if name in ("to_json", "to_jsonb"):
        return "json"
    if name.startswith(("json_", "jsonb_")):
        return None if position and name.partition("_")[2] in _OF_TEXT else "json"
    if name == "array_fill":
        return "array" if position else None
    return "array" if position == 0 and (name in _OF_ARRAY or name.startswith("array_")) else None


def _by_others(name: str, position: int) -> Taken | None:
    family, _, operation = name.partition("_")
    if family not in ("json", "jsonb") or operation in _OF_ELEMENTS:
        return None
    return "json" if position < (2 if operation in _OF_DOCUMENTS else 1) or operation.startswith("merge") else None


def is_cast_type(type_: Any, kind: Literal["json", "array", "text"]) -> bool:
    """Return whether a value becomes JSON, an array, or text and what only the database knows."""
    name = getattr(getattr(type_, "this", None), "value", "")
    match kind:
        case "json":
            return name in ("JSON", "JSONB")
        case "array":
            return name == "ARRAY"
    texts = ("CHAR", "NCHAR", "VARCHAR", "NVARCHAR", "TEXT", "NAME", "BINARY", "VARBINARY", "BLOB", "USER-DEFINED")
    return name in texts or not name
