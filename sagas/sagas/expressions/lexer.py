"""Splits an expression into tokens.

The tokens follow the CEL specification (github.com/google/cel-spec, doc/langdef.md), with two differences: a number
with a fraction is an exact decimal, and unsigned integers and bytes are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from sagas.expressions.errors import ExpressionError
from sagas.expressions.limits import MAX_SOURCE_LENGTH
from sagas.expressions.other_languages import INTEGER_DIVISION, OPERATORS, operator_at
from sagas.expressions.values import parse_decimal
from sagas.input_limits import MAX_INTEGER_DIGITS

TokenKind = Literal["constant", "name", "op", "end"]

_SPACE = re.compile(r"(?:[ \t\r\n\f]+|//[^\n]*)+")
_NUMBER = re.compile(
    r"(?P<hex>0[xX][0-9a-fA-F]+)|(?P<frac>[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)|(?P<int>[0-9]+)"
)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OP = re.compile(r"\|\||&&|==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}]")
QUOTE = re.compile(r"([rRbB]{0,2})(\"\"\"|'''|\"|')")
_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\?\"'`])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2}))"
)
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "?": "?"}
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Token:
    """One token. ``value`` is the value of a constant; ``end`` is exclusive."""

    kind: TokenKind
    text: str
    offset: int
    end: int
    value: Any = None


def tokenize(source: str) -> list[Token]:
    """All tokens, followed by one of kind ``end``; raises ExpressionError at the first invalid token."""
    if len(source) > MAX_SOURCE_LENGTH:
        raise ExpressionError(f"an expression may have at most {MAX_SOURCE_LENGTH:,} characters", 0)
    tokens: list[Token] = []
    position = 0
    while True:
        if space := _SPACE.match(source, position):
            if tokens and (division := INTEGER_DIVISION.search(space.group())) is not None:
                raise ExpressionError("'//' begins a comment; write x / y to divide", position + division.start())
            position = space.end()
        if position == len(source):
            tokens.append(Token("end", "the end", position, position))
            return tokens
        token = _token(source, position)
        tokens.append(token)
        position = token.end


def _token(source: str, position: int) -> Token:
    if quote := QUOTE.match(source, position):
        return _string(source, position, quote)
    if number := _NUMBER.match(source, position):
        return _number(source, number)
    if name := NAME.match(source, position):
        text = name.group()
        if text in _WORDS:
            return Token("constant", text, position, name.end(), _WORDS[text])
        return Token("op" if text == "in" else "name", text, position, name.end())
    op = _OP.match(source, position)
    other = operator_at(source, position)
    if other is not None and (op is None or len(other) > len(op.group())):
        raise ExpressionError(f"{other!r} is not an operator of CEL; {OPERATORS[other]}", position)
    if op is None:
        raise ExpressionError(f"{source[position]!r} is not allowed here", position)
    return Token("op", op.group(), position, op.end())


def _number(source: str, match: re.Match[str]) -> Token:
    text, start, end = match.group(), match.start(), match.end()
    if source[end : end + 1] in ("u", "U"):
        raise ExpressionError("unsigned integers are not supported; leave out the 'u'", end)
    if NAME.match(source, end):
        raise ExpressionError(f"{source[start : end + 1]!r} is neither a number nor a name", start)
    value: int | Decimal
    if len(text) > MAX_INTEGER_DIGITS:
        raise ExpressionError(f"a number of more than {MAX_INTEGER_DIGITS:,} digits is refused", start)
    if match.lastgroup == "frac":
        try:
            value = parse_decimal(text)
        except ExpressionError as error:
            raise ExpressionError(error.message, start) from None
    else:
        value = int(text, 16 if match.lastgroup == "hex" else 10)
    return Token("constant", text, start, end, value)


def _string(source: str, position: int, opening: re.Match[str]) -> Token:
    prefix, quote = opening.group(1).lower(), opening.group(2)
    if "b" in prefix:
        raise ExpressionError("bytes are not supported; leave out the 'b'", position)
    raw = "r" in prefix
    end = closing_quote(source, opening.end(), quote, raw=raw)
    if end is None:
        raise ExpressionError(f"the string that starts here has no closing {quote}", position)
    body = source[opening.end() : end]
    value = body if raw else _unescape(body, opening.end())
    return Token("constant", source[position : end + len(quote)], position, end + len(quote), value)


def closing_quote(source: str, start: int, quote: str, *, raw: bool) -> int | None:
    """The offset of the quote that closes a string whose content begins at ``start``; None if it is not closed."""
    position = start
    while position < len(source):
        if source.startswith(quote, position):
            return position
        if source[position] == "\n" and len(quote) == 1:
            return None
        position += 2 if source[position] == "\\" and not raw else 1
    return None


def _unescape(body: str, offset: int) -> str:
    if "\\" not in body:
        return body
    parts: list[str] = []
    position = 0
    while (slash := body.find("\\", position)) >= 0:
        parts.append(body[position:slash])
        escape = _ESCAPE.match(body, slash)
        if escape is None:
            raise ExpressionError(
                f"'{body[slash : slash + 2]}' is not an escape sequence; for a plain backslash write \\\\ or r'…'",
                offset + slash,
            )
        simple, *codes, octal = escape.groups()
        if simple is not None:
            parts.append(_SIMPLE.get(simple, simple))
        else:
            code = int(octal, 8) if octal is not None else int(next(c for c in codes if c is not None), 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise ExpressionError(f"'{escape.group()}' is not a character", offset + slash)
            parts.append(chr(code))
        position = escape.end()
    return "".join(parts) + body[position:]
