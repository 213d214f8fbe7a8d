"""Text from data in a form that a terminal shows and does not obey.

Control characters (with ESC, CR and the C1 range), characters that change the direction of text, invisible ones and
lone surrogates become visible escapes such as ``\\x1b`` and ``\\u202e``. Joiners stay, as emoji and some scripts need
them.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

from sagas.text.exact_json import escaped, readable_json

MASK = "•••"
"""Stands for a value that nobody may read."""

_NOT_SHOWN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f"
)
_IN_TEXT = re.compile(f"[{_NOT_SHOWN}]")
_IN_LINE = re.compile(f"[{_NOT_SHOWN}\t\n]")


def printable(text: str) -> str:
    """The text with visible escapes; line feeds and tabs stay."""
    return text if text.isascii() and text.isprintable() else _IN_TEXT.sub(_escape, text)


def printable_line(text: str) -> str:
    """The text on one line: line feeds and tabs are also escaped."""
    return text if text.isascii() and text.isprintable() else _IN_LINE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return ascii(match.group())[1:-1]


def printable_json(value: Any, *, indent: int | None = None) -> str:
    """A JSON document in which such characters are escaped as JSON does it; what is not JSON becomes a string.

    Numbers have the digits they were written with. Without ``indent`` it is one line.
    """
    text = readable_json(_writable(value), indent=indent, default=str)
    return _IN_TEXT.sub(lambda match: escaped(match.group()), text)


def _writable(value: Any) -> Any:
    """The value with strings for keys that are none, and for numbers that JSON does not have."""
    match value:
        case float() if not math.isfinite(value):
            return str(Decimal(value))
        case Decimal() if not value.is_finite():
            return str(value)
        case dict():
            return {str(_writable(key)): _writable(item) for key, item in value.items()}
        case list() | tuple():
            return [_writable(item) for item in value]
    return value
