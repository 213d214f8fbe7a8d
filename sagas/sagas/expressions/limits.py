"""How much one expression may ask for, and the state of one evaluation that counts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from sagas.expressions.errors import LimitError

STEPS = 100_000
"""Steps of one evaluation: an iteration, an element looked at by a function, a kibibyte of text handled."""

SOURCE_LENGTH = 65_536
"""Characters of one expression."""

NESTING = 64
"""Parentheses, brackets and calls inside each other."""

DATA_DEPTH = 100
"""Levels of data that are compared, rendered or returned."""

TREE_DEPTH = 150
"""Levels of the parsed expression, where ``a + b + c`` has two."""

INTEGER_DIGITS = 4_000
"""Digits of an integer. Python refuses to write integers of more than 4,300 digits as JSON text."""

INTEGER_BITS = 13_287
"""The largest number of bits that always fits in :data:`INTEGER_DIGITS` digits."""

STRING_LENGTH = 1_048_576
"""Characters of one string that an expression makes."""

RESULT_VALUES = 1_000_000
"""Values (elements, fields) of one result."""

RESULT_TEXT = 16 * STRING_LENGTH
"""Characters of all strings of one result."""

PATTERN_STEPS = 100
TEXT_PER_STEP = 1_024
PARTS_PER_STEP = 16


class Run:
    """One evaluation: the names it sees, the comprehension variables, the steps it has left."""

    __slots__ = ("context", "left", "patterns", "slots")

    def __init__(self, context: Mapping[str, Any], slots: int) -> None:
        self.context = context
        self.slots: list[Any] = [None] * slots
        self.left = STEPS
        self.patterns: set[str] | None = None

    def charge(self, steps: int) -> None:
        """Use up steps; raises LimitError when none are left."""
        self.left -= steps
        if self.left < 0:
            too_many_steps()

    def charge_pattern(self, pattern: str) -> None:
        """Compiling costs much more than matching; counted once per pattern, so that a cache changes nothing."""
        if self.patterns is None:
            self.patterns = set()
        self.charge(1 if pattern in self.patterns else PATTERN_STEPS)
        self.patterns.add(pattern)

    def charge_text(self, characters: int) -> None:
        self.charge(characters // TEXT_PER_STEP)


def too_many_steps(offset: int = -1) -> NoReturn:
    raise LimitError(f"the expression needs more than {STEPS:,} steps", offset)


def checked_integer(value: int) -> int:
    """The integer itself; raises LimitError when it has too many digits."""
    if value.bit_length() > INTEGER_BITS:
        raise LimitError(f"an integer of more than {INTEGER_DIGITS:,} digits is refused")
    return value


def checked_length(length: int) -> None:
    """Raises LimitError for a string longer than :data:`STRING_LENGTH`."""
    if length > STRING_LENGTH:
        raise LimitError("a string of more than 1 MiB is refused")
