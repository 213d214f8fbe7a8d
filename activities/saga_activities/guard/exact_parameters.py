"""Numbers and text as parameters of SQL: stored whole, or refused before the statement runs.

PostgreSQL, MySQL and MariaDB round a number silently when it is assigned to a column with fewer digits after the point,
also one that is text, and cut blanks at the end of text that is too long. SQLite has no exact decimals. So a statement
with such parameters is compared with the types of the columns that they are assigned to.
"""

from __future__ import annotations

import asyncio
import re
import struct
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any, Literal

from saga_activities.guard.json_parameters import (
    UnusableParameter,
    as_json,
    for_array_column,
    for_json_column,
    json_parameters,
    needs_form,
    without_target,
)
from sagas.builtins.assigned_parameters import AssignedParameter, assigned_parameters
from sagas.errors import UsageError
from sagas.sql_text.parsed import parse_sql
from sagas.text.exact_json import decimal_problem, number_text
from sagas.text.exact_numbers import is_exact_double
from sagas.text.json_values import encodable

Parameters = Mapping[str, Any]
Query = Callable[[str, Parameters], Awaitable[Sequence[Mapping[str, Any]]]]
"""Runs a query with named parameters on the connection of the statement."""

_EXACT_INTEGERS = 1 << 24
"""From here on a float of four bytes skips integers."""

_MYSQL_DIGITS, _MYSQL_SCALE = 65, {"mysql": 30, "mariadb": 38}
"""Digits of a DECIMAL, and those of them that may be after the point."""

_NAMES = {"mysql": "MySQL", "mariadb": "MariaDB", "sqlite": "SQLite", "postgresql": "PostgreSQL"}


_NUMBER = re.compile(r"\s*[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\s*")
"""Text that a column of numbers reads as one."""

_EXACT_TEXT = re.compile(r"[-+]?[0-9]{1,7}")
"""A number that every column holds, or refuses itself."""


class InexactNumber(UsageError):
    """A number has more digits than its receiver holds, or a text more characters."""


def needs_care(value: Any) -> bool:
    """Return whether a parameter has a number that some column would round."""
    if isinstance(value, list | tuple):
        return any(map(needs_care, value))
    if isinstance(value, int):
        return not -_EXACT_INTEGERS < value < _EXACT_INTEGERS
    return isinstance(value, Decimal)


