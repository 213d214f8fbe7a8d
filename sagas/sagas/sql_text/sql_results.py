"""The form of the result of a `sql` step, as far as its statements show it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_CHANGES = re.compile(r"\s*(insert|update|delete)\b", re.IGNORECASE)
_RETURNING = re.compile(r"\breturning\b", re.IGNORECASE)
_COLUMNS = re.compile(r"\breturning\s+([a-z_][a-z0-9_]*(?:\s*,\s*[a-z_][a-z0-9_]*)*)\s*;?\s*$", re.IGNORECASE)


@lru_cache(maxsize=2048)
def returns_no_rows(statement: str) -> bool:
    """Return whether this is certain of the text of a statement, so that its result is an empty list."""
    return _CHANGES.match(statement) is not None and _RETURNING.search(statement) is None


def rows_schema(run: Any) -> dict[str, Any]:
    """A JSON Schema: a list of rows, with their columns if RETURNING lists plain names in lower case.

    ``run`` is that of the long form. The rows are those of the last statement that returns any.
    """
    statements = run if isinstance(run, list) else []
    for statement in reversed(statements):
        text = statement.get("sql") if isinstance(statement, Mapping) else None
        if not isinstance(text, str) or not _CHANGES.match(text):
            break
        if len(_RETURNING.findall(text)) == 1 and (columns := _COLUMNS.search(text)):
            names = re.split(r"\s*,\s*", columns[1])
            if all(name == name.lower() for name in names):
                row = {"type": "object", "properties": {name: {} for name in names}, "additionalProperties": False}
                return {"type": "array", "items": row}
        if _RETURNING.search(text):
            break
    return {"type": "array"}
