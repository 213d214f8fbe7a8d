"""The calls of a condition that read the clock. Pure.

On PostgreSQL that is the time of the transaction; elsewhere that of each statement.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

_CLOCKS = frozenset(
    """
    now curdate curtime current_date current_time current_timestamp localtime localtimestamp utc_date utc_time
    utc_timestamp
    """.split()  # noqa: SIM905
)
_TIME_READERS = frozenset("unix_timestamp date time datetime julianday unixepoch strftime timediff".split())  # noqa: SIM905
"""Functions of given times, which SQLite and `unix_timestamp()` read from the clock without one."""

_NOW = ("now", "subsec", "subsecond")
"""Texts that are the clock for the functions of SQLite."""


def clock_of(tokens: Sequence[tuple[str, str]]) -> str | None:
    """The first function that reads the clock; None if there is none.

    Each token is its word in upper case, empty for what is quoted, and its text without quotes.
    """
    words = [word for word, _ in tokens]
    for at, word in enumerate(words):
        name, is_call = word.lower(), words[at + 1 : at + 2] == ["("]
        is_column = "." in words[max(at - 1, 0) : at] or "_" not in name
        if name in _CLOCKS and (is_call or not is_column):
            return name
        if name in _TIME_READERS and is_call and not _reads_given_time(name, tokens[at + 2 :]):
            return name
    return None


def clock_value(functions: Collection[str], parameters: Mapping[str, Any]) -> str | None:
    """The first value of a parameter that is the clock for one of these functions of SQLite; None if there is none."""
    if _TIME_READERS.isdisjoint(functions):
        return None
    texts = (value for value in parameters.values() if isinstance(value, str))
    return next((text for text in texts if text.strip().lower() in _NOW), None)


def _reads_given_time(name: str, tokens: Sequence[tuple[str, str]]) -> bool:
    """``tokens`` are those behind the parenthesis of the call. The first argument of `strftime` is the format."""
    depth, arguments = 1, 0
    for word, text in tokens:
        depth += (word == "(") - (word == ")")
        if depth == 0:
            break
        if word == "" and text.strip().lower() in _NOW:
            return False
        arguments += arguments == 0 or (depth == 1 and word == ",")
    return arguments >= (2 if name == "strftime" else 1)
