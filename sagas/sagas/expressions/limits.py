"""Limits of expressions, and the Evaluation that counts the work of one evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from sagas.expressions.errors import LimitError
from sagas.input_limits import MAX_INTEGER_DIGITS
from sagas.text.exact_numbers import has_too_many_digits

MAX_STEPS = 100_000
"""Steps of one evaluation: an iteration, an element that a function reads, 1 KiB of text, or as much other work. A step
takes at most about five microseconds."""

MAX_SOURCE_LENGTH = 65_536
"""Characters of one expression."""

MAX_NESTING = 64
"""Depth of nested parentheses, brackets and calls."""

MAX_DATA_DEPTH = 100
"""Depth of data that is compared, rendered or returned."""

MAX_TREE_DEPTH = 150
"""Depth of the syntax tree. ``a + b + c`` has three levels, because operators associate to the left."""

MAX_STRING_LENGTH = 1_048_576
"""Characters of one string that an expression builds."""

MAX_RESULT_CHARACTERS = 16 * MAX_STRING_LENGTH
"""Characters of all strings of one result together."""

STEPS_PER_PATTERN = 100
STEPS_PER_CLASS = 20
"""Steps of a class of Unicode such as ``\\pL`` in a pattern: it is hundreds of ranges, also without an instruction."""
CHARACTERS_PER_STEP = 1_024
NODES_PER_STEP = 16
VALUES_PER_STEP = 3
"""Values of a result that are copied, and later written as JSON, in the time of a step."""
INSTRUCTIONS_PER_STEP = 4
MATCH_WORK_SHIFT = 9
"""A step is 512 visits of an instruction, about a microsecond."""

DIGIT_WORK_SHIFT = 20
"""A step is the product of two integers of 1,024 bits."""

BITS_PER_DIGIT = 10 / 3

WORK_PER_STEP = 16
"""Units of work in a step. A unit is about the time that a node of the syntax tree takes."""

ERROR_WORK = 48
"""The work of an error that the expression goes on without, as in ``a || b`` and ``default``."""

REFUSED_PATTERN_WORK = 2_000 * WORK_PER_STEP
"""The work of a regular expression that RE2 refuses, perhaps only after it has filled the memory that it may use."""

SEARCHED_CHARACTERS = 30_000
"""Positions of a text at which Python may compare a whole part; in a longer text it searches in linear time."""

MAX_VALUE_STEPS = 200_000
"""Evaluation steps of all expressions of one value together, for example of the arguments of one call."""

MAX_RESULT_VALUES = VALUES_PER_STEP * MAX_VALUE_STEPS
"""Values (elements, fields) of all results of one value together."""


class WorkMeter:
    """Adds up the steps and the work of several evaluations. Results count too, because copying them takes time."""

    __slots__ = ("_steps_before", "_work_before", "steps", "work")

    def __init__(self) -> None:
        self.steps = self._steps_before = 0
        self.work = self._work_before = 0

    def begin_value(self) -> None:
        """From now on the expressions of one value are evaluated."""
        self._steps_before, self._work_before = self.steps, self.work

    def exceeds(self, limit: int) -> bool:
        """Return whether all evaluations together have taken more steps than this."""
        return self.steps + self.work // WORK_PER_STEP > limit

    def check(self) -> None:
        """Raise LimitError if the current value has taken too many steps."""
        if self.steps_left < 0:
            raise LimitError(f"the expressions of one value need more than {MAX_VALUE_STEPS:,} evaluation steps")

    @property
    def steps_left(self) -> int:
        """The steps that the current value may still take."""
        work = self.work - self._work_before
        return MAX_VALUE_STEPS - (self.steps - self._steps_before) - work // WORK_PER_STEP


class Evaluation:
    """The state of one evaluation: its context, comprehension variables and remaining steps.

    ``work`` is what it has done in units of :data:`WORK_PER_STEP`, in addition to the steps.
    """

    __slots__ = ("context", "patterns", "slots", "steps_left", "work")

    def __init__(self, context: Mapping[str, Any], slots: int, steps: int = MAX_STEPS) -> None:
        self.context = context
        self.work = 0
        self.slots: list[Any] = [None] * slots
        self.steps_left = steps
        self.patterns: set[str] | None = None

    def charge(self, steps: int) -> None:
        """Consume steps; raises LimitError when none are left."""
        self.steps_left -= steps
        if self.steps_left < 0:
            raise_too_many_steps()

    def charge_work(self, units: int) -> None:
        """Consume units of work; raises LimitError when they and the steps together are too many."""
        self.work += units
        if self.work > self.steps_left * WORK_PER_STEP:
            raise_too_many_steps()

    def charge_search(self, characters: int, part: int) -> None:
        """Charge for the search of a part in a text of this length: Python compares up to the whole part at each
        position of a text of up to :data:`SEARCHED_CHARACTERS`, and near the end of a longer one."""
        positions = min(max(characters - part + 1, 0), SEARCHED_CHARACTERS)
        self.charge_work(positions * part >> 8)

    def charge_order(self, characters: int, values: int) -> None:
        """Charge for the characters that a sort of so many strings compares, all of them for each comparison."""
        self.charge_work(characters * values.bit_length() >> 6)

    def charge_pattern(self, pattern: str) -> None:
        """Charge a regular expression. Compiling costs far more than matching, and is charged once per evaluation and
        pattern, so that the result does not depend on the process-wide cache."""
        if self.patterns is None:
            self.patterns = set()
        classes = pattern.count("\\p") + pattern.count("\\P")
        self.charge(1 if pattern in self.patterns else STEPS_PER_PATTERN + STEPS_PER_CLASS * classes)

    def charge_match(self, pattern: str, instructions: int, characters: int) -> None:
        """Charge a search. RE2 visits each instruction of its program for each character in the worst case."""
        assert self.patterns is not None
        if pattern not in self.patterns:
            self.patterns.add(pattern)
            self.charge(instructions // INSTRUCTIONS_PER_STEP)
        self.charge(characters // 64 + (characters * instructions >> MATCH_WORK_SHIFT))

    def charge_digits(self, left_bits: int, right_bits: int) -> None:
        """Charge for a multiplication or division, whose work grows with the product of both sizes.

        For the conversion of an integer to or from decimal digits, both are its size.
        """
        product = left_bits * right_bits
        self.charge(product >> DIGIT_WORK_SHIFT)
        self.charge_work((product & (1 << DIGIT_WORK_SHIFT) - 1) * WORK_PER_STEP >> DIGIT_WORK_SHIFT)

    def charge_text(self, characters: int) -> None:
        """Charge for processing a string of this length; raises LimitError when no steps are left."""
        self.charge(characters // CHARACTERS_PER_STEP)


def raise_too_many_steps() -> NoReturn:
    raise LimitError(f"the expression needs more than {MAX_STEPS:,} evaluation steps")


def check_integer(value: int) -> int:
    """Return the integer; raises LimitError if it has too many digits."""
    if has_too_many_digits(value):
        raise LimitError(f"an integer of more than {MAX_INTEGER_DIGITS:,} digits is refused")
    return value


def check_string_length(length: int) -> None:
    """Raise LimitError for a string longer than :data:`MAX_STRING_LENGTH`."""
    if length > MAX_STRING_LENGTH:
        raise LimitError("a string of more than 1 MiB is refused")
