"""The columns that parameters of SQL are assigned to: what each holds, and what it would store only in part."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal

from saga_activities.parameters.json_parameters import UnusableParameter, as_json, for_array_column, for_json_column
from saga_activities.parameters.number_notations import refuse_notations
from saga_activities.parameters.text_literals import is_literal, item_texts, scalar_texts
from saga_activities.parameters.time_columns import HeldTime, in_utc, without_utc
from sagas.errors import UsageError
from sagas.sql_text.parameters.assigned_parameters import AssignedParameter
from sagas.text.exact_json import decimal_problem, number_text
from sagas.text.exact_numbers import is_exact_double, is_exact_single
from sagas.text.shortening import shorten

Parameters = Mapping[str, Any]
_EXACT_INTEGERS = 1 << 24
"""From here on a float of four bytes skips integers."""

NUMBER_TEXT = re.compile(r"\s*[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\s*", re.ASCII)
"""Text that is a number."""

_POSITION = re.compile(r"\s*[-+]?[0-9]+\s*", re.ASCII)
_MEMBER = re.compile(r"'([^']*)'")
"""The names of members in the type of a column; those with quotes are not digits."""

_EXACT_TEXT = re.compile(r"[-+]?[0-9]{1,7}")
"""A number that every column holds, or refuses itself."""

_MONEY_TEXT = re.compile(r"[-+($£€¥]*(\d[\d,]*\.\d+)[)$£€¥-]*", re.ASCII)
_LONGEST_AMOUNT = 64
_COORDINATES = re.compile(r"[-+0-9.eE\s,()<>\[\]{}]*\d\s*[,)][-+0-9.eE\s,()<>\[\]{}]*", re.ASCII)
_COORDINATE = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)


class InexactNumber(UsageError):
    """A number has more digits than its receiver holds, or text more characters."""


def is_any_number(value: Any) -> bool:
    """Return whether a value is a number for MySQL and MariaDB, as a boolean is."""
    return isinstance(value, int | float | Decimal)


def shown_operand(value: Any) -> str:
    """A number, a boolean or text for a message."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"the text {shorten(value)}" if isinstance(value, str) else str(value)


def needs_care(value: Any) -> bool:
    """Return whether a parameter has a number that some column would round."""
    if isinstance(value, list | tuple):
        return any(map(needs_care, value))
    if isinstance(value, int):
        return not -_EXACT_INTEGERS < value < _EXACT_INTEGERS
    return isinstance(value, Decimal) or (isinstance(value, float) and math.isfinite(value))


def is_long_number(text: str) -> bool:
    """Return whether text is a number that some column would round."""
    return NUMBER_TEXT.fullmatch(text) is not None and _EXACT_TEXT.fullmatch(text) is None


def is_rewritten(text: str) -> bool:
    """Return whether text is a number that SQLite would write in another way."""
    if NUMBER_TEXT.fullmatch(text) is None:
        return False
    number = Decimal(text.strip())
    if decimal_problem(number) is not None:
        return True
    is_integer = number == number.to_integral_value() and abs(number) < 1 << 63
    return text != (str(int(number)) if is_integer else repr(float(number)))


def has_numbers(text: str) -> bool:
    """Return whether text may be an array, a composite value, an amount or a point of PostgreSQL with such numbers."""
    return is_literal(text) or _amount(text) is not None or _COORDINATES.fullmatch(text) is not None


def _amount(text: str) -> str | None:
    """The number in an amount of money with a fraction, such as $1,012.35; None for other text."""
    amount = _MONEY_TEXT.fullmatch("".join(text.split())) if len(text) <= _LONGEST_AMOUNT else None
    return None if amount is None else amount[1].replace(",", "")


def exact_number(value: Any) -> Any:
    """A float as the decimal that its shortest text is; any other value as it is."""
    return Decimal(repr(value)) if isinstance(value, float) and math.isfinite(value) else value


Kind = Literal[
    "integer",
    "decimal",
    "double",
    "single",
    "number",
    "bits",
    "geometric",
    "text",
    "enum",
    "json",
    "composite",
    "other",
]


