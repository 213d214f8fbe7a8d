"""The source of all randomness of a run: a sequence of bytes, so that a failing run shrinks to a short, simple one.

A zero always means the simplest choice (the first option), and an exhausted sequence gives zeros: faults end, and
the environment recovers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Option = TypeVar("Option")


class ChoiceSequence:
    """Reads choices from bytes, front to back."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def exhausted(self) -> bool:
        return self._at >= len(self._data)

    def byte(self) -> int:
        """The next byte, 0 after the end."""
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1]

    def below(self, limit: int) -> int:
        """A number from 0 to ``limit`` - 1; 0 on an exhausted sequence."""
        return self.byte() % limit if limit > 1 else 0

    def chance(self, percent: int) -> bool:
        """True in about ``percent`` of 100 cases; never on an exhausted sequence."""
        return self.byte() >= 256 - 256 * percent // 100

    def pick(self, options: Sequence[Option]) -> Option:
        """One of the options, the first on an exhausted sequence. Repeat an option to make it likelier."""
        return options[self.below(len(options))]
