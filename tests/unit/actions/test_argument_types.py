"""Arguments of Python actions arrive in their type, or are refused: nothing that JSON tells apart is converted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    RootModel,
    WithJsonSchema,
    model_validator,
)
from typing_extensions import TypedDict

from sagas.actions.registry import Action
from sagas.definition.action_arguments import bind

EXACT = Decimal("123456789012345678901234567890.10")
BEYOND = 2**53 + 1


class Fee(Enum):
    LOW = Decimal("0.10")
    NONE = 0


class Renamed(BaseModel):
    count: int = Field(alias="Count")


class Both(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    count: int = Field(alias="Count")
    note: int = Field(0, alias="Note")


class Choices(BaseModel):
    count: int = Field(0, validation_alias=AliasChoices("n", "number"))


class Tree(BaseModel):
    size: int
    parts: list[Tree] = []


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int


class Lenient(BaseModel):
    size: int

    @model_validator(mode="before")
    @classmethod
    def of_text(cls, value: Any) -> Any:
        return {"size": int(value)} if isinstance(value, str) else value


class Sizes(TypedDict):
    width: int


@dataclasses.dataclass
class Line:
    quantity: int
    price: Decimal = Decimal("1.50")


def _cents(value: Any) -> Any:
    return int(value)


Cents = Annotated[int, BeforeValidator(_cents)]

TAKEN: list[tuple[Any, Any, Any]] = [
    (int, 12, 12),
    (int, Decimal("12.0"), 12),
    (int, Decimal("1e2"), 100),
    (int, BEYOND, BEYOND),
    (Annotated[int, Field(strict=True)], Decimal("12.0"), 12),
    (float, Decimal("0.10"), 0.1),
    (float, 3, 3.0),
    (Decimal, EXACT, EXACT),
    (Decimal, BEYOND, Decimal(BEYOND)),
    (Decimal, "12.50", Decimal("12.50")),
    (Fee, Decimal("0.1"), Fee.LOW),
    (Fee, 0, Fee.NONE),
    (Literal["a", 1], 1, 1),
    (int | str | None, "12", "12"),
    (int | str | None, None, None),
    (bool | int, True, True),
    (list[int] | list[str], ["1"], ["1"]),
    (set[int], [1, Decimal("2.0")], {1, 2}),
    (tuple[int, str], [1, "a"], (1, "a")),
    (Sequence[int], [1], [1]),
    (dict[int, str], {"-7": "a"}, {-7: "a"}),
    (dict[bool, int], {"true": 1}, {True: 1}),
    (dict[date, int], {"2026-05-01": 1}, {date(2026, 5, 1): 1}),
    (Mapping[str, Any], {"007": Decimal("1.10")}, {"007": Decimal("1.10")}),
    (datetime, "2026-05-01T10:00:00", datetime(2026, 5, 1, 10)),
    (datetime, "2026-05-01T10:00:00.123456000+00:00", datetime.fromisoformat("2026-05-01T10:00:00.123456+00:00")),
    (date, "2026-05-01", date(2026, 5, 1)),
    (time, "10:00:00", time(10)),
    (timedelta, "-P1DT2H", -timedelta(days=1, hours=2)),
    (timedelta, "1 day 02:00:00.5", timedelta(days=1, hours=2, seconds=0.5)),
    (UUID, "6f1c1f6e-7a0e-4d43-9f5e-0a54d2a8a111", UUID("6f1c1f6e-7a0e-4d43-9f5e-0a54d2a8a111")),
    (bytes, "ab", b"ab"),
    (Renamed, {"Count": Decimal("3.0")}, Renamed(Count=3)),
    (Both, {"Count": 3}, Both.model_validate({"Count": 3})),
    (Both, {"count": 3, "note": 4}, Both.model_validate({"Count": 3, "Note": 4})),
    (Choices, {"number": 3}, Choices.model_validate({"n": 3})),
    (Tree, {"size": 1, "parts": [{"size": 2}]}, Tree(size=1, parts=[Tree(size=2)])),
    (Sizes, {"width": 1}, {"width": 1}),
    (Line, {"quantity": 2}, Line(2)),
    (RootModel[list[int]], [1], RootModel[list[int]]([1])),
    (Cents, "12", 12),  # the author's validator decides
    (Lenient, "12", Lenient(size=12)),
    (Annotated[int, PlainValidator(_cents)], "12", 12),
    (Annotated[int, BeforeValidator(_cents, json_schema_input_type=int | str)], "12", 12),
    (Any, {"a": [Decimal("1.10"), True]}, {"a": [Decimal("1.10"), True]}),
    (object, "12", "12"),
]

REFUSED: list[tuple[Any, Any, str]] = [
    (int, "12", r"argument x is text, and the parameter is a whole number; convert it with int\(…\)"),
    (int, True, "argument x: the value is not a whole number"),
    (int, Decimal("12.5"), "argument x: the value is not a whole number"),
    (bool, 1, "argument x: the value is not true or false"),
    (bool, "true", r"argument x is text, and the parameter is true or false; convert it with bool\(…\)"),
    (float, "1.5", r"argument x is text, and the parameter is a number; convert it with decimal\(…\)"),
    (float, False, "argument x: the value is not a number"),
    (float, BEYOND, "has more digits than a binary float holds"),
    (list[float], [EXACT], r"argument x\[0\]: the value has more digits than a binary float holds"),
    (Decimal, "4929 1234", "argument x: the value is not a number"),
    (Decimal, "1_000", "argument x: the value is not a number"),
    (Decimal, "NaN", "argument x: the value is not a number"),
    (list[Decimal], ["007"], r"argument x\[0\]: the value is not a number"),
    (Decimal, True, "argument x: the value is not a number"),
    (str, 1, "argument x: the value is not a string"),
    (Fee, "0.10", "argument x: the value is not one of 0.10, 0"),
    (Fee, False, "argument x: the value is not one of"),
    (Literal["a", 1], True, "argument x: the value is not one of"),
    (int | None, "12", "argument x: the value is not a whole number or null"),
    (set[int], ["1"], r"argument x\[0\] is text"),
    (set[int], [1, Decimal("1.0")], "the list has equal elements"),
    (tuple[int, str], ["1", "a"], r"argument x\[0\] is text"),
    (dict[int, str], {"007": "a"}, "argument x: a name is not a whole number without leading zeros"),
    (dict[int, str], {"1_0": "a"}, "a name is not a whole number"),
    (dict[bool, int], {"yes": 1}, "a name is not one of"),
    (dict[datetime, int], {"1700000000": 1}, "a name is not a date and a time"),
    (dict[str, dict[str, int]], {"a": {"b": "1"}}, r"argument x\.a\.b is text"),
    (datetime, "1700000000", "argument x: the value is not a date and a time"),
    (datetime, 1700000000, "argument x: the value is not a string"),
    (datetime, "2026-05-01", "argument x: the value is not a date and a time"),
    (datetime, "2026-05-01T10:00:00.1234567Z", "at most six digits"),
    (datetime, "2026-13-01T10:00:00Z", "argument x: input should be a valid datetime"),
    (date, "2026-05-01T00:00:00", "argument x: the value is not a date"),
    (date, 0, "argument x: the value is not a string"),
    (time, 3600, "argument x: the value is not a string"),
    (timedelta, 60, "argument x: the value is not a string"),
    (timedelta, "P1M", "argument x: the value is not a duration in days and smaller units"),
    (UUID, "6f1c1f6e7a0e4d439f5e0a54d2a8a111", "argument x: the value is not"),
    (bytes, 1, "argument x: the value is not a string"),
    (Renamed, {"Count": "3"}, r"argument x\.Count is text"),
    (Both, {"count": "3"}, r"argument x\.count is text"),
    (Both, {"Count": 1, "note": "4"}, r"argument x\.note is text"),
    (Both, {"Count": 1, "count": 2}, "fits more than one part of `oneOf`"),
    (Both, {}, "argument x"),
    (Choices, {"number": "3"}, r"argument x\.number is text"),
    (Tree, {"size": 1, "parts": [{"size": "2"}]}, r"argument x\.parts\[0\]\.size is text"),
    (Closed, {"size": 1, "sise": 2}, "argument x has the unknown field `sise`"),
    (Sizes, {"width": "1"}, r"argument x\.width is text"),
    (Line, {"quantity": True}, r"argument x\.quantity: the value is not a whole number"),
    (Line, {}, "argument x needs `quantity`"),
    (Annotated[int, Field(ge=3)], 2, "argument x: the value is less than 3"),
    (Annotated[int, WithJsonSchema({"type": "string"})], 12, "argument x: the value is not a string"),
    (Cents, [], "argument x: a validator of its type raised TypeError; it must raise ValueError"),
]


def bind_to(annotation: Any, value: Any) -> Any:
    def take(x: Any) -> None: ...

    take.__annotations__ = {"x": annotation}
    return bind(Action("stock.take", take), {"x": value})["x"]


@pytest.mark.parametrize(("annotation", "value", "expected"), TAKEN)
def test_a_value_that_fits_arrives_in_its_type(annotation: Any, value: Any, expected: Any) -> None:
    taken = bind_to(annotation, value)
    assert (taken, type(taken)) == (expected, type(expected))


@pytest.mark.parametrize(("annotation", "value", "message"), REFUSED)
def test_a_value_of_another_type_is_refused(annotation: Any, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^stock\.take: .*{message}"):
        bind_to(annotation, value)


def test_the_message_does_not_quote_a_value_that_may_be_a_secret() -> None:
    with pytest.raises(ValueError, match="is text") as refused:
        bind_to(list[int], ["4929 1234"])
    assert "4929" not in str(refused.value)