@dataclass(frozen=True, slots=True)
class ParameterColumn:
    """A column as far as it limits values. ``type`` is its name for messages; ``is_array``: of items of this kind;
    ``is_range``: with bounds of this kind; ``is_own``: its type, or a part of it, is that of an extension.

    ``low`` and ``high`` are the bounds of an integer; a year has a ``low`` above the years of two digits. ``precision``
    and ``scale`` are those of a decimal; None if it has no limit. ``printed`` is the number of digits with which the
    database writes a float of four bytes. ``length`` is that of a column of text which cuts blanks, in characters or in
    bytes. ``number`` is a column of SQLite that makes numbers of text, ``bits`` a ``bit`` of MySQL. ``time`` is what a
    column of times or dates holds. ``parts`` are the scalars in the fields of a composite column, with position and
    name of each field. ``rewrites_text``: SQLite makes a number of text there, although the type is none of numbers.
    """

    name: str
    type: str
    kind: Kind
    low: int = 0
    high: int = 0
    precision: int | None = None
    scale: int | None = None
    printed: int = 9
    length: int | None = None
    in_bytes: bool = False
    time: HeldTime | None = None
    is_array: bool = False
    is_range: bool = False
    is_own: bool = False
    rewrites_text: bool = False
    parts: tuple[tuple[tuple[int, str], ParameterColumn], ...] = ()

    def checked(self, target: AssignedParameter, value: Any, dialect: str) -> Any:
        """The value for this column. Raises :class:`InexactNumber`, UnusableParameter."""
        if not target.certain or self.parts:
            self.check_loss(target, value)
            return value
        shown = f"{self.name} of {target.name} ({self.type})"
        is_own = target.alone and not target.cast
        if is_own and self.is_array:
            value = for_array_column(target.parameter, value, shown, of_text=self.kind == "text")
        elif is_own and self.kind == "json":
            value = for_json_column(target.parameter, value, dialect, shown)
        elif is_own and self.kind == "text" and isinstance(value, list):
            return as_json(target.parameter, value)
        if isinstance(value, list | tuple):
            return [self.checked(target, item, dialect) for item in value]
        if self.kind in ("enum", "bits") and target.alone:
            self._check_member(target, value)
            if self.kind == "enum":
                return value
        if (self.is_array or self.is_range) and isinstance(value, str):
            self.check_loss(target, value)
            return value
        if self.time is not None and target.alone:
            self._check_time(target, value)
        if isinstance(value, str):
            self._check_text(target, value)
            return without_utc(value) if self.time is not None and dialect in ("mysql", "mariadb") else value
        number = exact_number(value)
        if not self._is_checked(value) or (isinstance(number, Decimal) and not number.is_finite()):
            return value
        if self.kind == "text" and dialect == "sqlite" and target.alone:
            return number_text(number)  # SQLite would write the digits of the double
        self._refuse(target, number_text(number), self._problem(number, target))
        if self.kind == "double" and dialect in ("mysql", "mariadb") and target.alone:
            return float(number)  # which may have more digits than a decimal
        # A float would become a decimal of 15 digits in the database.
        return number if self.kind in ("integer", "decimal") else value

    def check_loss(self, target: AssignedParameter, value: Any) -> None:
        """Refuse a value of which this column would store only a part. Raises :class:`InexactNumber`."""
        if isinstance(value, list | tuple):
            for item in value:
                self.check_loss(target, item)
            return
        for field, part in self.parts:
            if target.field is None or target.field in field:
                # A value for one field is not a literal of the whole.
                position = field[0] if target.field is None else None
                for item in (
                    [value] if not isinstance(value, str) else scalar_texts(value, composite=True, field=position)
                ):
                    part._check_literal_item(target, item)
        if (self.is_array or self.is_range) and isinstance(value, str):
            for item in item_texts(value) if self.is_range else scalar_texts(value, composite=False):
                self._check_literal_item(replace(target, alone=True), item)
        elif not self.parts:
            self._check_scalar_loss(target, value)

    def _check_literal_item(self, target: AssignedParameter, item: Any) -> None:
        """An item of a composite, an array or a range, which PostgreSQL alone has."""
        if self.kind in ("integer", "decimal", "double", "single"):
            refuse_notations(target.parameter, item)
        self._check_scalar_loss(target, item)

    def _check_member(self, target: AssignedParameter, value: Any) -> None:
        """Refuse what MySQL and MariaDB would take for the position of a member, the bits of several, or for bytes."""
        if self.kind == "bits":
            if isinstance(value, str):
                raise UnusableParameter(
                    f"the parameter {target.parameter} is {shown_operand(value)}, and the column {self.name} of"
                    f" {target.name} ({self.type}) would store the bytes of the text: give a number"
                )
            return
        is_position = isinstance(value, str) and _POSITION.fullmatch(value) is not None
        if is_any_number(value) or (is_position and value.rstrip() not in _MEMBER.findall(self.type)):
            raise UnusableParameter(
                f"the parameter {target.parameter} is {shown_operand(value)}, and the column {self.name} of"
                f" {target.name} ({shorten(self.type)}) would store the member at this position: give the member as"
                " text"
            )

    def _check_scalar_loss(self, target: AssignedParameter, value: Any) -> None:
        if self.kind in ("enum", "bits") and target.alone:
            self._check_member(target, value)
        if self.time is not None:
            self._check_time(target, value)
        number = exact_number(value)
        if isinstance(value, str):
            self._check_text(target, value)
        elif self._is_checked(value) and not (isinstance(number, Decimal) and not number.is_finite()):
            self._refuse(target, number_text(number), self._problem(number, replace(target, alone=False)))

    def _is_checked(self, value: Any) -> bool:
        return needs_care(value) or (self.low > 0 and isinstance(value, int))

    def _check_time(self, target: AssignedParameter, value: Any) -> None:
        assert self.time is not None
        number = exact_number(value)
        if isinstance(number, int | Decimal) and not isinstance(number, bool):
            if needs_care(number) and Decimal(number).is_finite():
                self._refuse(target, number_text(number), self.time.number_problem(Decimal(number)))
            return
        takes_time = (target.through or "").lower() in ("time", "timetz")  # of the value, as its author has written
        held = replace(self.time, date=True) if takes_time else self.time
        self._refuse(target, str(value), held.problem(in_utc(value) if target.zoned else value))
        is_read = target.certain or target.via is not None
        if is_read and (problem := self.time.form_problem(value)) is not None:
            raise InexactNumber(
                f"the parameter {target.parameter} is {shorten(value)}, and it is for the column {self.name} of"
                f" {target.name} ({self.type}): {problem}"
            )

    def _check_text(self, target: AssignedParameter, text: str) -> None:
        if self.length is not None and target.alone and text.endswith(" "):
            size, unit = (len(text.encode()), "bytes") if self.in_bytes else (len(text), "characters")
            if size > self.length:
                self._refuse(target, f"text of {size} {unit}", f"holds {self.length} and would cut blanks")
        if self.rewrites_text and is_rewritten(text):
            problem = "has numbers for SQLite, as its type has no TEXT in its name, and would store it as one"
            self._refuse(target, f"the text {shorten(text)}", problem)
        for number in map(Decimal, self._numbers(text)):
            asked = target if target.certain or target.via is not None else replace(target, alone=False)
            problem = decimal_problem(number)
            self._refuse(target, f"the text {text.strip()}", problem or self._problem(number, asked))

    def _numbers(self, text: str) -> list[str]:
        """The numbers that a column of this kind reads in text."""
        match self.kind:
            case "text" | "enum" | "json" | "composite" | "other":
                return []
            case "geometric":
                return _COORDINATE.findall(text)
            case "decimal" if NUMBER_TEXT.fullmatch(text) is None:
                return [amount] if (amount := _amount(text)) is not None else []
        return [text] if NUMBER_TEXT.fullmatch(text) else []

    def _refuse(self, target: AssignedParameter, value: str, problem: str | None) -> None:
        if problem is not None:
            shown, kind = shorten(value), "column" if target.table else "argument"
            column = f"the {kind} {self.name} of {target.name} ({self.type}) {problem}"
            if target.certain:
                raise InexactNumber(
                    f"the parameter {target.parameter} is {shown}, and {column}: change its type, or compute the value"
                    " that is to be stored"
                )
            if target.via is not None:
                raise InexactNumber(
                    f"the parameter {target.parameter} is {shown}, the column {target.via} may give it on, and"
                    f" {column}: change its type, or write a cast around what it gets, to the type that is to be stored"
                )
            if target.through is not None:
                raise InexactNumber(
                    f"the parameter {target.parameter} is {shown}, the function {target.through} may give it on"
                    f" unchanged, and {column}: write a cast around the call to the type that is to be stored, such as"
                    f" cast({target.through}(…) as {self.type})"
                )
            example = f", such as cast(:{target.parameter} as {self.type})" if self.kind == "decimal" else ""
            raise InexactNumber(
                f"the parameter {target.parameter} is {shown}, the statement does not show which column it reaches, and"
                f" {column}: write a cast to the type that is to be stored directly at the parameter{example}"
            )

    def _problem(self, value: int | Decimal, target: AssignedParameter) -> str | None:
        match self.kind:
            case "integer" | "bits" if value != int(value):
                return "holds integers only"
            case "integer" if target.alone and not self.low <= value <= self.high:
                return f"holds {self.low} to {self.high}{' in four digits' if self.low > 0 else ''}"
            case "double" | "geometric" if not is_exact_double(value):
                return "is a binary float and would round it"
            case "number" if not is_exact_double(value) and not (value == int(value) and -(1 << 63) <= value < 1 << 63):
                return "holds 64-bit integers and binary floats, and would round it"
            case "single" if not is_exact_single(value, self.printed):
                return "is a binary float of four bytes and would round it"
        if self.scale is None:
            return None
        if value != 0 and _last_place(value) < -self.scale:
            return f"holds {self.scale} digits after the point and would round it"
        room = (self.precision or 0) - self.scale
        if target.alone and self.precision is not None and value != 0 and _first_place(value) >= room:
            return f"holds {room} digits before the point"
        return None


def _last_place(number: int | Decimal) -> int:
    """The power of ten of the last digit that is not zero."""
    _, digits, exponent = Decimal(number).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    return exponent + len(text) - len(text.rstrip("0"))


def _first_place(number: int | Decimal) -> int:
    return Decimal(number).adjusted()
