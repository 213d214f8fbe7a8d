"""Parts of the JSON Schemas of the built-in actions' arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

STRING: dict[str, Any] = {"type": "string", "minLength": 1}


def object_schema(properties: dict[str, Any], required: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """An object with these properties and no others; ``more`` are further keywords."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **more,
    }
