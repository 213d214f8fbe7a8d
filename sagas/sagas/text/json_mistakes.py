"""Says what is wrong with a text that is not JSON, and what to write instead. No value of the text is quoted."""

from __future__ import annotations

import json
import re

_BAD_CONSTANT = re.compile(r"(?:True|TRUE|False|FALSE|None|NULL|Null|undefined|nil)\b")
_LEADING_ZERO = re.compile(r"(?:^|[^\w.])0\Z")


class InvalidJson(ValueError):
    """A text is not JSON; ``problem`` says why, at a line and a column that begin at 1."""

    def __init__(self, error: json.JSONDecodeError) -> None:
        self.problem = _problem(error.doc, error.pos, error.msg)
        self.line = error.lineno
        self.column = error.colno
        line = f"line {error.lineno}, " if "\n" in error.doc.strip() else ""
        super().__init__(f"{self.problem} ({line}column {error.colno})" if error.doc.strip() else self.problem)


def _problem(text: str, position: int, message: str) -> str:
    """``message`` is that of Python's module, whose beginnings are the keys of :data:`_BY_MESSAGE`."""
    here, before = text[position : position + 10], text[max(0, position - 1000) : position]
    if not text.strip():
        return "it is empty"
    if here[:1].isdigit() and _LEADING_ZERO.search(before):
        return "a number has a leading zero: quote it if it is text, or leave the zero out"
    if here[:1].isdigit() and re.search(r"\d,\Z", before):
        return "a comma separates values: write a decimal with a point"
    if here[:1] in ("}", "]") and before.rstrip().endswith(","):
        return f"a comma stands before `{here[0]}`: remove it"
    if here[:1] in ("'", "‘", "’", "“", "”", "`"):
        return 'names and strings are in double quotes: write "…"'
    if here.startswith(("//", "/*", "#")):
        return "JSON has no comments: remove this one"
    if _BAD_CONSTANT.match(here):
        return "write true, false or null, in lower case"
    if re.search(r"\d\Z", before) and here[:1] and here[0] not in ' \t\r\n",:[{}]':
        return "a number is not written like this: quote it if it is text"
    if here[:1] in (".", "+"):
        return "a number begins with a digit or a minus sign: write 0.5 or 5"
    if message.startswith("Expecting value") and here[:1].isalpha():
        return 'a string is in double quotes: write "…"'
    if not text[position:].strip() and message.startswith("Expecting"):
        return f"it ends too early: write {_missing(text, message)}"
    if message.startswith("Unterminated") and not re.search(r"[\]}]", text[position:]):
        brackets = _missing(text[:position], "")
        return f"it ends within a string: write its double quote{'' if brackets == _REST else f' and then {brackets}'}"
    for start, sentence in _BY_MESSAGE.items():
        if message.startswith(start):
            return sentence
    return "it cannot be read from here on: correct it"


_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|([\[{])|([\]}])', re.DOTALL)
_MOST_BRACKETS = 20


def _missing(text: str, message: str) -> str:
    """The character that is to follow a text that was cut off, and its closing brackets."""
    opened: list[str] = []
    for match in _BRACKET.finditer(text):
        if match[1]:
            opened.append("]" if match[1] == "[" else "}")
        elif match[2] and opened:
            opened.pop()
    brackets = "".join(reversed(opened[-_MOST_BRACKETS:])) + ("…" if len(opened) > _MOST_BRACKETS else "")
    before = next((words for start, words in _CUT_OFF.items() if message.startswith(start)), "")
    return " and then ".join(part for part in (before, brackets and f"`{brackets}`") if part) or _REST


_REST = "the rest of it"


_CUT_OFF = {
    "Expecting property name": "a name with its value",
    "Expecting value": "the value",
    "Expecting ':'": "a colon, the value",
}

_BY_MESSAGE = {
    "Expecting property name": 'a name in double quotes belongs here: write "name"',
    "Expecting value": "a value is missing: write it, or null",
    "Expecting ','": "a comma or a closing bracket is missing: write it",
    "Expecting ':'": "a colon is missing after a name: write it",
    "Unterminated string": "a string is not closed: write its double quote",
    "Invalid control": r"a string has a line break or a tab: write \n or \t",
    "Invalid \\": r"a backslash begins no escape of JSON: write \\ for a backslash",
    "Extra data": "text follows the value: remove it",
    "Unexpected UTF-8 BOM": "it begins with a byte order mark: save it without",
}
