"""Says which parts of a path into a document may be missing or null, although the document fits its schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from sagas.definition.input_schema import both, resolve_reference
from sagas.expressions import ANY_ELEMENT

NamePath = tuple[str, ...]

Gap = tuple[int, Literal["optional", "null"]]
"""How many names of the path lead to a value that may be missing, or to null where more names follow."""

_UNDECIDABLE = ("anyOf", "oneOf", "if", "dependentSchemas", "dependentRequired", "$dynamicRef")
_MANY = 20


def gaps(schema: Any, path: NamePath) -> Iterator[Gap]:
    """The gaps of ``path``, in order, as far as the schema decides them.

    A property is optional if it is declared, not required, and has no default.
    """
    current = _whole(schema, schema)
    for index, part in enumerate(path):
        if not isinstance(current, Mapping) or any(key in current for key in _UNDECIDABLE):
            return
        if part == ANY_ELEMENT:
            current = None if "prefixItems" in current else _whole(current.get("items"), schema)
            continue
        properties = current.get("properties")
        if not isinstance(properties, Mapping) or part not in properties:
            return
        required = current.get("required")
        current, names = _whole(properties[part], schema), required if isinstance(required, list) else ()
        if part not in names and not (isinstance(current, Mapping) and "default" in current):
            yield index + 1, "optional"
        if index + 1 < len(path) and _may_be_null(current):
            yield index + 1, "null"


def _may_be_null(schema: Any) -> bool:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return isinstance(kind, list) and "null" in kind


def _whole(schema: Any, root: Any, depth: int = 0) -> Any:
    """The schema with its `$ref` followed and its `allOf` merged in."""
    schema = resolve_reference(schema, root)
    if not isinstance(schema, Mapping) or not isinstance(schema.get("allOf"), list) or depth > _MANY:
        return schema
    merged: Mapping[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
    for part in schema["allOf"]:
        whole = _whole(part, root, depth + 1)
        if isinstance(whole, Mapping):
            merged = both(whole, merged)
    return merged
