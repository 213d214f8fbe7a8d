"""Arguments and results of Python actions: numbers with every digit, whatever type the author uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel, RootModel, field_serializer
from pydantic.dataclasses import dataclass as pydantic_dataclass

from saga_activities.bodies.python_action import InvalidArguments, bind_arguments, jsonable
from saga_activities.json_results import UnusableResult
from sagas.actions.registry import ACTION_ATTRIBUTE, Done, action
from sagas.text.exact_json import encode_json

LONG = Decimal("123456789012345678901234567890.10")


class Price(BaseModel):
    amount: Decimal
    rate: float = 0.1
    at: datetime = datetime(2026, 5, 1, tzinfo=UTC)
    by_size: dict[str, list[Decimal]] = {}


class Shown(BaseModel):
    amount: Decimal

    @field_serializer("amount", when_used="json")
    def write(self, amount: Decimal) -> str:
        return f"EUR {amount}"


@dataclass
class Order:
    price: Price
    total: Decimal = LONG
    lines: tuple[Decimal, ...] = field(default=(Decimal("1.10"),))


@pydantic_dataclass
class Line:
    price: Decimal


class Fee(Enum):
    LOW = Decimal("0.10")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (LONG, "123456789012345678901234567890.10"),
        (2**70, "1180591620717411303424"),
        (0.1, "0.1"),
        (Fee.LOW, "0.10"),
        ({"a": [Decimal("1.10"), {2.5}]}, '{"a":[1.10,[2.5]]}'),
        (Line(Decimal("2.00")), '{"price":2.00}'),
        (RootModel[list[Decimal]]([Decimal("1.0")]), "[1.0]"),
        (
            Order(Price(amount=LONG, by_size={"s": [Decimal("1.10")]})),
            '{"price":{"amount":123456789012345678901234567890.10,"rate":0.1,"at":"2026-05-01T00:00:00Z",'
            '"by_size":{"s":[1.10]}},"total":123456789012345678901234567890.10,"lines":[1.10]}',
        ),
        (Shown(amount=Decimal("1.10")), '{"amount":"EUR 1.10"}'),  # the author's own form
    ],
)
def test_a_result_keeps_its_digits(value: Any, text: str) -> None:
    assert encode_json(jsonable(value)).decode() == text
    answer = jsonable(Done({"result": value}))
    assert encode_json(answer.result).decode() == f'{{"result":{text}}}'


@pytest.mark.parametrize("value", [float("inf"), {"a": Decimal("NaN")}, Price(amount=Decimal(1), rate=float("nan"))])
def test_a_result_without_a_json_number_is_refused(value: Any) -> None:
    with pytest.raises(UnusableResult, match="JSON has no such number"):
        jsonable(value)


class Counts(BaseModel):
    by_size: dict[int | str, int]


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        ({1: "a", "1": "b"}, "1 and '1'"),
        ({"rows": [{"1": "b", 1: "a"}]}, "'1' and 1"),
        ({True: "a", "true": "b"}, "True and 'true'"),
        (Counts(by_size={1: 2, "1": 3}), "1 and '1'"),
        (Done({"result": {Decimal("1.0"): "a", "1.0": "b"}}), "Decimal('1.0') and '1.0'"),
    ],
)
def test_keys_with_one_name_are_refused(value: Any, keys: str) -> None:
    """The later of them would replace the earlier."""
    with pytest.raises(UnusableResult, match=re.escape(f"the keys {keys} of one object have the same name in JSON")):
        jsonable(value)


def test_keys_of_other_types_become_names() -> None:
    assert jsonable({1: "a", "2": "b", datetime(2026, 5, 1): "c"}) == {"1": "a", "2": "b", "2026-05-01T00:00:00": "c"}


@action("typed")
async def typed(
    exact: Decimal, model: Price, line: Line, count: int, inexact: float = 0.0, any: Any = None, text: str = ""
) -> None: ...


def bind(**arguments: Any) -> Mapping[str, Any]:
    given = {"exact": LONG, "model": {"amount": LONG}, "line": {"price": LONG}, "count": 12, **arguments}
    return bind_arguments(getattr(typed, ACTION_ATTRIBUTE), given, "typed")


def test_arguments_keep_their_digits() -> None:
    bound = bind(count=Decimal("12.0"), any={"x": [Decimal("1.10")]}, inexact=Decimal("0.10"))
    assert (str(bound["exact"]), str(bound["model"].amount), str(bound["line"].price)) == (str(LONG),) * 3
    assert (bound["count"], type(bound["count"])) == (12, int)
    assert str(bound["any"]["x"][0]) == "1.10"
    assert (bound["inexact"], type(bound["inexact"])) == (0.1, float)
    assert bind(count=2**70)["count"] == 2**70


@pytest.mark.parametrize("wrong", [{"count": Decimal("12.5")}, {"text": Decimal("1.10")}, {"text": 1}])
def test_arguments_of_another_type_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArguments, match=next(iter(wrong))):
        bind(**wrong)


@pytest.mark.parametrize("result", [b"ab", {"token": b"\xff"}, [bytearray(b"\xff")], object()])
def test_what_is_no_data_is_refused_in_a_sentence(result: Any) -> None:
    with pytest.raises(UnusableResult, match=r"no form for bytes|cannot be written as JSON"):
        jsonable(result)
