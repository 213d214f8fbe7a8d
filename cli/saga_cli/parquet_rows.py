"""Rows of a Parquet file as JSON with exact numbers.

A decimal is a number with its digits, a date or time is ISO 8601 to the nanosecond, a float without a fraction is that
integer, and any other has the shortest digits that stand for it. What JSON has no form for is refused with file and
column.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from saga_cli.input_columns import check_columns
from saga_cli.inputs import InputRow
from sagas.definition.schema_types import types_at
from sagas.errors import UsageError
from sagas.text.exact_json import decimal_problem, number_text

Convert = Callable[[Any], Any]
"""The JSON form of a value that is not null. Raises ValueError: it has none."""

_UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_EPOCH = date(1970, 1, 1)
_DAY = 86_400
_FLOATS = {16: ("e", 5), 32: ("f", 9)}


def parquet_rows(path: Path, schema: Mapping[str, Any]) -> Iterator[InputRow | str]:
    """One input for each row; a null leaves its field out.

    Raises UsageError: pyarrow is missing, the file is not Parquet, or a column has a type without a form in JSON.
    """
    try:
        import pyarrow as arrow  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UsageError(
            "reading Parquet files needs the package pyarrow, which is not installed",
            help="pip install 'saga-orchestrator[parquet]'",
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            columns = [_ParquetColumn(path, field, schema) for field in file.schema_arrow]
            _refuse_repeated(path, [column.name for column in columns])
            check_columns(str(path), {column.name: (column.name,) for column in columns}, schema)
            number = 0
            for batch in file.iter_batches():
                values = [column.plain(batch.column(index)) for index, column in enumerate(columns)]
                for index in range(batch.num_rows):
                    number += 1
                    row = _row(columns, [cells[index] for cells in values])
                    place = f"{path} row {number}"
                    yield f"{place}: {row}" if isinstance(row, str) else InputRow(number, place, row)
    except arrow.ArrowException as error:
        raise UsageError(
            f"{path} cannot be read as Parquet: {' '.join(str(error).split())[:200]}",
            help="write the file again, or its rows to a .jsonl file",
        ) from error


def _refuse_repeated(path: Path, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{path} has several columns named {name}; rename them")


class _ParquetColumn:
    """A column whose values are read in a type that Python reads exactly, and converted one by one."""

    def __init__(self, path: Path, field: Any, schema: Mapping[str, Any]) -> None:
        self.name: str = field.name
        self._type = field.type
        try:
            self._plain_type, self.convert = _conversion(field.type)
        except _Unsupported as error:
            raise UsageError(
                f"{path}: the column {field.name} has the type {field.type}, and {error.kind} has no form in JSON",
                help="write it as a string or a number, or leave the column out",
            ) from None
        types = types_at(schema, [field.name])
        if isinstance(field.type, _decimal_types()) and "string" in types and not types & {"number", "integer"}:
            self.convert = number_text

    def plain(self, array: Any) -> list[Any]:
        return (array if self._plain_type == self._type else array.cast(self._plain_type)).to_pylist()


def _row(columns: list[_ParquetColumn], cells: list[Any]) -> dict[str, Any] | str:
    value: dict[str, Any] = {}
    for column, cell in zip(columns, cells, strict=True):
        if cell is not None:
            try:
                value[column.name] = column.convert(cell)
            except ValueError as error:
                return f"column {column.name}: {error}"
    return value


class _Unsupported(Exception):
    def __init__(self, kind: Any) -> None:
        self.kind = kind


def _decimal_types() -> tuple[type, ...]:
    import pyarrow as arrow  # pyright: ignore[reportMissingImports]

    return arrow.Decimal128Type, arrow.Decimal256Type


def _conversion(kind: Any) -> tuple[Any, Convert]:
    """The type to read a column of this type in, and the conversion of its values."""
    import pyarrow as arrow  # pyright: ignore[reportMissingImports]

    types = arrow.types
    if types.is_null(kind) or types.is_boolean(kind) or types.is_integer(kind):
        return kind, _same
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return kind, _same
    if types.is_floating(kind):
        return kind, lambda value: _float(value, kind.bit_width)
    if types.is_decimal(kind):
        return kind, _decimal
    if types.is_date32(kind):
        return arrow.int32(), _date
    if types.is_date64(kind):
        return arrow.int64(), lambda value: _date(value // (1000 * _DAY))
    if types.is_time(kind):
        return (arrow.int32() if kind.bit_width == 32 else arrow.int64()), lambda value: _time(value, kind.unit)
    if types.is_timestamp(kind):
        return arrow.int64(), lambda value: _timestamp(value, kind.unit, zoned=kind.tz is not None)
    if types.is_duration(kind):
        return arrow.int64(), lambda value: _duration(value, kind.unit)
    if types.is_dictionary(kind):
        return _conversion(kind.value_type)
    if types.is_struct(kind):
        return _struct(kind)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _list(kind)
    if types.is_map(kind):
        return _map(kind)
    if getattr(kind, "extension_name", None) == "arrow.uuid":
        return kind, lambda value: str(value if isinstance(value, UUID) else UUID(bytes=value))
    raise _Unsupported(kind)


def _struct(kind: Any) -> tuple[Any, Convert]:
    import pyarrow as arrow  # pyright: ignore[reportMissingImports]

    fields = [kind.field(index) for index in range(kind.num_fields)]
    if len({field.name for field in fields}) < len(fields):
        raise _Unsupported("a structure with several fields of one name")
    plain = {field.name: _conversion(field.type) for field in fields}
    converts = {name: _or_null(convert) for name, (_, convert) in plain.items()}
    return (
        arrow.struct([(name, read) for name, (read, _) in plain.items()]),
        lambda value: {name: converts[name](item) for name, item in value.items()},
    )


def _list(kind: Any) -> tuple[Any, Convert]:
    import pyarrow as arrow  # pyright: ignore[reportMissingImports]

    read, convert = _conversion(kind.value_type)
    items = _or_null(convert)
    if arrow.types.is_large_list(kind):
        plain = arrow.large_list(read)
    else:
        plain = arrow.list_(read, kind.list_size) if arrow.types.is_fixed_size_list(kind) else arrow.list_(read)
    return plain, lambda value: [items(item) for item in value]


def _map(kind: Any) -> tuple[Any, Convert]:
    import pyarrow as arrow  # pyright: ignore[reportMissingImports]

    if not (arrow.types.is_string(kind.key_type) or arrow.types.is_large_string(kind.key_type)):
        raise _Unsupported("a map whose keys are not strings")
    read, convert = _conversion(kind.item_type)
    items = _or_null(convert)

    def to_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise ValueError("a map has a key twice")
        return {name: items(item) for name, item in pairs}

    return arrow.map_(kind.key_type, read), to_object


def _or_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def _decimal(value: Decimal) -> Decimal:
    if (problem := decimal_problem(value)) is not None:
        raise ValueError(problem)
    return value


def _float(value: float, bits: int) -> Decimal:
    """The integer that the float is, or the decimal with the fewest digits that is nearest to no other of this size."""
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"{value} is not a JSON number; leave the cell empty")
    if float(value).is_integer():
        return Decimal(int(value))
    if bits not in _FLOATS:
        return Decimal(repr(float(value)))
    code, most = _FLOATS[bits]
    packed = struct.pack(code, value)
    for digits in range(1, most + 1):
        text = f"{value:.{digits}g}"
        try:
            if struct.pack(code, float(text)) == packed:
                return Decimal(text)
        except OverflowError:
            continue
    return Decimal(repr(float(value)))


def _date(days: int) -> str:
    try:
        return (_EPOCH + timedelta(days=days)).isoformat()
    except OverflowError:
        raise ValueError("the date is not in the years 0001 to 9999") from None


def _time(value: int, unit: str) -> str:
    scale = 10 ** _UNITS[unit]
    seconds, fraction = divmod(value, scale)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    digits = f"{fraction:0{_UNITS[unit]}}".rstrip("0") if fraction else ""
    return f"{text}.{digits}" if digits else text


def _timestamp(value: int, unit: str, *, zoned: bool) -> str:
    day = 10 ** _UNITS[unit] * _DAY
    return f"{_date(value // day)}T{_time(value % day, unit)}{'Z' if zoned else ''}"


def _duration(value: int, unit: str) -> str:
    if value < 0:
        raise ValueError("a duration is negative")
    seconds = Decimal(value).scaleb(-_UNITS[unit])
    return f"PT{number_text(seconds.normalize() if seconds % 1 else Decimal(int(seconds)))}S"
