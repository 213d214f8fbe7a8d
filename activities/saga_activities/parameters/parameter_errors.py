"""Errors of PostgreSQL about a parameter, in the author's names: the server knows only numbers such as ``$1``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.tokens import SqlToken

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

_VERSUS = re.compile(r"(\w[\w ]*(?:\[\])?) versus (\w[\w ]*(?:\[\])?)")
"""The types of the places of one parameter."""

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
    if sqlstate in (SYNTAX_ERROR, UNDEFINED) and _has_question_mark(statement):
        return "a parameter has a name: write `:name` for `?`"
    first = next(iter(statement.parameters), None)
    if first is not None and sqlstate == AMBIGUOUS:
        return f"null and text are sent without a type: cast the parameters, such as `:{first}::numeric`"
    if first is not None and sqlstate == UNDEFINED and _TEXT_AND_NUMBER.search(message):
        return (
            "a number and text are compared: cast the parameter to the type of the other operand, such as"
            f" `:{first}::text` or `:{first}::numeric`"
        )
    if first is not None and sqlstate == UNDEFINED and "bigint" in message:
        return _of_integer(message, statement)
    about = _PARAMETER.search(message) if sqlstate in (SYNTAX_ERROR, INCONSISTENT, UNTYPED) else None
    if about is None:
        return None
    if sqlstate == INCONSISTENT:
        types = _VERSUS.search(message[:2000])
        example = "" if types is None else f", such as `{about[0]}::{types[1]}` and `{about[0]}::{types[2]}`"
        return f"cast each place of `{about[0]}` to the type that it has there{example}"
    if sqlstate == UNTYPED:
        return f"cast it to the type of its value, such as `{about[0]}::text`"
    tokens = list(statement.significant())
    words = [statement.text_of(token).lower() for token in tokens]
    for before, token, word in zip(["", *words], tokens, words, strict=False):
        if token.kind == "parameter" and word == about[0].lower() and before in _TYPED_LITERALS:
            return f"write `{about[0]}::{before}` for `{before} {about[0]}`"
    return "a parameter is a value: write names of tables and columns, and keywords, into the statement itself"


def _has_question_mark(statement: ParsedSql) -> bool:
    """Return whether a `?` stands where an operand is expected; after one, it is an operator of jsonb."""
    words = [statement.text_of(token).lower() for token in statement.significant()]
    return any(
        word == "?" and before in ("=", "<", ">", "(", ",", "limit", "offset", "like")
        for before, word in pairwise(words)
    )


_FUNCTION = re.compile(r"function (?:\w+\.)?(\w+)\((.*?)\) does not exist")
_OPERATOR = re.compile(r"operator does not exist: (.*?) ([^\w\s]+) (.*?)(?:;|$)")


def _of_integer(message: str, statement: ParsedSql) -> str:
    """The advice about an integer for which there is no function or operator, with the cast at its parameter."""
    tokens = list(statement.significant())
    words = [statement.text_of(token) for token in tokens]
    parts: list[tuple[int, int]] = []
    if (function := _FUNCTION.search(message)) is not None:
        types = function[2].split(", ")
        for at, word in enumerate(words[:-1]):
            if word.lower() == function[1].lower() and words[at + 1] == "(":
                arguments = _arguments(tokens, words, at + 2)
                parts += [part for part, type in zip(arguments, types, strict=False) if type == "bigint"]
    elif (operator := _OPERATOR.search(message)) is not None:
        before, name, after = operator.groups()
        places = [at for at, word in enumerate(words) if word == name]
        parts += [(at + 1, len(words)) for at in places if after == "bigint"]
        parts += [(at - 1, -1) for at in places if before == "bigint"]
    inside = (words[at] for begin, end in parts for at in range(begin, end, 1 if end > begin else -1))
    name = next((word for word in inside if word in {f":{each}" for each in statement.parameters}), None)
    where = f"cast it where it stands, as `{name}::int`" if name else "cast the operand with `::int`"
    return f"an integer is sent as bigint: {where}, or correct the statement"


def _arguments(tokens: Sequence[SqlToken], words: Sequence[str], begin: int) -> list[tuple[int, int]]:
    """The first and the last index plus one of each argument of a call whose first token is ``begin``."""
    arguments, depth = [], 0
    for at in range(begin, len(tokens)):
        if depth == 0 and (words[at] in (",", "from", "for") or tokens[at].kind == "close"):
            arguments.append((begin, at))
            begin = at + 1
        if tokens[at].kind == "close" and depth == 0:
            break
        depth += (tokens[at].kind == "open") - (tokens[at].kind == "close")
    return arguments


def sent_names(query: str, statement: ParsedSql) -> list[str]:
    """The author's parameters in the order of their numbers, of text in psycopg's style that the engine has sent.

    A parameter with several forms is sent as several, of which the further ones have names of the engine.
    """
    sent = dict.fromkeys(match[1] for match in _SENT.finditer(query) if match[1])
    return [name if name in statement.parameters else re.sub(r"_\d+$", "", name) for name in sent]


def own_hint(hint: str) -> str:
    """The server's hint, or what to write where the engine fixes the setting that it speaks of."""
    return "write the date as year-month-day, such as 2026-12-29" if _DATE_SETTING.search(hint) else hint
