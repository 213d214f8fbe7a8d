"""Text from data in a form that a terminal shows and does not obey.

Control characters (with ESC, CR and the C1 range), characters that change the direction of text, invisible ones and
lone surrogates become visible escapes such as ``\\x1b`` and ``\\u202e``. Joiners stay, as emoji and some scripts need
them.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

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
    """The text on one line: line feeds and tabs are escaped, too."""
    return text if text.isascii() and text.isprintable() else _IN_LINE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return ascii(match.group())[1:-1]


def printable_json(value: Any, *, indent: int | None = None) -> str:
    """A JSON document in which such characters are escaped as JSON does it; what is not JSON becomes a string."""
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), indent=indent, ensure_ascii=False, default=str)
    return _IN_TEXT.sub(lambda match: json.dumps(match.group())[1:-1], text)


def _finite(value: Any) -> Any:
    """The value with `NaN` and `Infinity`, which JSON does not have, as strings."""
    match value:
        case float() if not math.isfinite(value):
            return json.dumps(value)
        case dict():
            return {_finite(key): _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
    return value
