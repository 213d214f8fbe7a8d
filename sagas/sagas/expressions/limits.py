"""How much one expression may ask for, and the state of one evaluation that counts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from sagas.expressions.errors import LimitError

MAX_STEPS = 100_000
"""Steps of one evaluation: an iteration, an element looked at by a function, a kibibyte of text handled."""

MAX_SOURCE_LENGTH = 65_536
"""Characters of one expression."""

MAX_NESTING = 64
"""Parentheses, brackets and calls inside each other."""

MAX_DATA_DEPTH = 100
"""Levels of data that are compared, rendered or returned."""

MAX_TREE_DEPTH = 150
"""Levels of the parsed expression, where ``a + b + c`` has two."""

MAX_INTEGER_DIGITS = 4_000
"""Digits of an integer. Python refuses to write integers of more than 4,300 digits as JSON text."""

MAX_INTEGER_BITS = 13_287
"""The largest number of bits that always fits in :data:`MAX_INTEGER_DIGITS` digits."""

MAX_STRING_LENGTH = 1_048_576
"""Characters of one string that an expression makes."""

MAX_RESULT_VALUES = 1_000_000
"""Values (elements, fields) of one result."""

MAX_RESULT_CHARACTERS = 16 * MAX_STRING_LENGTH
"""Characters of all strings of one result."""

STEPS_PER_PATTERN = 100
CHARACTERS_PER_STEP = 1_024
NODES_PER_STEP = 16


class Evaluation:
    """One evaluation: the names it sees, the comprehension variables, the steps it has left."""

    __slots__ = ("context", "patterns", "slots", "steps_left")

    def __init__(self, context: Mapping[str, Any], slots: int) -> None:
        self.context = context
        self.slots: list[Any] = [None] * slots
        self.steps_left = MAX_STEPS
        self.patterns: set[str] | None = None

    def charge(self, steps: int) -> None:
        """Use up steps; raises LimitError when none are left."""
        self.steps_left -= steps
        if self.steps_left < 0:
            raise_too_many_steps()

    def charge_pattern(self, pattern: str) -> None:
        """Compiling costs much more than matching; counted once per pattern, so that a cache changes nothing."""
        if self.patterns is None:
            self.patterns = set()
        self.charge(1 if pattern in self.patterns else STEPS_PER_PATTERN)
        self.patterns.add(pattern)

    def charge_text(self, characters: int) -> None:
        self.charge(characters // CHARACTERS_PER_STEP)


def raise_too_many_steps(offset: int = -1) -> NoReturn:
    raise LimitError(f"the expression needs more than {MAX_STEPS:,} steps", offset)


def check_integer(value: int) -> int:
    """The integer itself; raises LimitError when it has too many digits."""
    if value.bit_length() > MAX_INTEGER_BITS:
        raise LimitError(f"an integer of more than {MAX_INTEGER_DIGITS:,} digits is refused")
    return value


def check_string_length(length: int) -> None:
    """Raises LimitError for a string longer than :data:`MAX_STRING_LENGTH`."""
    if length > MAX_STRING_LENGTH:
        raise LimitError("a string of more than 1 MiB is refused")
