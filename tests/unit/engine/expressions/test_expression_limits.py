"""Every evaluation ends soon, whatever the source and the data are."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import pytest

from sagas.expressions import ExpressionError, compile_expression, compile_value
from sagas.expressions.errors import LimitError
from sagas.expressions.limits import MAX_NESTING, MAX_STEPS, MAX_TREE_DEPTH, WorkMeter

NUMBERS = list(range(1000))
CONTEXT: dict[str, Any] = {"n": NUMBERS, "text": "x" * 1_048_576, "word": "x"}


def refused(source: str, context: dict[str, Any] = CONTEXT) -> str:
    with pytest.raises(LimitError) as caught:
        compile_expression(source).evaluate(context)
    return caught.value.message


@pytest.mark.parametrize(
    "source",
    [
        "n.map(a, n.map(b, a * b))",
        "n.all(a, n.all(b, n.all(c, true)))",
        "n.filter(a, n.exists(b, b == -1))",
        "n.map(a, sum(n))",
        "n.map(a, sort(n))",
        "n.map(a, -1 in n)",
        "n.map(a, n == n)",
        "n.map(a, n + n)",
        "n.map(a, text.contains('y'))",
        "n.map(a, upper(text))",
        "n.map(a, word.matches(string(a) + word) && n.all(b, false) || word.matches(string(a + 1000)))",
        "n.exists(a, n.map(b, a * b).size() < 0) || true",
        "default(n.map(a, n.map(b, null)).size(), 0)",
    ],
)
def test_work_is_bounded(source: str) -> None:
    assert refused(source) == f"the expression needs more than {MAX_STEPS:,} evaluation steps"


def test_steps_are_of_one_evaluation() -> None:
    expression = compile_expression("n.map(a, a + 1).size()")
    assert [expression.evaluate(CONTEXT) for _ in range(150)] == [1000] * 150


HUGE, LONG = 10**3_990 + 7, "7" * 3_999
MANY = list(range(99_000))


@pytest.mark.parametrize(
    ("source", "least"),
    [
        ("n.all(x, half * half / half != 0)", 125),
        ("n.all(x, huge % half != -1)", 84),
        ("n.all(x, decimal(fraction) != huge)", 177),
        ("n.all(x, decimal(fraction) < huge)", 177),
        ("n.all(x, huge + 0.5 != 1) || true", 1),
        ("n.all(x, decimal(half_digits) * decimal(half_digits) != 0)", 53),
        ("n.all(x, decimal(half_digits) / decimal(half_digits) != 0)", 53),
        ("n.all(x, int(long) != 0)", 171),
        ("n.all(x, string(huge) != '')", 172),
        ("n.all(x, min(huge, decimal(fraction)) != 0)", 179),
        ("n.all(x, sort([huge, decimal(fraction), huge]) != [])", 685),
        ("n.all(x, round(decimal(fraction), 100) != 0)", 21),
        ("n.all(x, default(map.missing, 1) == 1)", 5),
        ("n.all(x, default(map[word], 1) == 1)", 5),
        ("n.all(x, default(n[huge], 1) == 1)", 4),
        ("n.exists(x, map.missing == 1)", 5),
        ("n.exists(x, duration(text) == duration('1s'))", 17),
        ("n.exists(x, int(text) == 1)", 5),
        ("n.exists(x, decimal(text) == 1)", 20),
        ("n.all(x, timestamp('2026-01-01T00:00:00Z') != timestamp('2026-01-02T00:00:00Z'))", 6),
        ("n.all(x, medium.matches('(.{1,30}){1,30}$'))", 1000),
        ("n.all(x, medium.matches('x.{0,500}y') || true)", 1000),
        ("n.all(x, word.matches('(x{1,30}){1,30}' + string(x)) || true)", 571),
        ("n.map(x, {'a': x, 'b': [x, x, x]})", 6),
        ("n.map(x, decimal(fraction))", 11),
        ("n.map(x, huge)", 5),
    ],
)
def test_an_evaluation_is_bounded_whatever_the_operands(source: str, least: int) -> None:
    """Two seconds without a pause are a deadlock to Temporal, which then repeats the workflow task forever.

    ``least``: the steps of one item. A step stands for about five microseconds on a machine that does nothing else, so
    that it is counted here and not measured; what costs fewer steps than it should takes minutes.
    """
    context = {
        **CONTEXT,
        "half": 10**1_990 + 7,
        "huge": HUGE,
        "long": LONG,
        "fraction": "1." + "1" * 990,
        "half_digits": "1" * 499,
        "medium": "x" * 6_300,
        "map": {f"k{at}" * 5: 1 for at in range(2_000)},
    }
    expression = compile_expression(source)
    few, many = WorkMeter(), WorkMeter()
    with contextlib.suppress(ExpressionError):
        expression.evaluate({**context, "n": MANY[:100]}, few)
    assert few.exceeds(100 * least - 1)
    with pytest.raises(ExpressionError):
        expression.evaluate({**context, "n": MANY}, many)
    assert not many.exceeds(MAX_STEPS + 20_000)  # with 16 MiB of strings that are copied


def test_five_thousand_items_work() -> None:
    lines = [{"sku": str(at), "line_total": "1.01"} for at in range(5000)]
    total = compile_expression("sum(l.map(x, decimal(x.line_total)))").evaluate({"l": lines})
    assert str(total) == "5050.00"
    assert compile_expression("l").evaluate({"l": lines}) == lines


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("[1]" + ".map(x, [x, x])" * 40, "600,000 values"),
        ("[1]" + ".map(x, [x])" * 120, "100 levels"),
        ("[[1]" + ".map(x, [x, x])" * 40 + "].map(l, l == l)", "steps"),
        ("9" * 4000 + " * 10", "4,000 digits"),
        ("text + 'x'", "1 MiB"),
        ("join([text, text])", "1 MiB"),
        ("n.map(x, text)", "16 MiB"),
        ("1e999 * 1e999", "1,000 digits"),
        ("1e900 + 1e-900", "1,000 digits"),
        ("decimal('1e99999')", "1,000 digits"),
    ],
)
def test_results_are_bounded(source: str, message: str) -> None:
    assert message in refused(source)


def test_a_huge_integer_of_the_context_is_refused() -> None:
    assert "digits" in refused("x", {"x": 10**5000})
    assert "digits" in refused("'a' + string(x)", {"x": 10**5000})


DEEP: list[Callable[[int], str]] = [
    lambda n: "(" * n + "1" + ")" * n,
    lambda n: "[" * n + "1" + "]" * n,
    lambda n: "{'a': " * n + "1" + "}" * n,
    lambda n: "!" * n + "true",
    lambda n: "- " * n + "1",
    lambda n: "true ? 1 : " * n + "1",
    lambda n: "default(" * n + "1" + ", 1)" * n,
    lambda n: "size([" * n + "1" + "])" * n,
    lambda n: "[1].map(x, " * n + "1" + ")" * n,
    lambda n: "[1].all(x, " * n + "true" + ")" * n,
    lambda n: "[1].filter(x, x == 1" + " && [1].all(y, true" * n + ")" * n + ")",
    lambda n: "1" + " + 1" * n,
    lambda n: "true" + " && true" * n,
    lambda n: "false" + " || false" * n,
    lambda n: "[1]" + ".map(x, x)" * n,
    lambda n: "x" + ".a" * n,
    lambda n: "has(x" + ".a" * n + ")",
    lambda n: "x" + ".a" * n + " == null",
    lambda n: "[0]" + "[0]" * n,
]


@pytest.mark.parametrize("make", DEEP)
def test_depth_is_limited_before_the_stack_overflows(make: Callable[[int], str]) -> None:
    context = {"x": {"a": None}}
    frames = sys.getrecursionlimit() // 2
    assert frames >= MAX_TREE_DEPTH * 3
    with pytest.raises(ExpressionError, match="levels"):
        compile_expression(make(1_000))
    refusals: list[str] = []
    for depth in range(
        MAX_NESTING - 3, MAX_TREE_DEPTH + 21, 7
    ):  # some of them are compiled, others refused; none crashes
        try:
            compile_expression(make(depth)).evaluate(context)
        except ExpressionError as error:
            refusals.append(error.message)
    assert refusals
    assert all("levels" in message or "null" in message or "no elements" in message for message in refusals)


def test_deep_data_is_refused() -> None:
    deep: Any = 1
    for _ in range(10_000):
        deep = [deep]
    assert "levels" in refused("x", {"x": deep})
    assert "levels" in refused("x == y", {"x": deep, "y": [deep[0]]})
    with pytest.raises(ExpressionError, match="levels"):
        compile_value(deep)


def test_long_sources_are_refused() -> None:
    with pytest.raises(ExpressionError, match="65,536 characters"):
        compile_expression("1" + " " * 70_000 + "+ 1")


def test_regular_expressions_are_linear() -> None:
    assert compile_expression("text.matches('(x+x+)+y')").evaluate({"text": "x" * 5000}) is False
