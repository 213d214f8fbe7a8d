"""The scalars in the text of arrays and composite values of PostgreSQL."""

from __future__ import annotations

import pytest

from saga_activities.parameters.text_literals import is_literal, scalar_texts


@pytest.mark.parametrize(
    ("text", "scalars"),
    [
        ("{1.005}", ["1.005"]),
        (" { 1.005 , 2 } ", ["1.005", "2"]),
        ("{{1.005,2},{3,4}}", ["1.005", "2", "3", "4"]),
        ("[0:0]={1.005}", ["1.005"]),
        ("[-1:0][2:2] = {{1},{2}}", ["1", "2"]),
        ('{"abc  ","a,b","q\\"}{"}', ["abc  ", "a,b", 'q"}{']),
        ("(1.005,)", ["1.005"]),
        ('{NULL,"NULL"}', ["NULL"]),
        ('(1,"2026-01-01 10:00:00.7","say ""no"" \\"")', ["1", "2026-01-01 10:00:00.7", 'say "no" "']),
        ('{"(1.005,x)","(2,\\"a,b\\")"}', ["1.005", "x", "2", "a,b"]),
        ('("{1.005,2}",x)', ["1.005", "2", "x"]),
        ("1.005", ["1.005"]),
        ("{1.005", ["{1.005"]),
    ],
)
def test_each_scalar_is_read(text: str, scalars: list[str]) -> None:
    assert list(scalar_texts(text, composite=True)) == scalars


def test_only_the_scalars_of_one_field_are_read() -> None:
    assert list(scalar_texts('{"(1,\\"{2,3}\\")"}', composite=True, field=1)) == ["2", "3"]


def test_parentheses_belong_to_the_items_of_an_array_of_text() -> None:
    assert list(scalar_texts('{"(a,b)"}', composite=False)) == ["(a,b)"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{1}", True),
        ("[1:1]={1}", True),
        ("(1,2)", True),
        ('{"a": 1}', False),
        ("{}", False),
        ("[1]", False),
        ("1", False),
    ],
)
def test_json_is_no_array(text: str, expected: bool) -> None:
    assert is_literal(text) is expected
