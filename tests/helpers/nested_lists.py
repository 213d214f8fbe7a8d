"""Values that are nested more or less deeply."""

from __future__ import annotations

from typing import Any


def nested_list(levels: int, value: Any = "x") -> Any:
    """The value in this many lists, one in the other."""
    for _ in range(levels):
        value = [value]
    return value
