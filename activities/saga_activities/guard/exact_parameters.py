"""Numbers and text as parameters of SQL: stored whole, or refused before the statement runs.

PostgreSQL, MySQL and MariaDB round a number silently when it is assigned to a column with fewer digits after the point,
also one that is text, cut blanks at the end of text that is too long, and drop parts of times. SQLite has no exact
decimals. So a statement with such parameters is compared with the types of the columns that they are assigned to.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from datetime import datetime, time
from decimal import Decimal
from functools import partial
from typing import Any

from saga_activities.guard.column_catalog import Query, read_columns
from saga_activities.guard.json_parameters import (
    UnusableParameter,
    as_json,
    json_parameters,
    needs_form,
    without_target,
)
from saga_activities.guard.parameter_columns import (
    NUMBER_TEXT,
    InexactNumber,
    ParameterColumn,
    Parameters,
    exact_number,
    needs_care,
)
from saga_activities.guard.tables import ENGINE_TABLES
from saga_activities.guard.time_columns import time_text
from sagas.builtins.assigned_parameters import AssignedParameter, assigned_parameters
from sagas.sql_text.parsed import parse_sql
from sagas.text.exact_json import decimal_problem, number_text
from sagas.text.exact_numbers import is_exact_double
from sagas.text.json_values import encodable

_MYSQL_DIGITS, _MYSQL_SCALE = 65, {"mysql": 30, "mariadb": 38}
"""Digits of a DECIMAL, and those of them that may be after the point."""

_NAMES = {"mysql": "MySQL", "mariadb": "MariaDB", "sqlite": "SQLite", "postgresql": "PostgreSQL"}

_EXACT_TEXT = re.compile(r"[-+]?[0-9]{1,7}")
"""A number that every column holds, or refuses itself."""


def text_needs_care(value: Any, dialect: str) -> bool:
    """Return whether a parameter has text or a time of which some column would store only a part, or another number."""
    if isinstance(value, list | tuple):
        return any(text_needs_care(item, dialect) for item in value)
    if dialect != "sqlite" and time_text(value) is not None:
        return True
    if not isinstance(value, str):
        return False
    is_cut = dialect != "sqlite" and value.endswith(" ")
    return is_cut or (NUMBER_TEXT.fullmatch(value) is not None and _EXACT_TEXT.fullmatch(value) is None)


async def exact_parameters(
    statement: str,
    dialect: str,
    parameters: Sequence[Parameters],
    query: Query,
    *,
    numbers_only: bool = False,
    check_text: bool = True,
) -> Sequence[Parameters]:
    """The parameters as the driver takes them without a loss. ``numbers_only``: SQLAlchemy binds all other values.

    ``check_text`` False: text is stored as the database stores it, and the caller reads it again.

    Raises :class:`InexactNumber` for a number or text that the database, or the column that it is assigned to, cannot
    hold, and UnusableParameter for a value that a column of JSON or an array would store as another one.
    """
    given = [(name, value) for values in parameters for name, value in values.items()]
    for name, value in given:
        _refuse_formless(name, value, dialect)
    careful = {name for name, value in given if needs_care(value)}
    formed = {
        name
        for name, value in given
        if (check_text and text_needs_care(value, dialect)) or (not numbers_only and needs_form(value, dialect))
    }
    as_json_text = frozenset() if numbers_only else json_parameters(parse_sql(statement, dialect))
    if not careful and not formed and not as_json_text:
        return parameters
    if as_json_text:
        parameters = [
            {name: as_json(name, value) if name in as_json_text else value for name, value in values.items()}
            for values in parameters
        ]
        careful, formed = careful - as_json_text, formed - as_json_text
        if not careful and not formed:
            return parameters
    for values in parameters:
        for name in careful & values.keys():
            _refuse_endless(name, values[name])
    # The first analysis imports a large parser, for which the other attempts of the worker must not wait.
    analyse = partial(assigned_parameters, statement, dialect)
    targets = analyse() if "sqlglot" in sys.modules else await asyncio.to_thread(analyse)
    assigned = [
        target
        for target in targets
        # The engine fits its own values to its own tables, and one more query for each event would be slow.
        if target.parameter in careful | formed and target.name not in ENGINE_TABLES
    ]
    columns = await read_columns(assigned, dialect, query)
    if numbers_only:
        columns = [(target, column) for target, column in columns if column.kind != "json"]
    exact: list[Parameters] = []
    for values in parameters:
        forms = _for_columns(values, columns, dialect, check_text)
        bound = {**values, **forms}
        for name in (careful | formed) & bound.keys():
            form = bound[name] if name in forms else without_target(name, bound[name], dialect)
            bound[name] = _bound(name, form, dialect)
        exact.append(bound)
    return exact


def _for_columns(
    values: Parameters,
    columns: Sequence[tuple[AssignedParameter, ParameterColumn]],
    dialect: str,
    check_text: bool,
) -> dict[str, Any]:
    """The parameters in the form for the columns that they are assigned to; an upsert has several for each."""
    forms: dict[str, Any] = {}
    for target, column in columns:
        name, value = target.parameter, values.get(target.parameter)
        if isinstance(value, str) and column.kind != "json" and not check_text:
            continue
        form = column.checked(target, value, dialect)
        if not target.certain:
            continue
        if not column.is_array:
            form = without_target(name, form, dialect)
        if isinstance(value, bool | list | dict) and forms.get(name, form) != form:
            raise UnusableParameter(
                f"the parameter {name} is assigned to columns of different types, for which it has different forms:"
                " pass the value as two parameters"
            )
        if name not in forms or form is not value:
            forms[name] = form
    return forms


def _refuse_formless(name: str, value: Any, dialect: str) -> None:
    """Refuse text and times that have no form in the database; in JSON, the database itself refuses such text."""
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
