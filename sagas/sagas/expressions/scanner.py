"""Finds ``${{ … }}`` in a string. ``$${{`` is the escape for a literal ``${{``."""

from __future__ import annotations

from dataclasses import dataclass

from sagas.expressions.errors import ExpressionError
from sagas.expressions.lexer import NAME, QUOTE, closing_quote

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
    """Where the ``}}`` stands that is neither inside a string nor the end of a map."""
    at, braces = begin, 0
    while at < len(string):
        if quote := QUOTE.match(string, at):
            end = closing_quote(string, quote.end(), quote[2], raw="r" in quote[1].lower())
            if end is None:
                break
            at = end + len(quote[2])
        elif name := NAME.match(string, at):
            at = name.end()
        elif string.startswith("//", at):
            line, close = string.find("\n", at), string.find(CLOSE, at)
            at = min((end for end in (line, close) if end >= 0), default=len(string))
        elif string[at] == "}" and braces == 0 and string.startswith(CLOSE, at):
            return at
        else:
            braces += {"{": 1, "}": -1 if braces else 0}.get(string[at], 0)
            at += 1
    raise ExpressionError(
        f"'{OPEN}' is not closed with '{CLOSE}'; for the text itself write '{_ESCAPED}'", begin - len(OPEN)
    )
