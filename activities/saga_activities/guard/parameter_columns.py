"""The columns that parameters of SQL are assigned to: what each holds, and what it would store only in part."""

from __future__ import annotations

import re
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal

from saga_activities.guard.json_parameters import as_json, for_array_column, for_json_column
from saga_activities.guard.time_columns import HeldTime, mysql_time, postgresql_time
from sagas.builtins.assigned_parameters import AssignedParameter
from sagas.errors import UsageError
from sagas.text.exact_json import decimal_problem, number_text
from sagas.text.exact_numbers import is_exact_double

Parameters = Mapping[str, Any]
Query = Callable[[str, Parameters], Awaitable[Sequence[Mapping[str, Any]]]]
"""Runs a query with named parameters on the connection of the statement."""

_EXACT_INTEGERS = 1 << 24
"""From here on a float of four bytes skips integers."""

NUMBER_TEXT = re.compile(r"\s*[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\s*")
"""Text that a column of numbers reads as one."""


class InexactNumber(UsageError):
    """A number has more digits than its receiver holds, or a text more characters."""


def needs_care(value: Any) -> bool:
    """Return whether a parameter has a number that some column would round."""
    if isinstance(value, list | tuple):
        return any(map(needs_care, value))
    if isinstance(value, int):
        return not -_EXACT_INTEGERS < value < _EXACT_INTEGERS
    return isinstance(value, Decimal)


@dataclass(frozen=True, slots=True)
class ParameterColumn:
    """A column as far as it limits values. ``type`` is its name for messages; ``is_array``: of items of this kind.

    ``low`` and ``high`` are the bounds of an integer. ``precision`` and ``scale`` are those of a decimal; None: it has
    no limit. ``printed`` is the number of digits with which the database writes a float of four bytes. ``length`` is
    that of a column of text which cuts blanks, in characters or in bytes. ``number`` is a column of SQLite that makes
    numbers of text. ``time`` is what a column of times or dates holds.
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
    in_bytes: bool = False
    time: HeldTime | None = None
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
        if self.time is not None and target.alone:
            self._refuse(target, str(value), self.time.problem(value))
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
        if self.length is not None and target.alone and text.endswith(" "):
            size, unit = (len(text.encode()), "bytes") if self.in_bytes else (len(text), "characters")
            if size > self.length:
                self._refuse(target, f"text of {size} {unit}", f"holds {self.length} and would cut blanks")
        if self.kind not in ("text", "json", "other") and NUMBER_TEXT.fullmatch(text):
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
       character_maximum_length AS length, datetime_precision AS second_digits
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


async def read_columns(
    assigned: Sequence[AssignedParameter], dialect: str, query: Query
) -> Mapping[AssignedParameter, ParameterColumn]:
    tables: dict[str, list[ParameterColumn]] = {}
    columns: dict[AssignedParameter, ParameterColumn] = {}
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


def _column_of(target: AssignedParameter, columns: Sequence[ParameterColumn]) -> ParameterColumn | None:
    if isinstance(target.column, int):
        return columns[target.column] if target.column < len(columns) else None
    exact = next((column for column in columns if column.name == target.column), None)
    folded = target.column.lower()
    return exact or next((column for column in columns if column.name.lower() == folded), None)


def _column(row: Mapping[str, Any], dialect: str) -> ParameterColumn:
    name, shown = str(row["name"]), str(row["type"])
    if dialect == "sqlite":
        declared = shown.upper()
        if "JSON" in declared:
            return ParameterColumn(name, shown, "json")
        if "INT" in declared:
            return ParameterColumn(name, shown, "number")
        if any(word in declared for word in ("CHAR", "CLOB", "TEXT")):
            return ParameterColumn(name, shown, "text")
        if not declared or declared == "ANY" or "BLOB" in declared:
            return ParameterColumn(name, shown, "other")
        is_double = any(word in declared for word in ("REAL", "FLOA", "DOUB"))
        return ParameterColumn(name, shown, "double" if is_double else "number")
    if dialect == "postgresql":
        column = _postgresql_column(name, shown, str(row["base"]), int(row["modifier"]))
        return replace(column, is_array=bool(row["is_array"]))
    base = str(row["base"]).lower()
    if base in ("char", "varchar", "tinytext", "text", "mediumtext"):
        return ParameterColumn(name, shown, "other", length=row["length"], in_bytes=base.endswith("text"))
    if (time := mysql_time(base, row["second_digits"])) is not None:
        return ParameterColumn(name, shown, "other", time=time)
    return _mysql_column(name, shown, base, row["digits"], row["scale"])


_BITS = {
    **{"int2": 16, "int4": 32, "int8": 64},
    **{"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64},
}


def _integer_column(name: str, shown: str, bits: int, *, unsigned: bool = False) -> ParameterColumn:
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return ParameterColumn(name, shown, "integer", low, high)


def _postgresql_column(name: str, shown: str, base: str, modifier: int) -> ParameterColumn:
    if base in _BITS:
        return _integer_column(name, shown, _BITS[base])
    match base:
        case "numeric" if modifier >= 4:
            precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
            return ParameterColumn(name, shown, "decimal", precision=precision, scale=(scale ^ 1024) - 1024)
        case "money":
            return ParameterColumn(name, shown, "decimal", precision=18, scale=2)
        case "float8":
            return ParameterColumn(name, shown, "double")
        case "float4":
            return ParameterColumn(name, shown, "single")
        case "json" | "jsonb":
            return ParameterColumn(name, shown, "json")
        case "varchar" | "bpchar" if modifier >= 4:
            return ParameterColumn(name, shown, "text", length=modifier - 4)
        case "text" | "varchar" | "bpchar":
            return ParameterColumn(name, shown, "text")
    return ParameterColumn(name, shown, "other", time=postgresql_time(base, modifier))


def _mysql_column(name: str, shown: str, base: str, digits: int | None, scale: int | None) -> ParameterColumn:
    if base in _BITS:
        return _integer_column(name, shown, _BITS[base], unsigned="unsigned" in shown.lower())
    match base:
        case "json":
            return ParameterColumn(name, shown, "json")
        case "decimal":
            return ParameterColumn(name, shown, "decimal", precision=digits, scale=scale)
        case "double":
            return ParameterColumn(name, shown, "double", scale=scale)
        case "float":
            return ParameterColumn(name, shown, "single", scale=scale, printed=6)
        case "year":
            return ParameterColumn(name, shown, "integer", 0, 2155)
    return ParameterColumn(name, shown, "other")
