"""Compares the columns of a file, or the fields of one input, with the properties that the schema declares."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from sagas.definition.input_schema import resolve_reference
from sagas.definition.sensitivity import has_sensitive_names
from sagas.errors import UsageError, did_you_mean, nearest

_LOOKS_LIKE_DATA = re.compile(r"[-+]?[0-9][0-9.,:/TZ -]*|true|false|null|[{\[].*", re.IGNORECASE)
_MAX_LISTED = 10
_MAX_COMPARED = 200


def check_columns(place: str, columns: Mapping[str, Sequence[str]], schema: Any) -> None:
    """Refuse a header that no row can fit. ``columns``: the path of each column's field, by the column's name.

    Raises UsageError for the whole file: a needed field has no column, a column is a field that the schema forbids, or
    the first line is not a header.
    """
    root = _declaring(schema)
    declared = tuple(root["properties"])
    undeclared = {path[0]: name for name, path in columns.items() if path[0] not in declared}
    if not declared:
        return
    if len(undeclared) == len(columns) and any(_LOOKS_LIKE_DATA.fullmatch(name) for name in columns):
        listed = ", ".join(declared[:_MAX_LISTED]) + (", …" if len(declared) > _MAX_LISTED else "")
        raise UsageError(f"{place}: this line looks like data; write a header with names of fields above it: {listed}")
    fields = {path[0] for path in columns.values()}
    for name in root.get("required", ()):
        if name not in fields and "default" not in (resolve_reference(root["properties"].get(name), schema) or {}):
            near = nearest(name, undeclared)
            other = f", and there is {near}{did_you_mean(near, (name,))}" if near else "; add it"
            raise UsageError(f"{place}: the input needs {name}, which no column has{other}")
    if root.get("additionalProperties") is False and "patternProperties" not in root:
        for field, name in undeclared.items():
            hint = did_you_mean(field, declared) or "; rename or remove it"
            raise UsageError(f"{place}: the column {name} is not a field of the input{hint}")


def misspelled_fields(value: Any, schema: Any) -> Iterator[str]:
    """A sentence for each field that the schema allows without declaring it, if it resembles a declared one."""
    root = _declaring(schema)
    if not isinstance(value, Mapping) or "additionalProperties" in root or "patternProperties" in root:
        return
    absent = tuple(name for name in root["properties"] if name not in value)
    for name in islice(value, _MAX_COMPARED):
        if name not in root["properties"] and (hint := did_you_mean(name[:_MAX_COMPARED], absent)):
            yield f"the schema of the input does not declare the field {name}{hint}"


def _declaring(schema: Any) -> Mapping[str, Any]:
    """The schema of the input itself; without properties if their names are sensitive or not all of them are here."""
    root = resolve_reference(schema, schema)
    combined = ("allOf", "anyOf", "oneOf", "if", "dependentSchemas", "unevaluatedProperties", "$dynamicRef")
    if not isinstance(root, Mapping) or any(key in root for key in combined) or has_sensitive_names(schema, ()):
        return {"properties": {}}
    return {"properties": {}, **root}
