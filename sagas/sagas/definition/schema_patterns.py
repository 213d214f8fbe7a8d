"""Regular expressions of input schemas, in linear time."""

from __future__ import annotations

import re

from sagas.errors import UsageError
from sagas.expressions.re2_pattern import compile_pattern
from sagas.expressions.work_budget import charge

_PATTERN_LENGTH = 10_000


def matches_pattern(pattern: str, text: str) -> bool:
    """True if the pattern occurs in the text. Raises UsageError for a pattern that RE2 does not support."""
    try:
        compiled = compile_pattern(pattern)
    except ValueError as error:
        raise UsageError(f"the schema of the input has a pattern that RE2 does not support: {error}") from None
    charge(1 + (len(text) * compiled.programsize >> 11))
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
