"""Long sequences in portions: a database limits the parameters of a statement, and Temporal the length of a query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_portions(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in their order, ``size`` at a time; the last portion has the rest."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
