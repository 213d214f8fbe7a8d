"""Expressions inside JSON values."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from sagas.expressions import ExpressionError, compile_value

CONTEXT: dict[str, Any] = {
    "input": {
        "id": "b-7",
        "n": 3,
        "price": 1.50,
        "exact": Decimal("1.10"),
        "exponent": Decimal("1e2"),
        "yes": True,
        "nothing": None,
        "tags": ["x", {"b": 1, "a": 2}],
    }
}


@pytest.mark.parametrize(
    ("value", "rendered"),
    [
        ("${{ input.n }}", 3),
        (" ${{ input.n }}", " 3"),
        ("${{ input.tags }}", ["x", {"b": 1, "a": 2}]),
        ("${{ input.nothing }}", None),
        ("${{ input.price }}", Decimal("1.5")),
        ("order-${{ input.id }}-${{input.n}}", "order-b-7-3"),
        ("${{ input.yes }}/${{ input.price }}", "true/1.5"),
        ("${{ input.exact }}", Decimal("1.10")),
        ("v${{ input.exact }}", "v1.10"),
        ("v${{ input.exponent }}", "v100"),
        ("v${{ input.exact + 1 }}", "v2.10"),
        ("v${{ [input.exact] }}", "v[1.10]"),
        ("tags: ${{ input.tags }}", 'tags: ["x", {"a": 2, "b": 1}]'),
        ("${{ {'a': {'b': 1}} }}", {"a": {"b": 1}}),
        ("${{ {'a': {'b': 1}}}}", {"a": {"b": 1}}),
        ("x${{ '}}' + \"}}\" + r'\\' }}y", "x}}}}\\y"),
        ("${{ '''it's }}''' }}", "it's }}"),
        ("${{ 1 // it's one\n + 1 }}", 2),
        ("${{ 1 // one }}", 1),
        ("$${{ input.n }}", "${{ input.n }}"),
        ("$${{ a }} ${{ input.n }} $${{ b }}", "${{ a }} 3 ${{ b }}"),
        ("$$${{ x", "$${{ x"),
        ("{{ x }} }} $ {", "{{ x }} }} $ {"),
        ({"a": ["${{ input.n }}", 1.5, None]}, {"a": [3, 1.5, None]}),
        ({"${{ key }}": "${{ input.id }}"}, {"${{ key }}": "b-7"}),
    ],
)
def test_render(value: Any, rendered: Any) -> None:
    result = compile_value(value).render(CONTEXT)
    assert result == rendered
    assert type(result) is type(rendered)


@pytest.mark.parametrize("value", [None, 1.5, "plain", [], {"a": [1, {"b": "c"}]}])
def test_a_constant_is_rendered_as_itself(value: Any) -> None:
    template = compile_value(value)
    assert template.expressions == ()
    assert template.render({}) is value


def test_expressions_report_their_position() -> None:
    template = compile_value({"a": ["x", "no. ${{  input.n }} of ${{ input.id }}"], "b": "${{ input.n }}"})
    assert [(path, expression.source) for path, expression in template.expressions] == [
        (("a", 1), "input.n"),
        (("a", 1), "input.id"),
        (("b",), "input.n"),
    ]
    assert template.offsets == (9, 27, 4)


def test_null_inside_text_is_an_error() -> None:
    with pytest.raises(ExpressionError, match=r"input\.nothing is null and cannot be part of a string"):
        compile_value("x-${{ input.nothing }}").render(CONTEXT)


@pytest.mark.parametrize(
    ("string", "offset", "message"),
    [
        ("ab ${{ 1 + }}", 10, "expected a value"),
        ("${{ a }} ${{ b * / c }}", 17, "expected a value"),
        ("${{ a.in.b }}", 6, "'in' is a word of CEL; write [\"in\"] for the field of this name"),
        ("ab ${{ a", 3, "not closed"),
        ("${{ 'a }}", 0, "not closed"),
        ("${{ }}", 4, "empty"),
    ],
)
def test_errors_say_where(string: str, offset: int, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_value({"with": [string]})
    assert (caught.value.path, caught.value.offset) == (("with", 0), offset)
    assert message in caught.value.message
