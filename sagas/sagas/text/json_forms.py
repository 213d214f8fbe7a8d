"""The forms of JSON values in commands for operators, who replace each `…`: `[{…}]` is a list of objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OBJECT, TEXT, NUMBER, BOOLEAN = "{…}", '"…"', "…", "true"


def list_form(item: str | None) -> str:
    """The form of a list of such items; None: of any."""
    return f"[{item or '…'}]"


def form_of_value(value: Any) -> str | None:
    """The form of a JSON value; None for null."""
    match value:
        case None:
            return None
        case bool():
            return BOOLEAN
        case str():
            return TEXT
        case Mapping():
            return OBJECT
        case list() | tuple():
            return list_form(form_of_value(value[0]) if value else None)
    return NUMBER
