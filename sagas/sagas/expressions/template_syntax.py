"""Splits a string that contains ``${{ … }}`` into literal text and expressions.

``$${{`` is the escape for a literal ``${{``.
"""

from __future__ import annotations

from dataclasses import dataclass

from sagas.expressions.errors import ExpressionError
from sagas.expressions.lexer import NAME, QUOTE, closing_quote

OPENING = "${{"
CLOSING = "}}"
_ESCAPED_OPENING = "$${{"


@dataclass(frozen=True, slots=True)
class TemplatePart:
    """Literal text, or the source between ``${{`` and ``}}``. ``offset``: where the part begins in the string."""

    text: str
    offset: int
    expression: bool


def split_template(string: str) -> list[TemplatePart]:
    """The parts of a string in order; raises ExpressionError when a ``${{`` is not closed."""
    parts: list[TemplatePart] = []
    literal: list[str] = []
    at = start = 0
    while (found := string.find(OPENING, at)) >= 0:
        if found > 0 and string[found - 1] == "$" and found - 1 >= at:
            literal.append(string[at : found - 1] + OPENING)
            at = found + len(OPENING)
            continue
        literal.append(string[at:found])
        if text := "".join(literal):
            parts.append(TemplatePart(text, start, False))
        literal = []
        begin = found + len(OPENING)
        end = _find_closing(string, begin)
        parts.append(TemplatePart(string[begin:end], begin, True))
        at = start = end + len(CLOSING)
    literal.append(string[at:])
    if (text := "".join(literal)) or not parts:
        parts.append(TemplatePart(text, start, False))
    return parts


def _find_closing(string: str, begin: int) -> int:
    """The offset of the closing ``}}``, ignoring braces inside string literals and those that end a map."""
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
            line, close = string.find("\n", at), string.find(CLOSING, at)
            at = min((end for end in (line, close) if end >= 0), default=len(string))
        elif string[at] == "}" and braces == 0 and string.startswith(CLOSING, at):
            return at
        else:
            braces += {"{": 1, "}": -1 if braces else 0}.get(string[at], 0)
            at += 1
    raise ExpressionError(
        f"'{OPENING}' is not closed with '{CLOSING}'; for these characters themselves write '{_ESCAPED_OPENING}'",
        begin - len(OPENING),
    )
