"""Mistakes that show before a run."""

from __future__ import annotations

import pytest

from sagas.expressions import check_types, compile_expression
from sagas.expressions.type_checker import TypeMistake

KINDS = {
    "input.name": "string",
    "input.total": "string",
    "input.count": "integer",
    "input.price": "number",
    "input.flag": "boolean",
    "input.lines": "array",
    "input.lines.[].amount": "string",
    "input.lines.[].qty": "integer",
    "input.words": "array",
    "input.words.[]": "string",
}


def check(source: str) -> list[TypeMistake]:
    return check_types(compile_expression(source), lambda path: KINDS.get(".".join(path)))


@pytest.mark.parametrize(
    ("source", "offset", "message"),
    [
        ("1 + input.total * 2", 4, "input.total, a string; write decimal(x)"),
        ("input.total + input.name", 0, "input.total, a string"),
        ("input.unknown - 'x'", 0, "'x', a string"),
        ("-input.name", 0, "input.name, a string"),
        ("input.flag + 1", 0, "boolean"),
        ("'a' + input.count", 0, "string(x)"),
        ("input.total > 10", 0, "compares a string with a number"),
        ("input.count == '1'", 0, "compares a string with a number"),
        ("sum(input.words)", 0, "sum takes numbers"),
        ("sum(input.lines.map(l, l.amount))", 0, "sum takes numbers"),
        ("sum(input.lines.filter(l, l.qty > 1).map(l, l.amount))", 0, "sum takes numbers"),
        ("sum(['1', 2])", 0, "sum takes numbers"),
        ("max(1, input.total)", 0, "max takes numbers"),
        ("input.total.round(2)", 0, "round takes numbers"),
        ("input.lines.map(l, l.amount * l.qty)", 19, "l.amount, a string"),
        ("input.lines[0].amount * 2", 0, "a string"),
        ("[1].map(x, foo(x))", 11, "no function 'foo'"),
        ("size(1, 2)", 0, "size takes 1 argument, not 2"),
        ("default(input.name, 'x') * 2", 0, "a string"),
    ],
)
def test_mistakes(source: str, offset: int, message: str) -> None:
    mistakes = check(source)
    assert len(mistakes) == 1
    assert mistakes[0].offset == offset
    assert message in mistakes[0].message


@pytest.mark.parametrize(
    "source",
    [
        "sum(input.lines.map(l, decimal(l.amount) * l.qty))",
        "sum(steps.reserve.results.map(r, decimal(r.line_total)))",
        "input.count * input.price + 1",
        "'order ' + input.name",
        "input.name < 'm'",
        "input.unknown + input.other",
        "input.unknown == 1",
        "input.words.map(w, w + '!')",
        "[1] + [2]",
        "input.flag ? input.count : input.total",
        "max(input.count, 2)",
        "round(input.price, 2) == 1",
        "timestamp(input.name) + duration('1h')",
    ],
)
def test_nothing_wrong_is_reported(source: str) -> None:
    assert check(source) == []


def test_every_mistake_is_reported_once_in_order() -> None:
    assert [each_check.offset for each_check in check("foo(1) + bar(2) + input.flag")] == [0, 0, 9]
