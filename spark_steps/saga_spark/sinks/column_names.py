"""Names of columns that a sink cannot hold, or that its readers cannot tell apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

POSTGRESQL_NAME_BYTES = 63
"""PostgreSQL cuts longer names off without an error."""

_POSTGRESQL_SYSTEM_COLUMNS = {"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"}
_ICEBERG_METADATA_COLUMNS = {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id"}


def column_name_problems(kind: str, schema: Mapping[str, Any]) -> list[str]:
    """One message per name. ``schema`` is Spark's JSON of the rows, ``kind`` that of the output."""
    names = [field["name"] for field in schema.get("fields", ())]
    problems = list(_common_problems(schema, ""))
    for name in names:
        if kind == "postgresql":
            if problem := postgresql_name_problem("column", name):
                problems.append(problem)
            if name in _POSTGRESQL_SYSTEM_COLUMNS:
                problems.append(f"the column {name} has the name of a system column of PostgreSQL; rename it")
        if kind == "iceberg" and name in _ICEBERG_METADATA_COLUMNS:
            problems.append(f"the column {name} has the name of a metadata column of Iceberg; rename it")
    if kind == "iceberg":
        problems += _equal_paths(schema)
    return problems


def postgresql_name_problem(what: str, name: str) -> str | None:
    """Why PostgreSQL cannot hold the name of a column, table or schema; None if it can."""
    size = len(name.encode())
    if size <= POSTGRESQL_NAME_BYTES:
        return None
    return f"the {what} name {name} has {size} bytes, and PostgreSQL holds {POSTGRESQL_NAME_BYTES}; shorten it"


def _common_problems(schema: Mapping[str, Any], prefix: str) -> Iterator[str]:
    seen: dict[str, str] = {}
    for number, field in enumerate(schema.get("fields", ()), 1):
        name = field["name"]
        path = f"{prefix}{name}"
        if not name.strip():
            yield f"the {number}. column {f'of {prefix[:-1]} ' if prefix else ''}has an empty name; give it an alias"
        elif "\0" in name:
            yield f"the column {path!r} has a NUL character in its name; rename it"
        elif name.lower() in seen:
            yield (
                f"the columns {prefix}{seen[name.lower()]} and {path} have one name for readers that ignore case; "
                "rename one"
            )
        seen.setdefault(name.lower(), name)
        for inner in _structs(field["type"]):
            yield from _common_problems(inner, f"{path}.")


def _structs(kind: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(kind, Mapping):
        if kind.get("type") == "struct":
            yield kind
        for part in ("elementType", "keyType", "valueType"):
            yield from _structs(kind.get(part))


def _equal_paths(schema: Mapping[str, Any]) -> Sequence[str]:
    """A column `a.b` and the field `b` of a column `a` have one path in Iceberg."""
    paths: dict[str, int] = {}

    def count(inner: Mapping[str, Any], prefix: str) -> None:
        for field in inner.get("fields", ()):
            path = f"{prefix}{field['name']}".lower()
            paths[path] = paths.get(path, 0) + 1
            if isinstance(field["type"], Mapping) and field["type"].get("type") == "struct":
                count(field["type"], f"{path}.")

    count(schema, "")
    return [
        f"a column named {path} and a field of a struct have one path in Iceberg; rename one"
        for path, times in paths.items()
        if times > 1 and "." in path
    ]
