"""Text that only PostgreSQL takes for a number, as the source of a program: `0x10` is 16 for it, and `1_0` is 10."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from saga_activities.parameters.json_parameters import UnusableParameter

_NOTATION = re.compile(r"\s*+[-+]?(?:0[xob](?:_?[0-9a-f])+|(?=.*[0-9]_[0-9])[0-9_.e+-]+)\s*", re.ASCII | re.IGNORECASE)


def notations(value: Any) -> Iterator[str]:
    """The texts in a value that are numbers for PostgreSQL alone."""
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, list | tuple):
            yield from notations(item)
        elif isinstance(item, str) and _NOTATION.fullmatch(item):
            yield item


def refuse_notations(parameter: str, value: Any) -> None:
    """Raise UnusableParameter for a value that has one, at a place of a number in PostgreSQL."""
    if (text := next(notations(value), None)) is not None:
        raise UnusableParameter(
            f"the parameter {parameter} is the text {text[:80]}, which PostgreSQL would read in the notation of a"
            " programming language, such as 0x1F or 1_000: give a number in decimal digits"
        )
