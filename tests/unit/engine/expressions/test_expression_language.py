"""Deviations from CEL: exact decimals, null and missing fields, the extra functions, one-line errors."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from sagas.expressions import ExpressionError, compile_expression

CONTEXT: dict[str, Any] = {
    "input": {
        "basket_id": "b-7",
        "price": 0.1,
        "total": "2.50",
        "count": 3,
        "nothing": None,
        "lines": [{"sku": "x", "line_total": "1.10"}, {"sku": "y", "line_total": "2.20"}],
    },
    "steps": {"charge": {"result": None, "state": "UNKNOWN"}, "place": {"result": {"id": "o-1"}, "state": "DONE"}},
    "saga": {"started_at": "2026-05-01T23:30:00-02:00"},
}


def evaluate(source: str) -> Any:
    return compile_expression(source).evaluate(CONTEXT)


def mistake(source: str) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        evaluate(source)
    assert caught.value.offset >= 0
    return caught.value


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("input.price + input.price + input.price", Decimal("0.3")),
        ("0.1 + 0.2 == 0.3", True),
        ("1.10 + 2.20", Decimal("3.30")),
        ("3 * 1.10", Decimal("3.30")),
        ("-0.0", Decimal("-0.0")),
        ("1e3", Decimal("1E+3")),
        ("10.0 / 3", Decimal("3.333333333333333333333333333")),
        ("2 / 3.0", Decimal("0.6666666666666666666666666667")),
        ("10 / 3", 3),
        ("123456789012345678901234567890.5 + 0.25", Decimal("123456789012345678901234567890.75")),
        ("decimal('1.10') == decimal('1.1')", True),
        ("decimal(3)", Decimal("3")),
        ("decimal('1.5e2')", Decimal("1.5E+2")),
        ("double('1.5')", Decimal("1.5")),
        ("int(-2.9)", -2),
        ("int(timestamp('1970-01-01T00:01:00Z'))", 60),
        ("sum(input.lines.map(l, decimal(l.line_total)))", Decimal("3.30")),
        ("sum([])", 0),
        ("sum([1, 2])", 3),
        ("[1, 2.5].sum()", Decimal("3.5")),
        ("min([2, 1.5])", Decimal("1.5")),
        ("max(1, 3, 2)", 3),
        ("round(2.5)", 3),
        ("round(-2.5)", -3),
        ("round(2.345, 2)", Decimal("2.35")),
        ("round(7, 2)", Decimal("7.00")),
        ("sort([3, 1.5, 2])", [Decimal("1.5"), 2, 3]),
        ("sort(['b', 'a', '10', '9'])", ["10", "9", "a", "b"]),
        ("sort([])", []),
        ("join(['a', 'b'], '-')", "a-b"),
        ("['a', 'b'].join()", "ab"),
        ("'a-b'.split('-')", ["a", "b"]),
        ("split('ab', '')", ["a", "b"]),
        ("upper('straße')", "STRASSE"),
        ("sha256('abc')", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ("sha256('ä') == sha256('a')", False),
        ("sha256(1.10) == sha256('1.10')", True),
        ("uuid('python.org')", "cd5d0bff-2444-5d26-ab53-4f7db1cb733d"),
        ("uuid(12) == uuid('12')", True),
        ("'ABC'.lower()", "abc"),
        ("date(saga.started_at)", "2026-05-02"),
        ("date('2026-05-01')", "2026-05-01"),
        ("timestamp(saga.started_at) + duration('1h30m')", "2026-05-02T03:00:00Z"),
        ("timestamp('2026-05-01T00:00:01.25Z') - timestamp('2026-05-01T00:00:00Z')", "1.25s"),
        ("-duration('90s')", "-90s"),
        ("matches('abc', '^a.c$')", True),
        ("size('Grüße')", 5),
        ("string(true)", "true"),
        ("string(1.50)", "1.50"),
        ("bool('false')", False),
        ("[3, 0].exists(x, 6 / x == 2)", True),
        ("[0, 3].exists(x, 6 / x == 2)", True),
        ("[0, 3].all(x, 6 / x > 2)", False),
        ("{'b': 1, 'a': 2}.map(k, k)", ["a", "b"]),
        ("'order ' + input.basket_id", "order b-7"),
        ("input.basket_id + '-' + input.total", "b-7-2.50"),
        (".input.count // a root, and a comment", 3),
        ("input", {**CONTEXT["input"], "price": Decimal("0.1")}),
    ],
)
def test_values(source: str, value: Any) -> None:
    result = evaluate(source)
    assert result == value
    assert type(result) is type(value)
    assert str(result) == str(value)  # 1.10 is equal to 1.1, and has other digits


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("default(steps.charge.result.id, 'none')", "none"),
        ("default(steps.charge.result.deep.er.id, 'none')", "none"),
        ("default(steps.place.result.id, 'none')", "o-1"),
        ("default(input.nope, 1)", 1),
        ("default(input.nothing, 1)", 1),
        ("default(input.lines[9].sku, 'none')", "none"),
        ("input.nothing.default(1)", 1),
        ("default(sum(input.lines.map(l, l.nope)), 0)", 0),
        ("has(steps.charge.result.id)", False),
        ("has(input.nope.deeper)", False),
        ("has(steps.place.result.id)", True),
        ("steps.charge.result.id == null", True),
        ("null != steps.charge.result.id", False),
        ("steps.charge.result != null && steps.charge.result.id == 'x'", False),
        ("steps.charge.result == null ? 'none' : steps.charge.result.id", "none"),
    ],
)
def test_null_and_missing(source: str, value: Any) -> None:
    assert evaluate(source) == value


@pytest.mark.parametrize(
    ("source", "offset", "message"),
    [
        ("1 + input.baskt_id", 4, ["input has no field 'baskt_id'", "lines"]),
        ("inptu.x", 0, ["nothing named 'inptu'"]),
        ("steps.charge.result.id", 0, ["steps.charge.result is null", "test steps.charge.result != null"]),
        ("input.total * 2", 0, ["input.total (a string)", "2 (an integer)", "decimal(x)"]),
        ("input.total + input.basket_id", 0, ["input.total (a string)", "decimal(x)", "join"]),
        ("'9.00' > '10.00'", 0, ["decimal(x)"]),
        ("input.total == 2", 0, ["input.total (a string)", "decimal(x)"]),
        ("sum(['1'])", 0, ["sum takes numbers", "'1'", "decimal(x)"]),
        ("sum(3)", 0, ["sum takes a list"]),
        ("max(['1', 2])", 0, ["max takes numbers"]),
        ("round('1.5')", 0, ["round takes numbers"]),
        ("-input.total", 0, ["input.total (a string)"]),
        ("min([])", 0, ["empty list"]),
        ("sort([1, 'a'])", 0, ["numbers or a list of strings"]),
        ("join([1])", 0, ["join takes strings"]),
        ("1 / 0", 0, ["division by zero"]),
        ("5 % 2.0", 0, ["integers"]),
        ("input.lines[2]", 0, ["input.lines has no element 2", "it has 2"]),
        ("input.lines.sku", 0, ["input.lines is a list"]),
        ("input.count.map(x, x)", 0, ["map needs a list or a map", "input.count is an integer"]),
        ("true && input.total", 8, ["'&&'", "input.total is a string"]),
        ("{'a': 1, 'a': 2}", 9, ["'a' twice"]),
        ("{1: 2}", 1, ["keys are strings"]),
        ("'a'.matches('(')", 0, ["regular expression"]),
        ("decimal('1,5')", 0, ["'1,5' is not a decimal number"]),
        ("decimal('NaN')", 0, ["not a decimal number"]),
        ("timestamp('2026-02-30T00:00:00Z')", 0, ["calendar"]),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1h')", 0, ["calendar"]),
        ("'a' + input.nothing", 0, ["input.nothing (which is null)", "default(x, '')"]),
        ("'a' + 1", 0, ["string(x)"]),
        ("decimal('a\\n\\u001b')", 0, ["'a\\n\\x1b'"]),
        ("uint(1)", 0, ["write int(x)"]),
        ("now()", 0, ["write saga.started_at"]),
        ("summ([1])", 0, ["no function 'summ'", "'sum'"]),
        ("size()", 0, ["size takes 1 argument, not 0"]),
        ("contains('a', 'b')", 0, ["x.contains("]),
    ],
)
def test_mistakes_give_a_one_line_error(source: str, offset: int, message: list[str]) -> None:
    error = mistake(source)
    assert error.offset == offset
    assert "\n" not in error.message
    for word in message:
        assert word in error.message


@pytest.mark.parametrize(
    ("source", "offset", "message"),
    [
        ("", 0, "empty"),
        ("1 +", 3, "the end"),
        ("input.", 6, "field name"),
        ("a = b", 2, "=="),
        ("b'x'", 0, "bytes"),
        ("5u", 1, "unsigned"),
        ("'abc", 0, "closing '"),
        ("'a\\q'", 2, "escape"),
        ("if", 0, "reserved"),
        ("has(a)", 0, "has(input.coupon)"),
        ("default(a)", 0, "default(x, y)"),
        ("x.map(1, 2)", 2, "map takes a name"),
        ("a ${{ b }}", 2, "write the name alone"),
        ("${{ a }} and ${{ b }}", 0, "text around"),
    ],
)
def test_syntax_errors_say_where(source: str, offset: int, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_expression(source)
    assert (caught.value.offset, message in caught.value.message) == (offset, True)


def test_the_wrapper_is_optional_and_sources_are_cached() -> None:
    assert compile_expression("${{ input.count }}") is compile_expression("input.count")
    assert compile_expression(" input.count ").source == "input.count"


def test_a_result_is_independent_of_the_context() -> None:
    result = evaluate("input.lines")
    result[0]["sku"] = "changed"
    assert CONTEXT["input"]["lines"][0]["sku"] == "x"


def test_decimals_of_the_caller_do_not_depend_on_the_threads_context() -> None:
    from decimal import localcontext

    with localcontext() as context:
        context.prec = 3
        result = compile_expression("-x * 2 + 0.001").evaluate({"x": Decimal("12345.678")})
    assert result == Decimal("-24691.355")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Decimal("NaN"), object(), {1, 2}, b"x"])
def test_non_json_values_are_refused(value: Any) -> None:
    for source in ("x", "x + 1", "[x]", "x > 1"):
        with pytest.raises(ExpressionError):
            compile_expression(source).evaluate({"x": value})


def test_invalid_unicode_is_an_error_of_matches() -> None:
    with pytest.raises(ExpressionError, match="surrogate"):
        compile_expression("x.matches('a')").evaluate({"x": "\ud800"})


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            {"result": '{"id": "c-', "state": "DONE"},
            r'a body that is not JSON is a text, and this one begins "{\"id\": \"c-"',
        ),
        ({"result": "x" * 100, "state": "DONE"}, 'begins "' + "x" * 60 + '"…'),
        ({"result": None, "state": "DONE"}, "is done without a result, as after an HTTP answer without a body"),
        ({"result": None, "state": "SKIPPED"}, "if it was skipped, its outcome is unknown or it returned none"),
    ],
)
def test_a_result_without_the_field_says_what_it_is(step: dict[str, Any], message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_expression("steps.pay.result.id").evaluate({"steps": {"pay": step}})
    assert message in caught.value.message
