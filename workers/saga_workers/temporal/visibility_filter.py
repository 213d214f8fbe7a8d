"""Conditions on values in Temporal's list filters.

A Temporal server whose visibility store is a SQL database escapes each value once more after it has parsed it. So no
literal stands for a value with a backslash, a double quote or a control character. A condition on such a value selects
more runs than it should, and the reader of the list compares the value itself.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from sagas.errors import UsageError
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten
from sagas.text.sql_names import sql_text

CLOCKS_DIFFER = timedelta(minutes=1)
"""The most by which the clock of this machine is believed to be behind that of the server."""

_NOT_IN_LITERALS = re.compile('[\\\\"\x00-\x1f\x7f]')

LITERAL = r"'((?:[^'\\]|\\.|'')*)'|\"((?:[^\"\\]|\\.|\"\")*)\""
"""A pattern for the literals of a filter, with a group for the text of each kind; see :func:`literal_value`."""


def has_literal(text: str) -> bool:
    return _NOT_IN_LITERALS.search(text) is None


def quote(text: str) -> str:
    """The literal of a text in a list filter. Raises ValueError if it has none."""
    if not has_literal(text):
        raise ValueError(f"Temporal has no literal for {text!r}")
    return sql_text(text)


def literal_value(match: re.Match[str], first: int = 1) -> str:
    """The text that a match of :data:`LITERAL` stands for; ``first`` is the number of its first group."""
    single, double = match.group(first), match.group(first + 1)
    written, mark = (double, '"') if single is None else (single, "'")
    return re.sub(rf"\\(.)|{mark}{mark}", lambda part: part.group(1) or mark, written, flags=re.DOTALL)


def time_literal(at: datetime | float) -> str:
    """The literal of a time, which may be in seconds since the epoch."""
    time = at if isinstance(at, datetime) else datetime.fromtimestamp(at, UTC)
    return f"'{time.isoformat()}'"


def keyword_condition(field: str, value: str) -> str:
    """A condition that holds for all runs with this value, and for no others if the value has a literal."""
    if has_literal(value):
        return f"{field} = {quote(value)}"
    return prefix_condition(field, value) or f"{field} IS NOT NULL"


def begun_condition() -> str:
    """A condition that holds for all runs whose first task is due: a delayed start may claim any state, which that task
    would delete.
    """
    return f"ExecutionTime <= {time_literal(datetime.now(UTC) + CLOCKS_DIFFER)}"


def prefix_condition(field: str, start: str) -> str | None:
    """A condition that holds for all runs whose value begins so, and for more if ``start`` has no literal; None if it
    would hold for all of them.
    """
    literal = _NOT_IN_LITERALS.split(start, maxsplit=1)[0]
    return f"{field} STARTS_WITH {quote(literal)}" if literal else None


def list_condition(field: str, value: str) -> str:
    """A condition that holds for all runs with this value in a list, and for more if the value has no literal."""
    return f"{field} = {quote(value)}" if has_literal(value) else f"{field} IS NOT NULL"


def require_literals(where: str) -> None:
    """Raises UsageError if a filter compares a value for which Temporal has no literal: nothing would match."""
    for match in re.finditer(LITERAL, where, re.DOTALL):
        written = match.group(0)[1:-1]
        if not has_literal(written.replace("\\'", "'")):
            raise UsageError(
                f"Temporal cannot compare {printable_line(shorten(written))}: a value in a filter must not contain "
                'a backslash, " or control characters',
                help="name such a saga by its id, or select it by --label; or compare the part before the character "
                "with STARTS_WITH",
            )
