"""Text that only PostgreSQL takes for a number, as the source of a program: `0x10` is 16 for it, and `1_0` is 10."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from saga_activities.guard.json_parameters import UnusableParameter

_TYPES = frozenset((20, 21, 23, 26, 700, 701, 790, 1700, 1005, 1007, 1016, 1021, 1022, 1028, 1231))
"""The types of numbers by their object identifiers, also in arrays."""

_NOTATION = re.compile(r"\s*[-+]?(?:0[xob](?:_?[0-9a-f])+|(?=.*[0-9]_[0-9])[0-9_.e+-]+)\s*", re.ASCII | re.IGNORECASE)


def notations(value: Any) -> Iterator[str]:
    """The texts in a value that are numbers for PostgreSQL alone."""
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, list | tuple):
            yield from notations(item)
        elif isinstance(item, str) and _NOTATION.fullmatch(item):
            yield item


def refuse_notation(name: str, value: Any, type: int) -> None:
    """Raise UnusableParameter for such a text at a place where PostgreSQL takes this type."""
    if type in _TYPES and (text := next(notations(value), None)) is not None:
        raise UnusableParameter(
            f"the parameter {name} is the text {text[:80]}, which PostgreSQL would read as a number of a program: give"
            " a number in decimal digits"
        )
