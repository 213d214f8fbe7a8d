"""Messages about a text that is not JSON: the place, and what to write instead, never Python's words."""

from __future__ import annotations

import pytest

from sagas.text.exact_json import decode_json, decode_unambiguous
from sagas.text.json_mistakes import InvalidJson

CASES = [
    ('{"n": 012.50}', "a number has a leading zero: quote it if it is text, or leave the zero out (column 8)"),
    ("-01", "a number has a leading zero: quote it if it is text, or leave the zero out (column 3)"),
    ('{"n": 1,}', "a comma stands before `}`: remove it (column 9)"),
    ("[1, 2,\n]", "a comma stands before `]`: remove it (line 2, column 1)"),
    ("{'n': 1}", 'names and strings are in double quotes: write "…" (column 2)'),
    ('{"n": “x”}', 'names and strings are in double quotes: write "…" (column 7)'),
    ("{n: 1}", 'a name in double quotes belongs here: write "name" (column 2)'),
    ('{"n": True}', "write true, false or null, in lower case (column 7)"),
    ('{"n": None}', "write true, false or null, in lower case (column 7)"),
    ('{"n": ann}', 'a string is in double quotes: write "…" (column 7)'),
    ('{"n": 1,5}', "a comma separates values: write a decimal with a point (column 9)"),
    ('{"n": 1_000}', "a number is not written like this: quote it if it is text (column 8)"),
    ('{"n": 2026-02-01}', "a number is not written like this: quote it if it is text (column 11)"),
    ('{"n": .5}', "a number begins with a digit or a minus sign: write 0.5 or 5 (column 7)"),
    ('{"n": 1 // one\n}', "JSON has no comments: remove this one (line 1, column 9)"),
    ("", "it is empty"),
    ('{"n": 1', "it ends too early: write `}` (column 8)"),
    ('{"n": [1, {"a": "}"', "it ends too early: write `}]}` (column 20)"),
    ('{"n": [1,\n2,\n', "it ends too early: write the value and then `]}` (line 3, column 1)"),
    ('{"n":', "it ends too early: write the value and then `}` (column 6)"),
    ('{"n"', "it ends too early: write a colon, the value and then `}` (column 5)"),
    ('{"a": 1, ', "it ends too early: write a name with its value and then `}` (column 10)"),
    ('{"n": "x', "it ends within a string: write its double quote and then `}` (column 7)"),
    ('"x', "it ends within a string: write its double quote (column 1)"),
    ('{"n": "x, "m": [1]}', "a comma or a closing bracket is missing: write it (column 12)"),
    ('{"n": ["x]}', "a string is not closed: write its double quote (column 8)"),
    ('{"n": "x\ty"}', r"a string has a line break or a tab: write \n or \t (column 9)"),
    ('{"n": "\\d"}', r"a backslash begins no escape of JSON: write \\ for a backslash (column 8)"),
    ('{"n" 1}', "a colon is missing after a name: write it (column 6)"),
    ('{"n": 1 "m": 2}', "a comma or a closing bracket is missing: write it (column 9)"),
    ('{"n": ]}', "a value is missing: write it, or null (column 7)"),
    ("{} {}", "text follows the value: remove it (column 4)"),
    ("\ufeff{}", "it begins with a byte order mark: save it without (column 1)"),
    ("&", "a value is missing: write it, or null (column 1)"),
]


@pytest.mark.parametrize("decode", [decode_json, decode_unambiguous])
@pytest.mark.parametrize(("text", "message"), CASES)
def test_a_text_that_is_no_json(decode: object, text: str, message: str) -> None:
    assert callable(decode)
    with pytest.raises(InvalidJson) as raised:
        decode(text)
    assert str(raised.value) == message
