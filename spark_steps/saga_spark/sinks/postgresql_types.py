"""How Spark's types become PostgreSQL's, and which of its types hold them without losing anything. Pure."""

from __future__ import annotations

import re
from typing import Any

_PLAIN = {
    "byte": "smallint",
    "short": "smallint",
    "integer": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
    "binary": "bytea",
}
_INTEGERS = {"smallint", "integer", "bigint"}
_NOT_TEXT = {*_PLAIN.values(), "numeric", "time without time zone", "time with time zone", "interval", "money", "oid"}
_NOT_TEXT -= {"text"}
_TEXT_LENGTH = re.compile(r"(?:var)?char\((\d+)\)")


def created_type(spark: Any) -> str | None:
    """The type of a column in a table that is created for Spark's type (its JSON); None: there is none."""
    if isinstance(spark, dict):
        return "jsonb" if spark.get("type") in ("array", "map", "struct") else None
    if spark.startswith("decimal("):
        return f"numeric{spark.removeprefix('decimal')}"
    if _TEXT_LENGTH.fullmatch(spark):
        return "text"
    return _PLAIN.get(spark)


def misfit(spark: Any, target: str) -> str | None:
    """Why rows of Spark's type (its JSON) would lose something in a column of ``target`` (``format_type`` of the base
    type); None: they fit. A single value may still be too large: that is for the database to say."""
    base, numbers = _split(target)
    told = spark if isinstance(spark, str) else spark.get("type", "?")
    wrong = f"{told} does not fit {target}"
    if isinstance(spark, dict):
        return None if base in ("json", "jsonb") and created_type(spark) else wrong
    if spark in ("byte", "short", "integer", "long"):
        return None if base in (*_INTEGERS, "numeric") else wrong
    if spark.startswith("decimal("):
        scale = int(spark[:-1].split(",")[1])
        if base in _INTEGERS:
            return None if scale == 0 else f"{wrong}: digits after the point would be rounded away"
        if base != "numeric":
            return wrong
        kept = numbers[1] if len(numbers) > 1 else 0
        rounded = bool(numbers) and kept < scale
        return f"{wrong}: digits after the point would be rounded away" if rounded else None
    if spark in ("timestamp", "timestamp_ntz"):
        if base != _PLAIN[spark]:
            return f"{wrong}: one of them has a time zone" if base.startswith("timestamp") else wrong
        return f"{wrong}: microseconds would be rounded away" if numbers and numbers[0] < 6 else None
    if spark == "string" or _TEXT_LENGTH.fullmatch(spark):
        # The database reads uuid, json, inet, its enums … from text and refuses what is none.
        return wrong if base in _NOT_TEXT or target.endswith("[]") else None
    return None if _PLAIN.get(spark) == base else wrong


def _split(target: str) -> tuple[str, list[int]]:
    """``timestamp(3) without time zone`` → its name without numbers, and the numbers."""
    found = re.search(r"\(([\d, -]+)\)", target)
    if found is None:
        return target, []
    return target.replace(found.group(), ""), [int(one) for one in found.group(1).split(",")]
