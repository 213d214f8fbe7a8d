"""Regular expressions of input schemas, in linear time, and the budget that all work of a validation shares."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sagas.errors import UsageError
from sagas.expressions.re2_pattern import compile_pattern

MAX_STEPS = 400_000
"""Of one validation: keywords that are applied to values, and what they touch beyond. They take one to two seconds of
CPU."""

_PATTERN_LENGTH = 10_000

_steps: ContextVar[list[int]] = ContextVar("steps")


class TooComplex(UsageError):
    """The input is too large for the schema: make it smaller, or simplify the schema under `input`."""


def charge(steps: int = 1) -> None:
    """Count work of the current validation; raises TooComplex when it is too much."""
    counter = _steps.get(None)
    if counter is not None:
        counter[0] -= steps
        if counter[0] < 0:
            raise TooComplex


def is_bounded() -> bool:
    """True within :func:`bounded`."""
    return _steps.get(None) is not None


@contextmanager
def bounded(steps: int = MAX_STEPS) -> Iterator[list[int]]:
    """A context in which all validation counts as one, which gives the steps that are left. An outer one goes on, and
    its steps are shared.
    """
    if (outer := _steps.get(None)) is not None:
        yield outer
        return
    left = [steps]
    token = _steps.set(left)
    try:
        yield left
    finally:
        _steps.reset(token)


def matches_pattern(pattern: str, text: str) -> bool:
    """True if the pattern occurs in the text. Raises UsageError for a pattern that RE2 does not support."""
    try:
        compiled = compile_pattern(pattern)
    except ValueError as error:
        raise UsageError(f"the schema of the input has a pattern that RE2 does not support: {error}") from None
    charge(len(text) * compiled.programsize >> 11)
    try:
        return compiled.search(text) is not None
    except UnicodeEncodeError:
        return False


def may_match(pattern: str, text: str) -> bool:
    """True if the pattern occurs in the text, and for a pattern that RE2 does not support, which `validate` reports."""
    try:
        return matches_pattern(pattern, text)
    except UsageError:
        return True


def pattern_problem(pattern: str) -> str | None:
    """Why RE2 does not read the pattern; None if it does."""
    if len(pattern) > _PATTERN_LENGTH:
        return f"it has more than {_PATTERN_LENGTH:,} characters"
    try:
        compile_pattern(pattern)
    except ValueError as error:
        return str(error)
    return None


def is_other_dialect(pattern: str) -> bool:
    """True for a pattern that engines with backtracking read."""
    try:
        re.compile(pattern[:_PATTERN_LENGTH])
    except (re.error, RecursionError, OverflowError):
        return False
    return True
