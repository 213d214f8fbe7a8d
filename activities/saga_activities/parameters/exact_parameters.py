"""Numbers and text as parameters of SQL: stored whole, or refused before the statement runs.

PostgreSQL, MySQL and MariaDB round a number silently when it is assigned to a column with fewer digits after the point,
also one that is text, cut blanks at the end of text that is too long, and drop parts of times. SQLite has no exact
decimals. So a statement with such parameters is compared with the types of the columns that they are assigned to.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, time
from decimal import Decimal
from functools import partial
from typing import Any

from saga_activities.engine_tables import is_engine_table
from saga_activities.parameters.called_routines import read_routines
from saga_activities.parameters.carried_values import check_carried
from saga_activities.parameters.column_catalog import Query, read_columns
from saga_activities.parameters.compared_forms import compared_form, refuse_structured
from saga_activities.parameters.integer_parameters import as_written
from saga_activities.parameters.iso_times import may_be_time
from saga_activities.parameters.json_parameters import (
    UnusableParameter,
    as_json,
    json_places,
    needs_form,
    refuse_json_boolean,
    without_target,
)
from saga_activities.parameters.operand_forms import (
    NUMBERS,
    as_number,
    check_bindable,
    check_compared_text,
    check_count,
    check_time,
    check_typeless,
    computes,
    is_number,
    is_number_text,
    makes_text,
)
from saga_activities.parameters.own_types import refuse_rewritten
from saga_activities.parameters.parameter_columns import (
    InexactNumber,
    ParameterColumn,
    Parameters,
    exact_number,
    has_numbers,
    is_any_number,
    is_long_number,
    needs_care,
)
from saga_activities.parameters.plain_texts import is_plain
from saga_activities.parameters.structured_forms import check_structured
from saga_activities.parameters.time_columns import time_text
from sagas.sql_text.calls import EnclosingCall, enclosing_calls
from sagas.sql_text.integer_places import integer_places
from sagas.sql_text.parameters.assigned_parameters import AssignedParameter, Passing, assigned_parameters
from sagas.sql_text.parameters.compared_parameters import ComparedParameter, compared_parameters
from sagas.sql_text.parameters.places_apart import own_parameters, places_apart
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.placeholders import cast_types, numbered, place_of, placeholder_names, with_own_names
from sagas.text.exact_json import decimal_problem, number_text
from sagas.text.exact_numbers import is_exact_double
from sagas.text.json_values import encodable

_MYSQL_DIGITS, _MYSQL_SCALE = 65, {"mysql": 30, "mariadb": 38}
"""Digits of a DECIMAL, and those of them that may be after the point."""

_NAMES = {"mysql": "MySQL", "mariadb": "MariaDB", "sqlite": "SQLite", "postgresql": "PostgreSQL"}


def text_needs_care(value: Any, dialect: str) -> bool:
    """Return whether a parameter has text or a time of which some column would store only a part, or another number."""
    if isinstance(value, list | tuple):
        return any(text_needs_care(item, dialect) for item in value)
    if isinstance(value, str) and is_plain(value):
        return False
    if dialect != "sqlite" and time_text(value) is not None:
        return True
    if not isinstance(value, str):
        return False
    if dialect == "postgresql" and has_numbers(value):
        return True
    if dialect != "postgresql" and may_be_time(value):  # PostgreSQL knows the types of its places
        return True
    is_cut = dialect != "sqlite" and value.endswith(" ")
    return is_cut or is_long_number(value)


def may_be_another(value: Any, dialect: str) -> bool:
    """Return whether the column or the operand decides if a number is text, or a text a number."""
    if dialect == "postgresql":
        return False
    return is_number_text(value) or (dialect != "sqlite" and is_any_number(value))


@dataclass(frozen=True, slots=True)
class ExactStatement:
    """A statement and its parameters as the driver takes them.

    A parameter that has different forms at different places has become several in ``statement``.
    """

    statement: ParsedSql
    parameters: Sequence[Parameters]


async def exact_parameters(
    statement: ParsedSql,
    parameters: Sequence[Parameters],
    query: Query,
    *,
    numbers_only: bool = False,
    check_text: bool = True,
) -> ExactStatement:
    """Convert the parameters to values that the driver stores without a loss, and the statement to one that takes them.

    ``numbers_only``: convert numbers alone, because SQLAlchemy binds all other values. Without ``check_text``, text is
    stored as the database stores it, and the caller reads it again.

    Raises :class:`InexactNumber` for a number or text that the database, or the column that it is assigned to, cannot
    hold, and UnusableParameter for a value that its receiver would take for another one.
    """
    dialect = statement.dialect
    given = [(name, value) for values in parameters for name, value in values.items()]
    for name, value in given:
        _refuse_formless(name, value, dialect)
    names = placeholder_names(statement)
    of_json = frozenset[int]() if numbers_only else json_places(statement)
    with_columns = {
        name
        for name, value in given
        if needs_care(value)
        or (check_text and text_needs_care(value, dialect))
        or (not numbers_only and needs_form(value, dialect))
        or may_be_another(value, dialect)
    }
    if dialect == "sqlite" and check_text and makes_text(statement):
        with_columns |= {name for name, value in given if is_any_number(value)}
    may_compute = computes(statement)
    wanted = with_columns | {
        name
        for name, value in given
        if check_text and isinstance(value, str) and dialect != "postgresql" and (may_compute or is_number_text(value))
    }
    places = {at for at, name in enumerate(names) if name in wanted and at not in of_json}
    of_integer = integer_places(statement) if dialect == "postgresql" and not numbers_only else frozenset[int]()
    apart = () if numbers_only else await _texts_apart(statement, names, parameters)
    if not places and not of_json and not of_integer and not apart:
        return ExactStatement(statement, parameters)
    names_of_places = {names[at] for at in places}
    for name, value in given:
        if name in names_of_places:
            _refuse_endless(name, value)
    has_structured = not numbers_only and any(isinstance(value, list | dict) for _, value in given)
    if has_structured:
        await check_structured(statement, parameters, query)
    has_uses = dialect != "postgresql" or has_structured or any(needs_care(value) for _, value in given)
    receivers = await _receivers(
        statement,
        places,
        {at for at in places if names[at] in with_columns},
        query,
        has_uses=has_uses,
        numbers_only=numbers_only,
    )
    if not numbers_only:
        await receivers.check_own_types(names, parameters, query)
    forms: list[list[Any]] = []
    for values in parameters:
        forms.append([])
        for at, name in enumerate(names):
            form = values.get(name)
            if at in of_json:
                form = as_json(name, form)
            elif at in places:
                form = receivers.form(at, name, form, check_text=check_text)
                if numbers_only:
                    check_bindable(name, values.get(name), form)
                form = _bound(name, form, dialect)
            forms[-1].append(as_written(form) if at in of_integer else form)
    if numbers_only:
        bound = [
            {**values, **{name: form for name, form in zip(names, row, strict=True) if name in values}}
            for values, row in zip(parameters, forms, strict=True)
        ]
        return ExactStatement(statement, bound)
    return _named(statement, names, forms, apart)


async def _texts_apart(statement: ParsedSql, names: Sequence[str], parameters: Sequence[Parameters]) -> tuple[int, ...]:
    """The groups of places of text that becomes a column's value, and is also at another place; empty: none.

    In `set label = :v where at > :v`, PostgreSQL would give one parameter the type of the other place, and store the
    text of a timestamp; two columns of different types it would refuse.
    """
    repeated = {name for name in names if names.count(name) > 1} if statement.dialect == "postgresql" else set[str]()
    values = (value for row in parameters for name, value in row.items() if name in repeated)
    if not any(value is None or isinstance(value, str | list | dict) for value in values):
        return ()
    if "sqlglot" in sys.modules:
        return places_apart(statement)
    return await asyncio.to_thread(places_apart, statement)


def _named(
    statement: ParsedSql, names: Sequence[str], forms: Sequence[Sequence[Any]], apart: Sequence[int]
) -> ExactStatement:
    """The statement for forms of parameters by their places, with as many parameters as it needs.

    Places of the same form stay one parameter, unless they are ``apart``: `group by left(s, :n)` is the `left(s, :n)`
    of the select list only so.
    """
    numbers = own_parameters(names, apart, lambda at, other: all(_is_same(row[at], row[other]) for row in forms))
    if any(numbers):
        statement, names = with_own_names(statement, numbers)
    return ExactStatement(statement, [dict(zip(names, row, strict=True)) for row in forms])


def _is_same(form: Any, other: Any) -> bool:
    return form is other or (type(form) is type(other) and form == other)


@dataclass(frozen=True, slots=True)
class _Receivers:
    """The receivers of placeholders: the columns, if known, that they are assigned to, and their other uses."""

    dialect: str
    assigned: Mapping[int, Sequence[tuple[AssignedParameter, ParameterColumn]]]
    uses: Mapping[int, Sequence[ComparedParameter]]
    columns: Mapping[AssignedParameter, ParameterColumn]
    arguments: Mapping[int, tuple[str, tuple[ParameterColumn, ...]]] = field(default_factory=dict)
    """The functions of the author that take a parameter, with the types of this argument."""
    casts: Sequence[str] = ()
    """The types to which the author casts the parameters."""
    calls: Sequence[Sequence[EnclosingCall]] = ()
    """The calls around each parameter, the innermost first."""

    def form(self, place: int, name: str, value: Any, *, check_text: bool) -> Any:
        """The value in the form for this place. Raises InexactNumber, UnusableParameter."""
        given = value
        if check_text:
            refuse_json_boolean(name, value, self.calls[place], self.dialect)
            value = self._operand(place, name, value)
            self._check_argument(place, name, value)
        forms: list[Any] = []
        receivers = self.assigned.get(place, ())
        for target, column in receivers:
            if isinstance(value, str) and column.kind != "json" and not check_text:
                continue
            if target.via is not None:
                check_carried(replace(target, parameter=name), column, value, receivers)
                continue
            if target.certain and target.alone and not target.cast:
                refuse_structured(name, value, column, target.name, self.dialect)
                if isinstance(given, str) and not isinstance(value, str) and column.kind not in NUMBERS:
                    forms.append(given)
            as_text = column.kind == "enum" and is_any_number(value) and self.casts[place].startswith("char")
            form = column.checked(
                replace(target, parameter=name), number_text(exact_number(value)) if as_text else value, self.dialect
            )
            if not target.certain:
                continue
            forms.append(form if column.is_array else without_target(name, form, self.dialect))
        if any(not _is_same(form, forms[0]) for form in forms):
            raise UnusableParameter(
                f"the parameter {name} reaches columns of different types from one place, for which it has different"
                " forms: pass the value as two parameters"
            )
        if forms:
            return forms[0]
        for use in self.uses.get(place, ()):
            column = self.columns.get(use.column) if use.column is not None else None
            value = compared_form(name, value, use, column, self.dialect)
        return without_target(name, value, self.dialect)

    async def check_own_types(self, names: Sequence[str], parameters: Sequence[Parameters], query: Query) -> None:
        """Refuse a list or a number that a type of an extension would round. Raises UnusableParameter.

        PostgreSQL has a place with the type of the column for text, see postgresql_places.
        """
        own = [
            (names[place], column)
            for place, targets in self.assigned.items()
            for target, column in targets
            if column.is_own and target.certain and target.alone and not target.cast
        ]
        for name, column in own:
            for value in (values.get(name) for values in parameters):
                if needs_care(value):
                    await refuse_rewritten(name, _bound(name, value, self.dialect), column, query)

    def _operand(self, place: int, name: str, value: Any) -> Any:
        """The value as the number, if it is one, that the operations of this place take."""
        uses = self.uses.get(place, ())
        of_number = []
        for use in uses:
            columns = [self.columns[column] for column in use.kind.columns if column in self.columns]
            check_count(name, value, use, self.dialect)
            value = check_time(name, value, use, columns, self.dialect)
            if self.dialect == "sqlite":
                check_typeless(name, value, use, columns)
            check_compared_text(name, value, use, columns, self.dialect)
            if is_number(use, columns) or (use.is_chosen and self._is_assigned_number(place)):
                of_number.append(use)
        if of_number and self.dialect != "postgresql":
            value = as_number(name, value, of_number, self.dialect)
            for use in of_number:
                check_count(name, value, use, self.dialect)
        return value

    def _check_argument(self, place: int, name: str, value: Any) -> None:
        """Refuse a value of which each function of this name would take only a part. Raises InexactNumber."""
        function, columns = self.arguments.get(place, ("", ()))
        problems: list[InexactNumber] = []
        for column in columns:
            target = AssignedParameter(name, "", None, function, None, alone=True)
            try:
                column.check_loss(target, value)
            except InexactNumber as problem:
                problems.append(problem)
        if problems and len(problems) == len(columns):
            raise problems[0]

    def _is_assigned_number(self, place: int) -> bool:
        columns = [column for target, column in self.assigned.get(place, ()) if target.certain]
        return bool(columns) and all(column.kind in NUMBERS for column in columns)


async def _receivers(
    statement: ParsedSql,
    places: Collection[int],
    with_columns: Collection[int],
    query: Query,
    *,
    has_uses: bool,
    numbers_only: bool,
) -> _Receivers:
    """``with_columns`` are the places for whose values the columns count also where they are not computed with."""
    dialect = statement.dialect
    if not places:
        return _Receivers(dialect, {}, {}, {})
    apart = numbered(statement)
    routines = await read_routines(statement, query)
    # The first analysis imports a large parser, for which the other attempts of the worker must not wait.
    analyse = partial(_analysed, apart, routines.passing, has_uses=has_uses)
    targets, compared = analyse() if "sqlglot" in sys.modules else await asyncio.to_thread(analyse)
    uses: dict[int, list[ComparedParameter]] = {}
    for use in compared:
        if place_of(use.parameter) in places:
            uses.setdefault(place_of(use.parameter), []).append(use)
    looked_up = {*with_columns, *(at for at, of_place in uses.items() if not all(use.direct for use in of_place))}
    assigned = [
        target
        for target in targets
        if place_of(target.parameter) in looked_up
        # The engine fits its own values to its own tables, and one more query for each event would be slow.
        and not is_engine_table(target.schema, target.name)
    ]
    columns = await read_columns(assigned, dialect, query)
    by_target: dict[int, list[tuple[AssignedParameter, ParameterColumn]]] = {}
    for target, column in columns:
        if not (numbers_only and column.kind == "json"):
            by_target.setdefault(place_of(target.parameter), []).append((target, column))
    others = [
        column
        for at in looked_up
        for use in uses.get(at, ())
        for column in (*use.kind.columns, *([use.column] if use.column else ()))
        if not is_engine_table(column.schema, column.name)
    ]
    arguments = {
        at: (f"the function {call.name}", routines.arguments[call.name.lower(), call.position])
        for at, around in enumerate(enclosing_calls(statement))
        for call in around[:1]
        if at in places and call.direct and (call.name.lower(), call.position) in routines.arguments
    }
    compared_columns = dict(await read_columns(others, dialect, query))
    calls = enclosing_calls(statement)
    return _Receivers(dialect, by_target, uses, compared_columns, arguments, cast_types(statement), calls)


def _analysed(
    statement: ParsedSql, passing: Passing, *, has_uses: bool
) -> tuple[Sequence[AssignedParameter], Sequence[ComparedParameter]]:
    compared = compared_parameters(statement) if has_uses else ()
    return assigned_parameters(statement.source, statement.dialect, passing), compared


def _refuse_formless(name: str, value: Any, dialect: str) -> None:
    """Refuse text and times that have no form in the database; in JSON, the database itself refuses such text."""
    if type(value) is int or (type(value) is str and value.isascii() and "\0" not in value):
        return
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, datetime | time) and dialect in ("mysql", "mariadb") and item.utcoffset():
            raise UnusableParameter(
                f"the parameter {name} is {item}, and {_NAMES[dialect]} would store it without its zone: give it with"
                " .astimezone(UTC)"
            )
        if not isinstance(item, str):
            continue
        if not item.isascii() and encodable(item) != item:
            raise UnusableParameter(
                f"the parameter {name} has half a surrogate pair, which no database stores as text: replace it"
            )
        if dialect == "postgresql" and "\0" in item:
            raise UnusableParameter(
                f"the parameter {name} has a NUL character, which PostgreSQL cannot store: remove it from the text"
            )


def _refuse_endless(name: str, value: Any) -> None:
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, Decimal) and item.is_finite() and (problem := decimal_problem(item)) is not None:
            raise InexactNumber(f"the parameter {name} cannot be used: {problem}")


def _bound(name: str, value: Any, dialect: str) -> Any:
    """A value as the driver of the dialect takes it."""
    if isinstance(value, list):
        return _of_one_type(value)
    if not needs_care(value) or dialect == "postgresql" or isinstance(value, float):
        return value
    if isinstance(value, Decimal) and not value.is_finite():
        raise InexactNumber(f"the parameter {name} is {value}, and {_NAMES[dialect]} has no such number")
    if dialect == "sqlite":
        return _bound_to_sqlite(name, value)
    digits, scale = _digits(value)
    if digits > _MYSQL_DIGITS or scale > _MYSQL_SCALE[dialect]:
        raise InexactNumber(
            f"the parameter {name} has more digits than {_NAMES[dialect]} can hold ({_MYSQL_DIGITS}, and"
            f" {_MYSQL_SCALE[dialect]} after the point); store it as text with string(x)"
        )
    return value


def _of_one_type(items: list[Any]) -> list[Any]:
    """An array of psycopg has either integers or decimals."""
    if not any(isinstance(item, Decimal) for item in items):
        return items
    return [
        Decimal(item) if isinstance(item, int) and not isinstance(item, bool) else exact_number(item) for item in items
    ]


def _bound_to_sqlite(name: str, value: int | Decimal) -> int | float:
    if isinstance(value, Decimal) and is_exact_double(value):
        return float(value)
    if value == int(value) and -(1 << 63) <= value < 1 << 63:
        return int(value)
    raise InexactNumber(f"the parameter {name} has more digits than SQLite can hold; store it as text with string(x)")


def _digits(number: int | Decimal) -> tuple[int, int]:
    """The number of digits in plain notation without zeros at the end of a fraction, and those after the point."""
    whole, _, fraction = number_text(number).lstrip("-").partition(".")
    fraction = fraction.rstrip("0")
    return len(whole.lstrip("0")) + len(fraction), len(fraction)
