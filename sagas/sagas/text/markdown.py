"""Text from data in Markdown: it is shown as it is, on one line, and is neither markup, HTML nor a link."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sagas.text.printable import printable_line

_ACTIVE = re.compile(r"[\\`*_\[\]<>~#!$@|]|://|(?i:\bwww)\.|^(?:[-+=]|\d+[.)])")


def markdown_text(text: str) -> str:
    """Text outside of code, also in a table."""
    return _ACTIVE.sub(_escape, printable_line(text).replace("&", "&amp;"))


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    if len(character) == 1:
        return "\\" + character
    return "&#58;//" if character == "://" else f"{character[:-1]}\\{character[-1]}"


def markdown_code(text: str) -> str:
    """Text in a code span; what cannot be in one (within a table) is ordinary text."""
    if not text or text != text.strip() or re.search(r"[`\\|]", text) or printable_line(text) != text:
        return markdown_text(text)
    return f"`{text}`"


def markdown_code_block(lines: Iterable[str], language: str = "") -> list[str]:
    """The lines as a fenced block that none of them can end."""
    shown = [printable_line(line) for line in lines]
    longest = max((len(run) for line in shown for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + language, *shown, fence]
