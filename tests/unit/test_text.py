"""Text from data: what a terminal would obey is shown as an escape, in text, lines and JSON documents."""

from __future__ import annotations

import json

import pytest

from sagas.text.printable import printable, printable_json, printable_line

ESCAPED = {
    "\x1b[2J\x1b]0;title\x07": r"\x1b[2J\x1b]0;title\x07",
    "safe\rspoofed": r"safe\rspoofed",
    "\x9b31m": r"\x9b31m",
    "\x7f\x08": r"\x7f\x08",
    "a\u202egnp.exe": r"a\u202egnp.exe",
    "\u2066a\u2069\u200f\u061c": r"\u2066a\u2069\u200f\u061c",
    "in\u200bvisible\ufeff\u00ad": r"in\u200bvisible\ufeff\xad",
    "\u2028\u2029": r"\u2028\u2029",
    "tag\U000e0041": r"tag\U000e0041",
    "lone\udc80": r"lone\udc80",
}
READABLE = ("Grüße, 東京", "👨\u200d👩\u200d👧", "می\u200cخواهم", "12\u00a0€", "שלום", "[red]x[/red]", "")


@pytest.mark.parametrize(("text", "shown"), ESCAPED.items())
def test_what_a_terminal_obeys_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == printable_line(text) == shown


@pytest.mark.parametrize("text", READABLE)
def test_readable_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == printable_line(text) == text


def test_line_feeds_and_tabs_stay_in_text_and_not_in_a_line() -> None:
    assert printable("one\n\ttwo") == "one\n\ttwo"
    assert printable_line("one\n\ttwo") == r"one\n\ttwo"


@pytest.mark.parametrize("text", [*ESCAPED, *READABLE])
def test_a_json_document_stays_the_same_document(text: str) -> None:
    document = {text: [text, {"nested": text}]}
    for shown in (printable_json(document), printable_json(document, indent=2)):
        assert json.loads(shown) == document
        assert printable(shown) == shown
