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
    position = start = 0
    while (opening := string.find(OPENING, position)) >= 0:
        if opening > 0 and string[opening - 1] == "$" and opening - 1 >= position:
            literal.append(string[position : opening - 1] + OPENING)
            position = opening + len(OPENING)
            continue
        literal.append(string[position:opening])
        if text := "".join(literal):
            parts.append(TemplatePart(text, start, False))
        literal = []
        begin = opening + len(OPENING)
        end = _find_closing(string, begin)
        parts.append(TemplatePart(string[begin:end], begin, True))
        position = start = end + len(CLOSING)
    literal.append(string[position:])
    if (text := "".join(literal)) or not parts:
        parts.append(TemplatePart(text, start, False))
    return parts


def _find_closing(string: str, begin: int) -> int:
    """The offset of the closing ``}}``, ignoring braces inside string literals and those that end a map."""
    position, braces = begin, 0
    while position < len(string):
        if quote := QUOTE.match(string, position):
            end = closing_quote(string, quote.end(), quote[2], raw="r" in quote[1].lower())
            if end is None:
                break
            position = end + len(quote[2])
        elif name := NAME.match(string, position):
            position = name.end()
        elif string.startswith("//", position):
            line, close = string.find("\n", position), string.find(CLOSING, position)
            position = min((end for end in (line, close) if end >= 0), default=len(string))
        elif string[position] == "}" and braces == 0 and string.startswith(CLOSING, position):
            return position
        else:
            braces += {"{": 1, "}": -1 if braces else 0}.get(string[position], 0)
            position += 1
    raise ExpressionError(
        f"'{OPENING}' is not closed with '{CLOSING}'; for these characters themselves write '{_ESCAPED_OPENING}'",
        begin - len(OPENING),
    )
