"""Charges of an operation follow the work that it does, also where the work grows faster than its operands."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from sagas.expressions import ExpressionError, compile_expression
from sagas.expressions.errors import LimitError
from sagas.expressions.limits import MAX_STEPS, MAX_VALUE_STEPS, WORK_PER_STEP, WorkMeter
from sagas.text.exact_json import decode_json, encode_json

MIB = 1_048_576
KEY = "k" * 900_000
FLOATS = [1.5 + at for at in range(1_000)]
CONTEXT: dict[str, Any] = {
    "n": list(range(1_000)),
    "note": "a" * 29_000,
    "skus": [f"{'a' * 50}b{'a' * 46}{at % 10}" for at in range(3_300)],
    "needle": "a" * 97 + "b",
    "short": "a" * 2_490,
    "middle": "a" * 600 + "b" + "a" * 600,
    "most": "a" * 900_000,
    "almost": "a" * 450_000 + "b" + "a" * 447_999,
    "space": "a" * 300_000 + " ",
    "question": "a" * (MIB - 1) + "?",
    "half": "a" * (MIB - 1) + "\ud800",
    "capitals": "\u0130" * 100_000,
    "folders": "a/" * 100_000,
    "map": {KEY: 1},
    "same": decode_json(encode_json({KEY: 1})),
    "key": decode_json(encode_json(KEY)),
    "wide": [f"{'a' * 15_000}{'b' if at % 2 else '中'}{at * 37 % 60}" for at in range(60)],
    "keys": {f"{'a' * 15_000}{'b' if at % 2 else '中'}{at * 37 % 60}": 1 for at in range(60)},
    "floats": FLOATS,
    "copy": list(FLOATS),
    "fraction": "1." + "1" * 990,
    "long": "1h1m1s1ms1us" * 8,
    "digits": "7" * 300,
    "number": 10**300,
    "day": "2026-01-01",
}


def steps(source: str, context: dict[str, Any] | None = None) -> int:
    """Steps that one evaluation takes, with or without a result."""
    meter = WorkMeter()
    with contextlib.suppress(ExpressionError):
        compile_expression(source).evaluate(CONTEXT if context is None else context, meter)
    return meter.steps + meter.work // WORK_PER_STEP


@pytest.mark.parametrize(
    ("source", "least"),
    [
        ("note.contains(needle)", 700),
        ("short.contains(middle)", 350),
        ("most.contains(almost)", MAX_STEPS),
        ("note.split(needle)", 700),
        ("short.split(middle)", 350),
        ("most.split(almost)", MAX_STEPS),
        ("url_segment(space)", 4_500),
        ("url_path(space)", 4_500),
        ("url_path(question)", 1_000),
        ("url_segment(half)", 16_000),
        ("lower(capitals)", 450),
        ("upper(capitals)", 450),
        ("path_part(folders)", 3_000),
        ("key in map", 850),
        ("map[key]", 850),
        ("default(map[key], 1)", 850),
        ("map == same", 850),
        ("sort(wide)", 5_000),
        ("keys.all(k, true)", 5_000),
        ("wide == wide", 800),
        ("floats == copy", 1_700),
        ("n.map(x, default(n[5000], 1)).size()", 4_000),
        ("n.exists(x, x == 'a' || x == 'b')", 7_000),
        ("n.exists(x, missing)", 4_000),
        ("n.all(x, decimal(fraction) != 0)", 9_000),
        ("n.all(x, int(1e999) != 0)", 4_000),
        ("n.all(x, round(1e899) != 0)", 4_000),
        ("[decimal(fraction)].all(d, n.all(x, string(d) != ''))", 4_500),
        ("n.all(x, string(number) != '')", 2_500),
        ("n.all(x, decimal(number) != 0)", 2_800),
        ("n.all(x, int(digits) != 0)", 3_000),
        ("n.all(x, x * 0.1 != -1)", 2_500),
        ("n.all(x, x + 0.1 != 0)", 2_000),
        ("n.all(x, duration(long) == duration(long))", 25_000),
        ("n.all(x, date(day) == date(day))", 6_000),
        ("n.all(x, timestamp('2026-01-01T00:00:00Z') == timestamp('2026-01-01T00:00:00Z'))", 5_000),
        ("n.all(x, bool('true'))", 1_200),
        ("''.matches('[^\\\\pL]{0,100}')", 2_000),
        ("n.map(x, 0.5)", 2_000),
        ("floats", 1_300),
    ],
)
def test_the_charge_follows_the_work(source: str, least: int) -> None:
    assert steps(source) >= least


@pytest.mark.parametrize(
    "source",
    [
        "skus.exists(sku, note.contains(sku))",
        "n.exists(x, short.contains(middle))",
        "n.exists(x, note.split(needle) == [])",
        "n.exists(x, most.contains(almost))",
        "n.exists(x, map != same)",
        "n.all(x, key in same)",
        "n.all(x, sort(wide) != [])",
        "n.exists(x, ''.matches('[^\\\\pL]{0,100}' + string(x)))",
    ],
)
def test_hostile_data_ends_at_the_limit(source: str) -> None:
    with pytest.raises(LimitError, match=f"{MAX_STEPS:,} evaluation steps"):
        compile_expression(source).evaluate(CONTEXT)


def test_work_and_steps_have_one_limit() -> None:
    """The limit holds also when all of the work comes first, and only steps follow."""
    before, after = "lower(text) != ''", "n.all(a, m.all(b, true))"
    context = {"text": "\u0130" * 300_000, "n": list(range(99)), "m": list(range(999))}
    assert steps(before, context) + steps(after, context) > MAX_STEPS
    compile_expression(after).evaluate(context)
    with pytest.raises(LimitError, match=f"{MAX_STEPS:,} evaluation steps"):
        compile_expression(f"{before} && {after}").evaluate(context)


@pytest.mark.parametrize(
    ("source", "most"),
    [
        ("input.note.contains('gift')", 1),
        ("input.account.startsWith('DE')", 0),
        ("input.tags.split(',').size()", 4),
        ("decimal(input.amount) * 3 > 100", 3),
        ("'order-' + input.account", 0),
        ("sum(input.lines.map(l, decimal(l.total)))", 8_000),
    ],
)
def test_ordinary_expressions_are_cheap(source: str, most: int) -> None:
    lines = [{"total": f"{at}.99"} for at in range(2_000)]
    order = {"note": "please wrap it " * 10, "account": "DE-4711", "tags": "a,b,c", "amount": "19.99", "lines": lines}
    assert steps(source, {"input": order}) <= most


def test_work_counts_as_steps_of_a_task() -> None:
    meter = WorkMeter()
    with pytest.raises(LimitError):
        compile_expression("n.all(x, !note.contains(needle))").evaluate(CONTEXT, meter)
    assert meter.steps < 50_000
    assert meter.exceeds(50_000)


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("source", ["[big, big, big]", "{'a': big, 'b': big}", "[1, 2, 3].map(x, big)"])
def test_copies_of_large_values_are_charged_before_they_are_made(source: str) -> None:
    meter = WorkMeter()
    with pytest.raises(LimitError, match="the results of one value have more than 600,000 values"):
        compile_expression(source).evaluate({"big": list(range(350_000))}, meter)
    assert meter.exceeds(MAX_VALUE_STEPS - 1)
    meter.begin_value()
    compile_expression("big").evaluate({"big": list(range(350_000))}, meter)
    with pytest.raises(LimitError, match="of one value"):
        compile_expression("big").evaluate({"big": list(range(350_000))}, meter)


def test_classes_of_unicode_are_charged() -> None:
    plain, classes = WorkMeter(), WorkMeter()
    compile_expression("'a'.matches('[abc]')").evaluate({}, plain)
    compile_expression(r"'a'.matches('(?i)[\\pL\\pN\\pM\\PS]')").evaluate({}, classes)
    assert classes.steps >= plain.steps + 80


def test_the_work_of_one_value_is_limited_together() -> None:
    meter = WorkMeter()
    expression = compile_expression("n.all(x, duration(long) == duration(long) && duration(long) == duration(long))")
    while meter.steps + meter.work // WORK_PER_STEP <= MAX_VALUE_STEPS:
        expression.evaluate(CONTEXT, meter)
    assert meter.steps < MAX_VALUE_STEPS
    with pytest.raises(LimitError, match=f"one value need more than {MAX_VALUE_STEPS:,} evaluation steps"):
        expression.evaluate(CONTEXT, meter)
    meter.begin_value()
    expression.evaluate(CONTEXT, meter)