def text_needs_care(value: Any) -> bool:
    """Return whether a parameter has text of which some column would store only a part, or another number."""
    if isinstance(value, list | tuple):
        return any(map(text_needs_care, value))
    if not isinstance(value, str):
        return False
    return value.endswith(" ") or (_NUMBER.fullmatch(value) is not None and _EXACT_TEXT.fullmatch(value) is None)


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
        _refuse_characters(name, value, dialect)
    careful = {name for name, value in given if needs_care(value)}
    formed = {
        name
        for name, value in given
        if (check_text and text_needs_care(value)) or (not numbers_only and needs_form(value, dialect))
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
    of_engine = {name for name in formed if not any(_is_structured(values.get(name)) for values in parameters)}
    assigned = [
        target
        for target in targets
        if target.parameter in careful | formed
        # The engine's own tables have no column of JSON, and one more query for each event would be slow.
        and not (target.parameter in of_engine - careful and target.name.startswith("saga_"))
    ]
    columns = await _read_columns(assigned, dialect, query)
    if numbers_only:
        columns = {target: column for target, column in columns.items() if column.kind != "json"}
    exact: list[Parameters] = []
    for values in parameters:
        forms = _for_columns(values, assigned, columns, dialect, check_text)
        bound = {**values, **forms}
        for name in (careful | formed) & bound.keys():
            form = bound[name] if name in forms else without_target(name, bound[name], dialect)
            bound[name] = _bound(name, form, dialect)
        exact.append(bound)
    return exact


def _for_columns(
    values: Parameters,
    assigned: Sequence[AssignedParameter],
    columns: Mapping[AssignedParameter, NumberColumn],
    dialect: str,
    check_text: bool,
) -> dict[str, Any]:
    """The parameters in the form for the columns that they are assigned to; an upsert has several for each."""
    forms: dict[str, Any] = {}
    for target in assigned:
        name, column = target.parameter, columns.get(target)
        value = values.get(name)
        if column is None or (isinstance(value, str) and column.kind != "json" and not check_text):
            continue
        form = column.checked(target, value, dialect)
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


def _is_structured(value: Any) -> bool:
    return isinstance(value, list | dict)


def _refuse_characters(name: str, value: Any, dialect: str) -> None:
    """Refuse text that has no form in the database; in JSON, the database itself refuses it."""
    for item in value if isinstance(value, list | tuple) else [value]:
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
    if not needs_care(value) or dialect == "postgresql":
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
    return [Decimal(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in items]


def _bound_to_sqlite(name: str, value: int | Decimal) -> int | float:
    if isinstance(value, Decimal) and is_exact_double(value):
        return float(value)
    if value == int(value) and -(1 << 63) <= value < 1 << 63:
        return int(value)
    raise InexactNumber(f"the parameter {name} has more digits than SQLite can hold; store it as text with string(x)")


def _is_exact_single(number: int | Decimal, printed: int) -> bool:
    """Return whether a float of four bytes is written with the same digits, by a database that prints so many
    of them.
    """
    try:
        (nearest,) = struct.unpack("f", struct.pack("f", float(number)))
    except OverflowError:
        return False
    shortest = next(digits for digits in range(1, 10) if _to_single(nearest, digits) == nearest)
    return shortest <= printed and Decimal(f"{nearest:.{shortest}g}") == number


def _to_single(number: float, digits: int) -> float:
    return struct.unpack("f", struct.pack("f", float(f"{number:.{digits}g}")))[0]


def _digits(number: int | Decimal) -> tuple[int, int]:
    """The number of digits in plain notation without zeros at the end of a fraction, and those after the point."""
    whole, _, fraction = number_text(number).lstrip("-").partition(".")
    fraction = fraction.rstrip("0")
    return len(whole.lstrip("0")) + len(fraction), len(fraction)


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """A column as far as it limits values. ``type`` is its name for messages; ``is_array``: of items of this kind.

    ``low`` and ``high`` are the bounds of an integer. ``precision`` and ``scale`` are those of a decimal; None: it has
    no limit. ``printed`` is the number of digits with which the database writes a float of four bytes. ``length`` is
    that of a column of text which cuts blanks. ``number`` is a column of SQLite that makes numbers of text.
    """

    name: str
    type: str
    kind: Literal["integer", "decimal", "double", "single", "number", "text", "json", "other"]
    low: int = 0
    high: int = 0
    precision: int | None = None
    scale: int | None = None
    printed: int = 9
    length: int | None = None
    is_array: bool = False

    def checked(self, target: AssignedParameter, value: Any, dialect: str) -> Any:
        """The value for this column. Raises :class:`InexactNumber`, UnusableParameter."""
        shown = f"{self.name} of {target.name} ({self.type})"
        if target.alone and self.is_array:
            value = for_array_column(target.parameter, value, shown, of_text=self.kind == "text")
        elif target.alone and self.kind == "json":
            value = for_json_column(target.parameter, value, dialect, shown)
        elif target.alone and self.kind == "text" and isinstance(value, list):
            return as_json(target.parameter, value)
        if isinstance(value, list | tuple):
            return [self.checked(target, item, dialect) for item in value]
        if isinstance(value, str):
            self._check_text(target, value)
            return value
        if not needs_care(value) or (isinstance(value, Decimal) and not value.is_finite()):
            return value
        if self.kind == "text" and dialect == "sqlite" and target.alone:
            return number_text(value)  # SQLite would write the digits of the double
        self._refuse(target, number_text(value), self._problem(value, target))
        return value

    def _check_text(self, target: AssignedParameter, text: str) -> None:
        if self.length is not None and target.alone and len(text) > self.length and text.endswith(" "):
            self._refuse(target, f"text of {len(text)} characters", f"holds {self.length} and would cut blanks")
        if self.kind not in ("text", "json", "other") and _NUMBER.fullmatch(text):
            number = Decimal(text)
            problem = decimal_problem(number)
            self._refuse(target, f"the text {text.strip()}", problem or self._problem(number, target))

    def _refuse(self, target: AssignedParameter, value: str, problem: str | None) -> None:
        if problem is not None:
            shown = value if len(value) <= 80 else f"{value[:80]}…"
            raise InexactNumber(
                f"the parameter {target.parameter} is {shown}, and the column {self.name} of {target.name}"
                f" ({self.type}) {problem}: change its type, or compute the value that is to be stored"
            )

    def _problem(self, value: int | Decimal, target: AssignedParameter) -> str | None:
        match self.kind:
            case "integer" if value != int(value):
                return "holds integers only"
            case "integer" if target.alone and not self.low <= value <= self.high:
                return f"holds {self.low} to {self.high}"
            case "double" if not is_exact_double(value):
                return "is a binary float and would round it"
            case "number" if not is_exact_double(value) and not (value == int(value) and -(1 << 63) <= value < 1 << 63):
                return "holds SQLite's integers of 64 bits and binary floats, and would round it"
            case "single" if not _is_exact_single(value, self.printed):
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


# The columns of a table, from the catalog. Read for each statement: a migration may change a type at any time.
_POSTGRESQL_COLUMNS = """
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type, e.typname IS NOT NULL AS is_array,
       coalesce(e.typname, b.typname, t.typname) AS base,
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END AS modifier
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_type b ON b.oid = t.typbasetype AND t.typtype = 'd'
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE a.attrelid = to_regclass(:table) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""

_MYSQL_COLUMNS = """
SELECT column_name AS name, column_type AS type, data_type AS base, numeric_precision AS digits, numeric_scale AS scale,
       character_maximum_length AS length
FROM information_schema.columns
WHERE table_schema = coalesce(:schema, database()) AND table_name = :name
ORDER BY ordinal_position
"""

_MARIADB_COLUMNS = _MYSQL_COLUMNS.replace(
    "data_type AS base",
    """CASE WHEN EXISTS (
         SELECT 1 FROM information_schema.check_constraints k
         WHERE k.constraint_schema = columns.table_schema AND k.table_name = columns.table_name
           AND k.check_clause = concat('json_valid(`', columns.column_name, '`)')
       ) THEN 'json' ELSE data_type END AS base""",
)
"""MariaDB's type JSON is a text with a check."""

_SQLITE_COLUMNS = "SELECT name, type FROM pragma_table_info(:name, coalesce(:schema, 'main')) ORDER BY cid"


async def _read_columns(
    assigned: Sequence[AssignedParameter], dialect: str, query: Query
) -> Mapping[AssignedParameter, NumberColumn]:
    tables: dict[str, list[NumberColumn]] = {}
    columns: dict[AssignedParameter, NumberColumn] = {}
    for target in assigned:
        if target.table not in tables:
            tables[target.table] = [_column(row, dialect) for row in await _read_table(target, dialect, query)]
        column = _column_of(target, tables[target.table])
        if column is not None:
            columns[target] = column
    return columns


async def _read_table(target: AssignedParameter, dialect: str, query: Query) -> Sequence[Mapping[str, Any]]:
    if dialect == "postgresql":
        return await query(_POSTGRESQL_COLUMNS, {"table": target.table})
    text = {"sqlite": _SQLITE_COLUMNS, "mariadb": _MARIADB_COLUMNS, "mysql": _MYSQL_COLUMNS}[dialect]
    return await query(text, {"schema": target.schema, "name": target.name})


def _column_of(target: AssignedParameter, columns: Sequence[NumberColumn]) -> NumberColumn | None:
    if isinstance(target.column, int):
        return columns[target.column] if target.column < len(columns) else None
    exact = next((column for column in columns if column.name == target.column), None)
    folded = target.column.lower()
    return exact or next((column for column in columns if column.name.lower() == folded), None)


def _column(row: Mapping[str, Any], dialect: str) -> NumberColumn:
    name, shown = str(row["name"]), str(row["type"])
    if dialect == "sqlite":
        declared = shown.upper()
        if "JSON" in declared:
            return NumberColumn(name, shown, "json")
        if "INT" in declared:
            return NumberColumn(name, shown, "number")
        if any(word in declared for word in ("CHAR", "CLOB", "TEXT")):
            return NumberColumn(name, shown, "text")
        if not declared or declared == "ANY" or "BLOB" in declared:
            return NumberColumn(name, shown, "other")
        is_double = any(word in declared for word in ("REAL", "FLOA", "DOUB"))
        return NumberColumn(name, shown, "double" if is_double else "number")
    if dialect == "postgresql":
        column = _postgresql_column(name, shown, str(row["base"]), int(row["modifier"]))
        return replace(column, is_array=bool(row["is_array"]))
    base = str(row["base"]).lower()
    if base == "varchar":
        return NumberColumn(name, shown, "other", length=row["length"])
    return _mysql_column(name, shown, base, row["digits"], row["scale"])


_BITS = {
    **{"int2": 16, "int4": 32, "int8": 64},
    **{"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64},
}


def _integer_column(name: str, shown: str, bits: int, *, unsigned: bool = False) -> NumberColumn:
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return NumberColumn(name, shown, "integer", low, high)


def _postgresql_column(name: str, shown: str, base: str, modifier: int) -> NumberColumn:
    if base in _BITS:
        return _integer_column(name, shown, _BITS[base])
    match base:
        case "numeric" if modifier >= 4:
            precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
            return NumberColumn(name, shown, "decimal", precision=precision, scale=(scale ^ 1024) - 1024)
        case "money":
            return NumberColumn(name, shown, "decimal", precision=18, scale=2)
        case "float8":
            return NumberColumn(name, shown, "double")
        case "float4":
            return NumberColumn(name, shown, "single")
        case "json" | "jsonb":
            return NumberColumn(name, shown, "json")
        case "varchar" if modifier >= 4:
            return NumberColumn(name, shown, "text", length=modifier - 4)
        case "text" | "varchar" | "bpchar":
            return NumberColumn(name, shown, "text")
    return NumberColumn(name, shown, "other")


def _mysql_column(name: str, shown: str, base: str, digits: int | None, scale: int | None) -> NumberColumn:
    if base in _BITS:
        return _integer_column(name, shown, _BITS[base], unsigned="unsigned" in shown.lower())
    match base:
        case "json":
            return NumberColumn(name, shown, "json")
        case "decimal":
            return NumberColumn(name, shown, "decimal", precision=digits, scale=scale)
        case "double":
            return NumberColumn(name, shown, "double", scale=scale)
        case "float":
            return NumberColumn(name, shown, "single", scale=scale, printed=6)
        case "year":
            return NumberColumn(name, shown, "integer", 0, 2155)
    return NumberColumn(name, shown, "other")
