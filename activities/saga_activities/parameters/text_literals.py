"""Text that PostgreSQL reads as an array, a range or a composite value: the scalars in it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

_START = re.compile(r"\s*(?:(?:\[[-+0-9:\s]+\]\s*)+=\s*)?(?=[{(])")
_OBJECT = re.compile(r'\s*\{\s*(?:"(?:[^"\\]|\\.)*"\s*:|\}\s*\Z)', re.DOTALL)
"""The beginning of an object of JSON, which no array has."""

# Quotes that are not closed are read once: a search that starts again at each of them would take quadratic time.
_QUOTED = re.compile(r'"((?:[^"\\]|\\.|"")*+)"?', re.DOTALL)
_ESCAPED = re.compile(r'\\(.)|"(")', re.DOTALL)


def is_literal(text: str) -> bool:
    """Return whether text may be an array or a composite value."""
    return _START.match(text) is not None and _OBJECT.match(text) is None


def scalar_texts(text: str, *, composite: bool, field: int | None = None) -> Iterator[str]:
    """The texts of the scalars in a value; of a composite one, those at position ``field`` only, if it is given.

    Text of another form is its own only scalar. ``composite`` False: parentheses belong to a scalar.
    """
    start = _START.match(text)
    body = text[start.end() :].strip() if start is not None else ""
    if body.startswith("{") and body.endswith("}"):
        for item in filter(None, _parts(body)):
            yield from scalar_texts(item, composite=composite, field=field)
    elif composite and body.startswith("(") and body.endswith(")"):
        for at, item in enumerate(_parts(body)):
            if item is not None and (field is None or at == field):
                yield from scalar_texts(item, composite=composite)
    else:
        yield text


def _parts(body: str) -> Iterator[str | None]:
    """The items between the brackets of a literal, without their quotes; None: null."""
    is_array, at, depth, start = body[0] == "{", 1, 0, 1
    while at < len(body):
        character = body[at]
        if character == "\\":
            at += 1
        elif character == '"':
            at = _end_of_quotes(body, at)
        elif is_array and character == "{":
            depth += 1
        elif is_array and character == "}" and depth:
            depth -= 1
        elif (character == "," and not depth) or at == len(body) - 1:
            yield _unquoted(body[start:at], is_array=is_array)
            start = at + 1
        at += 1


def _end_of_quotes(body: str, start: int) -> int:
    at = start + 1
    while at < len(body) and body[at] != '"':
        at += 2 if body[at] == "\\" else 1
    return at


def _unquoted(item: str, *, is_array: bool) -> str | None:
    written = item.strip() if is_array else item
    if not written or (is_array and written.lower() == "null"):
        return None
    if is_array and written.startswith("{"):
        return written  # an inner array, with the quotes of its items
    return _QUOTED.sub(lambda quoted: _ESCAPED.sub(r"\1\2", quoted[1]), written)


def item_texts(text: str) -> Iterator[str]:
    """The bounds in the text of a range, and the items in that of an array or a multirange."""
    for part in text.rpartition("=")[2].split(","):
        if (item := part.strip('[](){}" ')) and item.lower() not in ("empty", "null"):
            yield item
