"""Validates the SQL of guarded steps: single statements that neither end the transaction nor change the schema.

The guard relies on one local transaction. A COMMIT inside it would commit half an effect, and MySQL commits
implicitly on every DDL statement. So the leading keyword must be on an allowlist; a small scanner finds it behind
comments, CTEs and quoted text, which a search for keywords would confuse.
"""

from __future__ import annotations

import re
from functools import lru_cache

from sagas.errors import SagaError

_ALLOWED = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE", "VALUES", "WITH"})
_ALLOWED_IN_POSTGRESQL = frozenset({"CALL", "NOTIFY", "LOCK"})
"""In a transaction block PostgreSQL refuses a procedure that commits, and its LOCK does not commit implicitly."""

_TRANSACTION_KEYWORDS = frozenset(
    "BEGIN START COMMIT END ROLLBACK ABORT SAVEPOINT RELEASE PREPARE EXECUTE SET RESET XA UNLOCK".split()  # noqa: SIM905
)

_TOKEN = re.compile(
    r"""
    (?P<skip>\s+|--[^\n]*)
  | (?P<hash>\#[^\n]*)
  | (?P<comment>/\*)
  | (?P<dollar>\$(?:[A-Za-z_]\w*)?\$)
  | (?P<escape>\b[eE]')
  | (?P<quote>['"`])
  | (?P<word>[A-Za-z_]\w*)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


class RefusedStatement(SagaError):
    """A statement that must not run inside a guarded step."""


@lru_cache(maxsize=2048)
def validate_statement(statement: str, dialect: str) -> str:
    """``statement`` with colons in literals and comments escaped, so that only named ``:parameters`` remain.

    ``dialect`` is SQLAlchemy's dialect name. Raises :class:`RefusedStatement`.
    """
    keywords, text = _scan(statement, dialect)
    if not keywords:
        raise RefusedStatement("an empty statement: write one SQL statement")
    allowed = _ALLOWED | _ALLOWED_IN_POSTGRESQL if dialect == "postgresql" else _ALLOWED
    first = keywords[0]
    if first not in allowed:
        kind = (
            "controls the transaction" if first in _TRANSACTION_KEYWORDS else "is neither a query nor a change of rows"
        )
        raise RefusedStatement(
            f"{first} is refused in a guarded step: it {kind}",
            help="a step is one transaction of the guard; change the schema with a migration tool",
        )
    main = first if first != "WITH" else next((keyword for keyword in keywords[1:] if keyword in _ALLOWED), first)
    if main == "SELECT" and "INTO" in keywords:
        raise RefusedStatement("SELECT … INTO is refused in a guarded step: it creates a table or a file")
    return text


_PARAMETER = re.compile(r"(?<![:\w\\]):([A-Za-z_]\w*)(?!:)")


def split_parameters(text: str, dialect: str) -> list[str]:
    """Alternately SQL and the name of a ``:parameter``; colons in literals, comments and casts stay as they are.

    Raises :class:`RefusedStatement`.
    """
    pieces = _PARAMETER.split(_scan(text, dialect)[1])
    return [piece if at % 2 else piece.replace("\\:", ":") for at, piece in enumerate(pieces)]


def _scan(statement: str, dialect: str) -> tuple[list[str], str]:
    """The unquoted words outside parentheses in upper case, and the statement with escaped colons in literals."""
    mysql = dialect in ("mysql", "mariadb")
    keywords: list[str] = []
    pieces: list[str] = []
    depth = 0
    ended = False
    position = 0
    while position < len(statement):
        token = _TOKEN.match(statement, position)
        assert token is not None  # the last alternative matches any character
        kind, start = token.lastgroup, position
        position = token.end()
        literal = True
        if kind == "skip" or (kind == "hash" and mysql):
            if statement.startswith("--", start) and mysql and not re.match(r"--(\s|$)", statement[start:]):
                position, literal = start + 1, False  # MySQL comments need a space after the dashes: arithmetic
        elif kind == "comment":
            if re.match(r"/\*(M?!)", statement[start:]) and mysql:
                raise RefusedStatement("an executable comment (/*! … */) is refused in a guarded step")
            position = _comment_end(statement, start, nested=dialect == "postgresql")
        elif kind == "dollar" and dialect == "postgresql":
            position = _find_end(statement, token.group(), position, "a dollar-quoted string")
        elif kind in ("quote", "escape"):
            quote = token.group()[-1]
            backslash = kind == "escape" or (mysql and quote != "`")
            position = _quote_end(statement, position, quote, backslash)
        elif kind == "hash":
            position, literal = start + 1, False  # an operator in other dialects
        else:
            literal = False
        piece = statement[start:position]
        pieces.append(piece.replace(":", "\\:") if literal else piece)
        if kind in ("skip", "comment") and literal:
            continue
        if ended:
            raise RefusedStatement("several statements in one string are refused", help="write a list of statements")
        if piece == ";":
            ended = bool(keywords)
        elif piece == "(":
            depth += 1
        elif piece == ")":
            depth -= 1
        elif kind == "word" and depth == 0:
            keywords.append(piece.upper())
    text = "".join(pieces).rstrip()
    return keywords, text[:-1] if ended and text.endswith(";") else text


def _comment_end(statement: str, start: int, *, nested: bool) -> int:
    depth, position = 1, start + 2
    while depth:
        closing = _find_end(statement, "*/", position, "a comment")
        opening = statement.find("/*", position) if nested else -1
        if 0 <= opening < closing - 2:
            depth, position = depth + 1, opening + 2
        else:
            depth, position = depth - 1, closing
    return position


def _quote_end(statement: str, position: int, quote: str, backslash: bool) -> int:
    while True:
        end = _find_end(statement, quote, position, "a quoted string")
        if backslash:
            before = statement[position : end - 1]
            if (len(before) - len(before.rstrip("\\"))) % 2:
                position = end
                continue
        if statement.startswith(quote, end):
            position = end + 1
            continue
        return end


def _find_end(statement: str, what: str, position: int, name: str) -> int:
    end = statement.find(what, position)
    if end < 0:
        raise RefusedStatement(f"{name} in the statement is not closed")
    return end + len(what)
