"""Splits SQL into the tokens that a database sees.

Sources: PostgreSQL's ``scan.l``, ``sql_lex.cc`` of MySQL and MariaDB, SQLite's ``tokenize.c``, Spark's
``SqlBaseLexer.g4``. What they disagree about is in the patterns of each dialect and in :class:`_Rules`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from sagas.errors import UsageError
from sagas.sql_text.dialects import NAMES
from sagas.text.shortening import shorten

TokenKind = Literal[
    "space", "line_comment", "comment", "string", "name", "word", "number", "parameter", "placeholder", "cast", "end",
    "open", "close", "operator", "executable",
]  # fmt: skip
"""``name`` is a quoted identifier, ``parameter`` our ``:name``, ``placeholder`` one of the driver's or the database's
own (``?``, ``$1``), ``end`` a semicolon, ``executable`` a comment that MySQL may run."""

ENDS_COMMENTS_AT_LINE_FEEDS = ("mysql", "mariadb", "sqlite")
"""The dialects in which a carriage return does not end a line comment; it does in PostgreSQL and Spark."""

INSIGNIFICANT: tuple[TokenKind, ...] = ("space", "line_comment", "comment")


class SqlToken(NamedTuple):
    """A part of the text from ``start`` to before ``end``."""

    kind: TokenKind
    start: int
    end: int


class RefusedStatement(UsageError):
    """A statement that must not run. ``offset`` is the index of the character that is at fault."""

    def __init__(self, message: str, *, help: str | None = None, offset: int = 0) -> None:
        super().__init__(message, help=help)
        self.offset = offset

    def __str__(self) -> str:
        """The message with its help: in an outcome there is no other place for it."""
        return f"{self.message}; {self.help}" if self.help else self.message


class UnreadableSql(RefusedStatement):
    """A text that the database cannot split into tokens, or reads otherwise than it looks."""


_HIGH = "\x80-\U0010ffff"  # every database takes these characters for letters
_WORD = rf"[A-Za-z_{_HIGH}][A-Za-z0-9_{_HIGH}]*"
_SHARED = rf"""
  | (?P<cast>::)
  | (?P<parameter>:{_WORD})
  | (?P<assign>:=)
  | (?P<end>;)
  | (?P<open>[(\[])
  | (?P<close>[)\]])
  | (?P<other>.)
