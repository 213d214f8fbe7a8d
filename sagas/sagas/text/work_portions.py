"""Portions of work that counts no evaluation steps: reading a large value, comparing and copying it.

A thread that checks the input of a stranger rests between two portions, so that the rest of its process goes on. The
loops over the elements and fields of a value take them in portions here. Elsewhere, as in a workflow task, they rest
never, and cost no more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import TypeVar

PORTION = 2_000
"""Values between two rests. Loops take half a millisecond for so many numbers, and two for so many small lists."""

_BYTES_PER_VALUE = 256
"""Bytes that one call of a library reads in the time of a value."""

_Item = TypeVar("_Item")


class _Rests:
    __slots__ = ("_remaining", "_rest")

    def __init__(self, rest: Callable[[], None]) -> None:
        self._rest = rest
        self._remaining = PORTION

    def count(self, values: int) -> None:
        self._remaining -= values
        if self._remaining <= 0:
            self._rest()
            self._remaining = PORTION

    def portions(self, items: Iterable[_Item]) -> Iterator[_Item]:
        rest = iter(items)
        while portion := list(islice(rest, PORTION)):
            yield from portion
            self.count(len(portion))


_rests: ContextVar[_Rests | None] = ContextVar("work_portions", default=None)


@contextmanager
def resting(rest: Callable[[], None]) -> Iterator[None]:
    """A context whose work calls ``rest`` between two portions."""
    token = _rests.set(_Rests(rest))
    try:
        yield
    finally:
        _rests.reset(token)


def in_portions(items: Collection[_Item]) -> Iterable[_Item]:
    """The items of one list or object."""
    rests = _rests.get()
    if rests is None:
        return items
    if len(items) > PORTION:
        return rests.portions(items)
    rests.count(len(items))
    return items


def count_value() -> None:
    """Count one value of a loop that is not ours, such as that of a parser which calls a function for it."""
    rests = _rests.get()
    if rests is not None:
        rests.count(1)


def count_text(length: int) -> None:
    """Count a text that one call of a library has read or written, so that a rest follows a long one.

    During the call itself no other thread goes on: a megabyte takes 5 to 20 milliseconds.
    """
    rests = _rests.get()
    if rests is not None:
        rests.count(length // _BYTES_PER_VALUE)
