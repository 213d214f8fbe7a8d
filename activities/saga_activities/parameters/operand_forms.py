"""Parameters as operands: numbers where the database computes or counts, times where it compares them.

MySQL, MariaDB and SQLite compute with text as with a binary float, or with the number at its beginning, and all
databases round a number with a fraction where they count. PostgreSQL knows the types of its operands, see
postgresql_places.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from saga_activities.parameters.json_parameters import UnusableParameter
from saga_activities.parameters.parameter_columns import (
    NUMBER_TEXT,
    InexactNumber,
    ParameterColumn,
    exact_number,
    is_any_number,
    is_rewritten,
    shown_operand,
)
from saga_activities.parameters.time_columns import HeldTime, without_utc
from sagas.sql_text.parameters.compared_parameters import ComparedParameter
from sagas.sql_text.parsed import ParsedSql
from sagas.text.exact_json import decimal_problem
from sagas.text.shortening import shorten

NUMBERS = ("integer", "decimal", "double", "single", "number")
"""The kinds of columns that have numbers."""

_INTEGER = re.compile(r"\s*[-+]?[0-9]+\s*", re.ASCII)
_COMPUTES = re.compile(
    r"[-+*/%&|~]|<<|>>|\b(?:div|mod|sum|avg|total|abs|round|trunc|truncate|ceil|ceiling|floor|sign|sqrt|pow|power|exp|ln"
    r"|log\w*|limit|offset|interval|left|right|substr\w*|mid|repeat|space|[lr]pad|elt|insert|locate|lead|lag|ntile"
    r"|nth_value|char|week|format|date_\w+|adddate|subdate|timestampadd|makedate|maketime|from_days|period_\w+)\b",
    re.IGNORECASE,
)
_DECIMAL_DIGITS = 30
"""A float of so many digits before or after the point is a DECIMAL of MySQL and MariaDB without a loss."""


def computes(statement: ParsedSql) -> bool:
    """Return whether the statement may compute with text as with a number."""
    return statement.dialect != "postgresql" and _COMPUTES.search(statement.source) is not None


_MAKES_TEXT = re.compile(
    r"\|\||\b(?:coalesce|ifnull|iif|case|nullif|cast|lower|upper|[lr]?trim|substr\w*|replace|concat\w*|max|min)\b",
    re.IGNORECASE,
)


def makes_text(statement: ParsedSql) -> bool:
    """Return whether an operand of the statement may be text without being the column of a table."""
    return _MAKES_TEXT.search(statement.source) is not None


def is_number_text(value: Any) -> bool:
    """Return whether a value is text that is a number."""
    return isinstance(value, str) and NUMBER_TEXT.fullmatch(value) is not None


def is_number(use: ComparedParameter, columns: Sequence[ParameterColumn]) -> bool:
    """Return whether the other operands are numbers; ``columns`` are those of them that exist."""
    kind = use.kind
    if not kind.is_known or kind.is_time or kind.is_typeless or len(columns) < len(kind.columns):
        return False
    return all(column.kind in NUMBERS for column in columns) and (kind.is_number or bool(columns))


def as_number(name: str, value: Any, uses: Sequence[ComparedParameter], dialect: str) -> Any:
    """A value as the number that it is. Raises InexactNumber, UnusableParameter."""
    if isinstance(value, str):
        value = _of_text(name, value, uses)
    number = exact_number(value)
    is_whole = isinstance(number, Decimal) and number.is_finite() and number == number.to_integral_value()
    is_counted = any(use.use == "integer" for use in uses)
    # SQLite computes with 2.0 as a binary float, also where the other operand is an integer of 64 bits.
    is_exact_integer = dialect == "sqlite" and not any(use.divided for use in uses)
    if is_whole and dialect != "postgresql" and (is_counted or is_exact_integer):
        return int(number)
    # A decimal computes with another one without the rounding of a binary float.
    is_short = isinstance(number, Decimal) and number.is_finite() and abs(number.adjusted()) < _DECIMAL_DIGITS
    return number if dialect in ("mysql", "mariadb") and is_short else value


def _of_text(name: str, text: str, uses: Sequence[ComparedParameter]) -> Any:
    if NUMBER_TEXT.fullmatch(text):
        number = Decimal(text.strip())
        if (problem := decimal_problem(number)) is not None:
            raise InexactNumber(f"the parameter {name} cannot be used: {problem}")
        return int(number) if _INTEGER.fullmatch(text) else number
    if any(use.use in ("computed", "integer") for use in uses):
        raise UnusableParameter(
            f"the parameter {name} is the text {shorten(text)}, and its place is an operand of arithmetic or an"
            " argument that is a number: give a number, or write the cast or function that makes one of it"
        )
    return text


def check_count(name: str, value: Any, use: ComparedParameter, dialect: str) -> None:
    """Refuse a number with a fraction where the database counts. Raises InexactNumber."""
    number = exact_number(value)
    if use.use != "integer" or not isinstance(number, Decimal) or not number.is_finite():
        return
    if number != number.to_integral_value():
        cast = f", or write `:{name}::int` to round it" if dialect == "postgresql" else ""
        raise InexactNumber(
            f"the parameter {name} is {number:f}, and its place is an integer, to which the database would round it:"
            f" give an integer{cast}"
        )


def check_typeless(name: str, value: Any, use: ComparedParameter, columns: Sequence[ParameterColumn]) -> None:
    """Refuse text that is a number where SQLite would compare it with a value of any type. Raises UnusableParameter."""
    kind = use.kind
    if isinstance(value, str) and is_rewritten(value):
        for column in columns:
            if column.rewrites_text and use.use in ("compared", "element"):
                raise UnusableParameter(
                    f"the parameter {name} is the text {shorten(value)}, and the column {column.name} ({column.type})"
                    f" has numbers for SQLite: declare it as TEXT, or write `cast(:{name} as numeric)`"
                )
    is_typeless = kind.is_typeless or any(column.kind == "other" and column.time is None for column in columns)
    if kind.is_known and is_typeless and use.use in ("compared", "element") and is_number_text(value):
        raise UnusableParameter(
            f"the parameter {name} is the text {shorten(value)}, and it is compared with a value that may be text or a"
            f" number, which are never equal for SQLite: write `cast(:{name} as text)` or `cast(:{name} as numeric)`"
        )


def check_compared_text(
    name: str, value: Any, use: ComparedParameter, columns: Sequence[ParameterColumn], dialect: str
) -> None:
    """Refuse a number that MySQL and MariaDB would compare with the numbers that they read in texts, or with positions.

    Raises UnusableParameter.
    """
    is_compared = use.use in ("compared", "element") and not use.in_union
    if dialect == "postgresql" or not is_compared:
        return
    _check_year(name, value, columns)
    if not is_any_number(value):
        return
    is_of_text = use.kind.is_text and not use.kind.is_number and len(columns) == len(use.kind.columns)
    if is_of_text and all(column.kind in ("text", "enum") for column in columns):
        is_sqlite = dialect == "sqlite"
        how = (
            "with which a number is never equal for SQLite"
            if is_sqlite
            else "of which the number it begins with counts"
        )
        named = " and ".join(f"{column.name} ({shorten(column.type)})" for column in columns)
        place = f"text of the column {named}" if named else "text"
        raise UnusableParameter(
            f"the parameter {name} is {shown_operand(value)}, and it is compared with {place}, {how}: give text, or"
            f" write `cast(:{name} as {'text' if is_sqlite else 'char'})`"
        )
    for column in columns if use.kind.is_known and dialect != "sqlite" else ():
        if column.kind in ("text", "enum"):
            others = (
                "the positions of its members" if column.kind == "enum" else "the numbers that its texts begin with"
            )
            raise UnusableParameter(
                f"the parameter {name} is {shown_operand(value)}, and the column {column.name}"
                f" ({shorten(column.type)}) would be compared with it by {others}: give text, or write"
                f" `cast(:{name} as char)`"
            )


def _check_year(name: str, value: Any, columns: Sequence[ParameterColumn]) -> None:
    """Refuse a number that MySQL and MariaDB would compare with years as a year of this century or the last."""
    number = exact_number(Decimal(value.strip()) if is_number_text(value) else value)
    for column in columns:
        if column.kind == "integer" and column.low > 0 and isinstance(number, int | Decimal) and 0 <= number < 100:
            raise UnusableParameter(
                f"the parameter {name} is {shown_operand(value)}, and the column {column.name} ({column.type}) would be"
                " compared with it as with a year of four digits: give these"
            )


def check_time(name: str, value: Any, use: ComparedParameter, columns: Sequence[ParameterColumn], dialect: str) -> Any:
    """The value, with text in UTC as MySQL and MariaDB read it.

    Refuses text that the database would take for another time, or of which MySQL and MariaDB would drop a part.

    PostgreSQL says itself what it takes at a place, see postgresql_places. Raises UnusableParameter.
    """
    kind = use.kind
    if dialect == "postgresql" or not kind.is_known or len(columns) < len(kind.columns):
        return value
    held = [column.time for column in columns if column.time is not None]
    if len(held) < len(columns) or not (held or kind.is_time) or kind.is_number:
        return value
    is_text = dialect == "sqlite"
    number = exact_number(value)
    if isinstance(number, int | Decimal) and not isinstance(number, bool) and use.use == "compared":
        _check_compared_number(name, Decimal(number), held)
    if not isinstance(value, str):
        return value
    forms = [time.form_problem(value) for time in held]
    if not held:  # a date or a time
        forms = [HeldTime(date=date, is_text=is_text).form_problem(value) for date in (False, True)]
        forms = [forms[1]] if all(forms) else []
    for problem in filter(None, forms):
        raise UnusableParameter(f"the parameter {name} is {shorten(value)}, and its place is a time: {problem}")
    if is_text:
        return value
    if use.use == "read":
        return without_utc(value)
    for time in held or [HeldTime(date=True)]:
        if (problem := time.compared_problem(value)) is not None:
            raise UnusableParameter(
                f"the parameter {name} is {shorten(value)}, and it is compared with a value that {problem}: give it"
                " in UTC, with the parts that the other operand has"
            )
    return without_utc(value)


def _check_compared_number(name: str, number: Decimal, held: Sequence[HeldTime]) -> None:
    for time in held if number.is_finite() else ():
        if (problem := replace(time, digits=6).number_problem(number)) is not None:
            raise UnusableParameter(
                f"the parameter {name} is {number:f}, and it is compared with a value that {problem}: give text in ISO"
                " 8601 form"
            )


def check_bindable(name: str, value: Any, form: Any) -> None:
    """Refuse text that SQLAlchemy would bind where it is a number."""
    if isinstance(value, str) and not isinstance(form, str):
        raise UnusableParameter(
            f"the parameter {name} is text, and its place is an operand that is a number: give a Decimal"
        )
