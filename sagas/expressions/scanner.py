"""Finds ``${{ … }}`` in a string. ``$${{`` is the escape for a literal ``${{``."""

from __future__ import annotations

from dataclasses import dataclass

from sagas.expressions.errors import ExpressionError
from sagas.expressions.lexer import closing_quote

OPEN = "${{"
CLOSE = "}}"
_ESCAPED = "$${{"


@dataclass(frozen=True, slots=True)
class Part:
    """Literal text, or the source between ``${{`` and ``}}``. ``offset``: where the text stands in the string."""

    text: str
    offset: int
    expression: bool


def scan(string: str) -> list[Part]:
    """The parts of a string in order; raises ExpressionError when a ``${{`` is not closed."""
    parts: list[Part] = []
    literal: list[str] = []
    at = start = 0
    while (found := string.find(OPEN, at)) >= 0:
        if found > 0 and string[found - 1] == "$" and found - 1 >= at:
            literal.append(string[at : found - 1] + OPEN)
            at = found + len(OPEN)
            continue
        literal.append(string[at:found])
        if text := "".join(literal):
            parts.append(Part(text, start, False))
        literal = []
        begin = found + len(OPEN)
        end = _closing(string, begin)
        parts.append(Part(string[begin:end], begin, True))
        at = start = end + len(CLOSE)
    literal.append(string[at:])
    if (text := "".join(literal)) or not parts:
        parts.append(Part(text, start, False))
    return parts


def _closing(string: str, begin: int) -> int:
    """Where ``}}`` stands that is neither inside a string nor the end of a map."""
    at, braces = begin, 0
    while at < len(string):
        letter = string[at]
        if letter in "'\"":
            quote = letter * 3 if string.startswith(letter * 3, at) else letter
            raw = at > begin and string[at - 1] in "rR" and not string[max(begin, at - 2)].isalnum()
            raw = raw or (at - 1 == begin and string[at - 1] in "rR")
            end = closing_quote(string, at + len(quote), quote, raw=raw)
            if end is None:
                break
            at = end + len(quote)
            continue
        if letter == "{":
            braces += 1
        elif letter == "}":
            if braces == 0 and string.startswith(CLOSE, at):
                return at
            braces = max(0, braces - 1)
        at += 1
    raise ExpressionError(
        f"'{OPEN}' is not closed with '{CLOSE}'; for the text itself write '{_ESCAPED}'", begin - len(OPEN)
    )