"""
_NUMBER = r"(?P<number>[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)"

_POSTGRESQL = rf"""
    (?P<space>[ \t\n\r\f\v]+)
  | (?P<line_comment>--[^\n\r]*)
  | (?P<comment>/\*)
  | (?P<dollar>\$(?:{_WORD})?\$)
  | (?P<placeholder>\$[0-9]+)
  | (?P<escaped>[eE]')
  | (?P<string>(?:[nNbBxX]|[uU]&)?')
  | (?P<name>(?:[uU]&)?")
  | (?P<word>[A-Za-z_{_HIGH}][A-Za-z0-9_${_HIGH}]*)
  | {_NUMBER}
"""
_MYSQL = rf"""
    (?P<space>[ \t\n\r\f\v]+)
  | (?P<line_comment>\#[^\n]*|--(?=[\x00-\x20\x7f]|\Z)[^\n]*)
  | (?P<executable>/\*M?!)
  | (?P<comment>/\*)
  | (?P<escaped>['"])
  | (?P<name>`)
  | (?P<placeholder>\?)
  | (?P<word>[0-9A-Za-z_${_HIGH}]+)
"""
_SQLITE = rf"""
    (?P<space>[ \t\n\r\f]+)
  | (?P<line_comment>--[^\n]*)
  | (?P<comment>/\*)
  | (?P<string>')
  | (?P<name>["`])
  | (?P<bracketed>\[)
  | (?P<placeholder>\?[0-9]*|[@$\#][0-9A-Za-z_${_HIGH}]+|:[0-9][0-9A-Za-z_${_HIGH}]*)
  | (?P<word>[A-Za-z_{_HIGH}][A-Za-z0-9_${_HIGH}]*)
  | {_NUMBER}
"""
_SPARK = rf"""
    (?P<space>[ \t\n\r\f\v]+)
  | (?P<line_comment>--(?:\\\n|[^\n\r])*)
  | (?P<comment>/\*)
  | (?P<dollar>\$[A-Za-z]*\$)
  | (?P<raw>[rR]['"])
  | (?P<escaped>['"])
  | (?P<name>`)
  | (?P<placeholder>\?)
  | (?P<word>[A-Za-z0-9_{_HIGH}]+)
"""


@dataclass(frozen=True)
class _Rules:
    """The rules by which one dialect splits text. ``own``: its tokens, before those that all dialects share.

    ``nested``: comments contain comments. ``escapes``: a backslash escapes the next character in the strings of
    the group ``escaped``.
    ``colons``: the language has a colon of its own after a value (``a[lo:hi]``, ``struct<a:int>``), so a colon directly
    after one begins no parameter.
    """

    own: str
    nested: bool = False
    escapes: bool = False
    colons: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compiled at the first use, because a project has few dialects."""
        return re.compile(self.own + _SHARED, re.VERBOSE | re.DOTALL)


_MYSQL_RULES = _Rules(_MYSQL, escapes=True)
_RULES = {
    "postgresql": _Rules(_POSTGRESQL, nested=True, escapes=True, colons=True),
    "mysql": _MYSQL_RULES,
    "mariadb": _MYSQL_RULES,
    "sqlite": _Rules(_SQLITE),
    "spark": _Rules(_SPARK, nested=True, escapes=True, colons=True),
}

_ENDS_VALUE: tuple[TokenKind, ...] = ("word", "number", "string", "name", "parameter", "close")

_CONTINUES = re.compile(r"(?:[ \t\f\v]|--[^\n\r]*)*[\n\r](?:[ \t\n\r\f\v]+|--[^\n\r]*[\n\r])*'")
"""The continuation of a string of PostgreSQL in another line; only the end of `E'…'` depends on it."""

_KINDS: dict[str, TokenKind] = {
    "space": "space", "line_comment": "line_comment", "word": "word", "number": "number", "placeholder": "placeholder",
    "cast": "cast", "end": "end", "open": "open", "close": "close", "assign": "operator", "other": "operator",
}  # fmt: skip
"""Tokens that end where their pattern ends."""


def split_tokens(text: str, dialect: str) -> tuple[SqlToken, ...]:
    """The tokens of ``text``, without gaps. Raises :class:`UnreadableSql`.

    The engine's sessions run without ``ANSI_QUOTES`` and ``NO_BACKSLASH_ESCAPES``, and with
    ``standard_conforming_strings``.
    """
    return _Scanner(text, dialect).tokens()


class _Scanner:
    def __init__(self, text: str, dialect: str) -> None:
        self._text = text
        self._dialect = dialect
        self._rules = _RULES[dialect]

    def tokens(self) -> tuple[SqlToken, ...]:
        text, match = self._text, self._rules.pattern.match
        if (nul := text.find("\0")) >= 0:
            raise UnreadableSql("the statement contains a NUL character, where a database may stop reading", offset=nul)
        tokens: list[SqlToken] = []
        position = 0
        while position < len(text):
            matched = match(text, position)
            assert matched is not None  # the last alternative matches any character
            assert matched.lastgroup is not None
            token = self._token(matched.lastgroup, position, matched.end(), tokens)
            tokens.append(token)
            position = token.end
        return tuple(tokens)

    def _token(self, group: str, start: int, end: int, before: list[SqlToken]) -> SqlToken:
        kind = _KINDS.get(group)
        if kind is not None:
            return SqlToken(kind, start, end)
        match group:
            case "parameter":
                # `a[1:n]`: the colon stands for itself, and a name follows.
                if self._rules.colons and before and before[-1].kind in _ENDS_VALUE:
                    return SqlToken("operator", start, start + 1)
                return SqlToken("parameter", start, end)
            case "comment":
                return SqlToken("comment", start, self._comment_end(start))
            case "executable":
                return SqlToken("executable", start, self._comment_end(start))
            case "dollar":
                return SqlToken(
                    "string", start, self._find(self._text[start:end], end, start, "a dollar-quoted string")
                )
            case "bracketed":
                return SqlToken("name", start, self._find("]", end, start, "a name in brackets"))
            case "raw":
                return SqlToken("string", start, self._find(self._text[end - 1], end, start, "a string"))
            case "escaped":
                end = self._quote_end(start, end, escapes=self._rules.escapes)
                while self._dialect == "postgresql" and (continued := _CONTINUES.match(self._text, end)):
                    end = self._quote_end(start, continued.end(), escapes=True)
                return SqlToken("string", start, end)
            case "name":
                return SqlToken("name", start, self._quote_end(start, end, escapes=False, what="a quoted name"))
        return SqlToken("string", start, self._quote_end(start, end, escapes=False))

    def _comment_end(self, start: int) -> int:
        nested = self._rules.nested and not (self._dialect == "spark" and self._text.startswith("/*+", start))
        depth, position = 1, start + 2
        while depth:
            closing = self._find("*/", position, start, "a comment")
            opening = self._text.find("/*", position) if nested else -1
            if 0 <= opening < closing - 2:
                depth, position = depth + 1, opening + 2
            else:
                depth, position = depth - 1, closing
        return position

    def _quote_end(self, start: int, position: int, *, escapes: bool, what: str = "a string") -> int:
        quote = self._text[position - 1]
        while True:
            end = self._find(quote, position, start, what)
            if escapes:
                before = self._text[position : end - 1]
                if (len(before) - len(before.rstrip("\\"))) % 2:
                    position = end
                    continue
            if self._text.startswith(quote, end):
                position = end + 1
                continue
            return end

    def _find(self, closing: str, position: int, start: int, what: str) -> int:
        end = self._text.find(closing, position)
        if end < 0:
            raise UnreadableSql(
                f"{what} is not closed: `{shown(self._text[start:])}`",
                help=f"close it with {closing}; the text is read as {NAMES[self._dialect]} reads it",
                offset=start,
            )
        return end + len(closing)


def shown(text: str, limit: int = 40) -> str:
    """A part of a statement for a message, in one line."""
    return shorten(" ".join(text.split()), limit)
