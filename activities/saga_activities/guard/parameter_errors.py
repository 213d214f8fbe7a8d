"""Errors of PostgreSQL about a parameter, in the author's names: the server knows only numbers such as ``$1``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sagas.sql_text.parsed import ParsedSql

_NUMBER = re.compile(r"\$([0-9]+)\b")

_PARAMETER = re.compile(r"(?<![\w:]):\w+")

_TYPED_LITERALS = ("date", "time", "timetz", "timestamp", "timestamptz", "interval")
"""Types that may stand before a string, and before no parameter."""

_TEXT_AND_NUMBER = re.compile(
    r"(?:text|character varying|character) \S+ {0}|{0} \S+ (?:text|character varying|character)\b".format(
        "(?:smallint|integer|bigint|numeric|real|double precision)"
    )
)
"""Operands for which PostgreSQL has no operator: it makes neither a number of text nor text of a number."""

_SENT = re.compile(r"%%|%\((\w+)\)s")
_DATE_SETTING = re.compile(r"\bdatestyle\b", re.IGNORECASE)

SYNTAX_ERROR, INCONSISTENT, UNTYPED = "42601", "42P08", "42P18"
AMBIGUOUS, UNDEFINED = "42725", "42883"
OF_PARAMETERS = (SYNTAX_ERROR, INCONSISTENT, UNTYPED, AMBIGUOUS, UNDEFINED)
"""The SQLSTATEs of errors whose text has the number of a parameter, or that its type may cause."""


def with_names(message: str, names: Sequence[str]) -> str:
    """The message with ``:name`` for each number of a parameter. ``names`` are in the order of their numbers."""
    return _NUMBER.sub(lambda number: _name(number, names), message)


def _name(number: re.Match[str], names: Sequence[str]) -> str:
    at = int(number[1]) - 1
    return f":{names[at]}" if 0 <= at < len(names) else number[0]


def what_to_write(sqlstate: str, message: str, statement: ParsedSql) -> str | None:
    """The advice for an error about the place of a parameter; None for any other error.

    ``message`` has names.
    """
    first = next(iter(statement.parameters), None)
    if first is not None and sqlstate == AMBIGUOUS:
        return f"null and text are sent without a type: cast the parameters, such as `:{first}::numeric`"
    if first is not None and sqlstate == UNDEFINED and _TEXT_AND_NUMBER.search(message):
        return (
            "a number and text are compared: cast the parameter to the type of the other operand, such as"
            f" `:{first}::text` or `:{first}::numeric`"
        )
    if first is not None and sqlstate == UNDEFINED and "bigint" in message:
        return f"an integer is sent as bigint: cast it, such as `:{first}::int`, or correct the statement"
    about = _PARAMETER.search(message) if sqlstate in (SYNTAX_ERROR, INCONSISTENT, UNTYPED) else None
    if about is None:
        return None
    if sqlstate == INCONSISTENT:
        return f"cast each place of `{about[0]}` to the type that it has there, such as `{about[0]}::jsonb`"
    if sqlstate == UNTYPED:
        return f"cast it to the type of its value, such as `{about[0]}::text`"
    tokens = list(statement.significant())
    words = [statement.text_of(token).lower() for token in tokens]
    for before, token, word in zip(["", *words], tokens, words, strict=False):
        if token.kind == "parameter" and word == about[0].lower() and before in _TYPED_LITERALS:
            return f"write `{about[0]}::{before}` for `{before} {about[0]}`"
    return "a parameter is a value: write names of tables and columns, and keywords, into the statement itself"


def sent_names(query: str, statement: ParsedSql) -> list[str]:
    """The author's parameters in the order of their numbers, of a text in psycopg's style that the engine has sent.

    A parameter with several forms is sent as several, of which the further ones have names of the engine.
    """
    sent = dict.fromkeys(match[1] for match in _SENT.finditer(query) if match[1])
    return [name if name in statement.parameters else re.sub(r"_\d+$", "", name) for name in sent]


def own_hint(hint: str) -> str:
    """The server's hint, or what to write where the engine fixes the setting that it speaks of."""
    return "write the date as year-month-day, such as 2026-12-29" if _DATE_SETTING.search(hint) else hint
