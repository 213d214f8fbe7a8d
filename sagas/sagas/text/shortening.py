"""Long texts, lists and counts in messages: their beginning, a sign that there is more, and the right number."""

from __future__ import annotations

from collections.abc import Sequence


def shorten(text: str, limit: int = 80) -> str:
    """The first ``limit`` characters of a text."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def shorten_middle(text: str, limit: int) -> str:
    """The beginning and the end of a text: an error ends with what to do."""
    return text if len(text) <= limit else f"{text[: limit // 2 - 3]} … {text[-limit // 2 :]}"


def shorten_middle_bytes(text: str, limit: int) -> str:
    """The beginning and the end of a text, in at most ``limit`` bytes of UTF-8."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return text
    half = (limit - len(" … ".encode())) // 2
    return f"{data[:half].decode(errors='ignore')} … {data[-half:].decode(errors='ignore')}"


def join_names(names: Sequence[str], limit: int) -> str:
    """`reserve, charge and 3 more`."""
    return ", ".join(names[:limit]) + and_more(len(names) - limit)


def and_more(omitted: int) -> str:
    """The end of a list without ``omitted`` entries: ` and 3 more`; empty if none is missing."""
    return f" and {omitted} more" if omitted > 0 else ""


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """A count with its noun, and a verb if it needs one: `1 row`, `2 rows`, `0 rows are`."""
    return f"{count} {singular if count == 1 else plural or singular + 's'}"
