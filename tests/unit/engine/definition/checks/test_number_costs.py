"""A number costs what its text costs: an exponent of three digits is not a thousand zeros."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sagas.definition.input_validation import validate_input
from sagas.definition.model import Definition
from sagas.expressions.work_budget import bounded
from sagas.input_limits import MAX_CHECK_STEPS
from sagas.protocol.payloads import input_digest
from sagas.text.exact_json import decode_json, encode_json
from sagas.text.exact_numbers import comparable_json
from sagas.text.json_values import json_problem

PLAIN = 21
"""Characters of the longest integer that is written with all of its zeros, and a sign."""

GROWTH = 8
"""Characters that a number may have more in the comparable form, as with the point in 123e-300."""


@st.composite
def numbers(draw: st.DrawFn) -> str:
    """The text of a number, mostly with an exponent."""
    sign = draw(st.sampled_from(["", "-"]))
    whole = draw(st.from_regex(r"(0|[1-9][0-9]{0,30})0{0,40}", fullmatch=True))
    whole = whole.lstrip("0") or "0"
    fraction = draw(st.from_regex(r"(\.[0-9]{1,30}0{0,30})?", fullmatch=True))
    exponent = draw(st.none() | st.integers(-930, 930))
    return sign + whole + fraction + ("" if exponent is None else f"e{exponent}")


@given(numbers())
@example("1e999")
@example("-1e999")
@example("0e999")
@example("1e-999")
@example("1" + "0" * 3999)
def test_the_comparable_form_is_hardly_longer_than_the_text(text: str) -> None:
    assert len(comparable_json(decode_json(text))) <= max(len(text) + GROWTH, PLAIN)


@given(numbers())
@example("1e20")
@example("1e19")
@example("-12e30")
@example("0e5")
@example("-0")
def test_equal_numbers_have_one_digest(text: str) -> None:
    number = decode_json(text)
    written = f"{number:f}" if not isinstance(number, int) else str(number)
    assert input_digest([number]) == input_digest([decode_json(written)])
    assert input_digest([number]) == input_digest([decode_json(f"{written}{'' if '.' in written else '.0'}00")])


@given(numbers(), numbers())
@example("1e999", "1e998")
@example("1e20", "-1e20")
@example("100000000000000000001", "1e20")
def test_other_numbers_have_other_digests(text: str, other: str) -> None:
    first, second = decode_json(text), decode_json(other)
    assert (input_digest(first) == input_digest(second)) == (first == second)


def definition(schema: Any) -> Definition:
    return Definition(
        saga="numbers", steps=(), input={"properties": {"xs": {"items": schema}}}, digest="sha256:numbers"
    )


@pytest.mark.parametrize("text", ["1e999", "12.5e300", "-1e640"])
def test_integers_with_exponents_are_refused_before_their_digits_are_too_many(text: str) -> None:
    few, many = decode_json(f"[{text}]"), decode_json(f"[{','.join([text] * 100_000)}]")
    value, problems = validate_input(definition({"type": "integer"}), {"xs": few})
    assert not problems
    assert value["xs"] == [int(few[0])]
    assert isinstance(value["xs"][0], int)
    value, problems = validate_input(definition({"type": "integer"}), {"xs": many})
    assert problems
    assert "too large for the schema" in problems[0]
    assert value["xs"] is many


def test_integers_with_exponents_are_charged_by_their_digits() -> None:
    given = {"xs": decode_json(f"[{','.join(['1e999'] * 1_000)}]")}
    with bounded() as budget:
        value, problems = validate_input(definition({"type": "integer"}), given)
    assert not problems
    assert len(encode_json(value)) / (MAX_CHECK_STEPS - budget.remaining) < 32


@pytest.mark.parametrize(
    ("text", "schema", "at_least"),
    [
        ("9" * 3_999, {"minimum": 0.5}, 100),
        ("9" * 3_999, {"multipleOf": 0.5}, 100),
        ("1e999", {"multipleOf": decode_json("7.77e-900")}, 10),
        ("7", {"multipleOf": decode_json("7.77e-900")}, 7),
        ("1e999", {"minimum": int("9" * 2_900)}, 80),
    ],
)
def test_a_comparison_with_a_number_of_many_digits_is_charged(text: str, schema: Any, at_least: int) -> None:
    with bounded() as budget:
        validate_input(definition(schema), {"xs": decode_json(f"[{','.join([text] * 20)}]")})
    assert MAX_CHECK_STEPS - budget.remaining >= 20 * at_least


@given(st.lists(numbers(), max_size=20))
def test_the_value_of_a_number_is_not_changed(texts: list[str]) -> None:
    given = {"xs": decode_json(f"[{','.join(texts)}]")}
    assert json_problem(given) is None
    value, problems = validate_input(definition({"type": ["integer", "number"]}), given)
    assert not problems
    assert value == given
    assert input_digest(value) == input_digest(given)
