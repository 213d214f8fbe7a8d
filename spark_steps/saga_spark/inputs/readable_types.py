"""Says how Spark reads columns of Parquet files: types it reads as they are, types that are converted, and the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

MAX_PRECISION = 38

_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_SPARK_NAMES: Mapping[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", "UTC"): "timestamp",
}


class UnreadableType(Exception):
    """A column cannot be read; the message names it."""

    @staticmethod
    def of(path: str, kind: pa.DataType | str, reason: str) -> UnreadableType:
        return UnreadableType(f"the column {path} has the type {kind}, {reason}")


class TypesDiffer(Exception):
    """A column has types that no single type holds."""

    def __init__(self, path: str, first: pa.DataType, second: pa.DataType) -> None:
        super().__init__(path)
        self.path, self.first, self.second = path, first, second


@dataclass(frozen=True, slots=True)
class ReadableType:
    """``type`` is what Spark reads; ``converted``: only after the file was copied with this type."""

    type: pa.DataType
    converted: bool = False


def readable_type(kind: pa.DataType, path: str, *, int96: bool = False) -> ReadableType:
    """The reading of a type that pyarrow has read from a file; ``int96``: timestamps have the legacy form.

    The type ``null`` stays: it says nothing about the column. Raises UnreadableType.
    """
    match kind:
        case pa.DictionaryType():
            return readable_type(kind.value_type, path, int96=int96)
        case pa.StructType():
            check_names([field.name for field in kind], f"{path}.")
            fields = {field.name: readable_type(field.type, f"{path}.{field.name}", int96=int96) for field in kind}
            parts = list(fields.values())
            made = pa.struct([(name, field.type) for name, field in fields.items()])
        case pa.MapType():
            parts = [readable_type(side, path, int96=int96) for side in (kind.key_type, kind.item_type)]
            made = pa.map_(parts[0].type, parts[1].type)
        case pa.ListType() | pa.LargeListType() | pa.FixedSizeListType() | pa.ListViewType() | pa.LargeListViewType():
            parts = [readable_type(kind.value_type, path, int96=int96)]
            made = pa.list_(parts[0].type)
        case pa.BaseExtensionType():
            if kind.extension_name == "arrow.uuid":
                raise UnreadableType.of(path, kind, "which Spark cannot read; write it as text")
            return readable_type(kind.storage_type, path, int96=int96)
        case _:
            return _readable_plain_type(kind, path, int96)
    return ReadableType(made, any(part.converted for part in parts))


def _readable_plain_type(kind: pa.DataType, path: str, int96: bool) -> ReadableType:
    if kind in _UNSIGNED:
        return ReadableType(_UNSIGNED[kind])
    if pa.types.is_timestamp(kind):
        if int96:
            return ReadableType(pa.timestamp("us", "UTC"))
        return ReadableType(pa.timestamp("us", "UTC" if kind.tz else None), converted=kind.unit == "ns")
    if pa.types.is_decimal(kind):
        if kind.precision > MAX_PRECISION:
            raise UnreadableType.of(path, kind, f"but a decimal of Spark has {MAX_PRECISION} digits; write it as text")
        return ReadableType(pa.decimal128(kind.precision, kind.scale))
    if pa.types.is_time(kind):
        return ReadableType(pa.string(), converted=True)
    if pa.types.is_float16(kind):
        return ReadableType(pa.float32(), converted=True)
    if pa.types.is_date(kind):
        return ReadableType(pa.date32())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return ReadableType(pa.string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return ReadableType(pa.binary())
    if pa.types.is_fixed_size_binary(kind):
        return ReadableType(pa.binary())
    if pa.types.is_duration(kind):
        raise UnreadableType.of(
            path, kind, "which Spark would read as a number without its unit; write a number or text"
        )
    if pa.types.is_null(kind) or kind in _SPARK_NAMES:
        return ReadableType(kind)
    raise UnreadableType.of(path, kind, "which Spark cannot read; write it as text")


def check_names(names: list[str], prefix: str = "") -> None:
    """Spark does not distinguish names by case. Raises UnreadableType."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other is not name:
            raise UnreadableType(f"the columns {prefix}{other} and {prefix}{name} have one name to Spark; rename one")


def merged_type(first: pa.DataType, second: pa.DataType, path: str) -> pa.DataType:
    """The type that holds the values of both: the wider integer, the fields of both structs. Raises TypesDiffer."""
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    if first in _INTEGERS and second in _INTEGERS:
        return max(first, second, key=_INTEGERS.index)
    match first, second:
        case pa.StructType(), pa.StructType():
            fields = merged_fields({f.name: f.type for f in first}, {f.name: f.type for f in second}, f"{path}.")
            return pa.struct(list(fields.items()))
        case pa.ListType(), pa.ListType():
            return pa.list_(merged_type(first.value_type, second.value_type, path))
        case pa.MapType(), pa.MapType():
            return pa.map_(
                merged_type(first.key_type, second.key_type, path),
                merged_type(first.item_type, second.item_type, path),
            )
    raise TypesDiffer(path, first, second)


def merged_fields(
    first: Mapping[str, pa.DataType], second: Mapping[str, pa.DataType], prefix: str = ""
) -> dict[str, pa.DataType]:
    """The columns of both by name, which Spark compares without case; the first spelling stays. Raises TypesDiffer."""
    merged = dict(first)
    spelled = {name.lower(): name for name in first}
    for name, kind in second.items():
        own = spelled.setdefault(name.lower(), name)
        merged[own] = merged_type(merged.get(own, pa.null()), kind, f"{prefix}{own}")
    return merged


def without_nulls(kind: pa.DataType) -> pa.DataType:
    """The type with text in place of null: no file has a type for this column, and all its values are null."""
    match kind:
        case pa.StructType():
            return pa.struct([(field.name, without_nulls(field.type)) for field in kind])
        case pa.ListType():
            return pa.list_(without_nulls(kind.value_type))
        case pa.MapType():
            return pa.map_(without_nulls(kind.key_type), without_nulls(kind.item_type))
    return pa.string() if pa.types.is_null(kind) else kind


def spark_type(kind: pa.DataType) -> Any:
    """Spark's JSON of the type."""
    match kind:
        case pa.StructType():
            return spark_schema({field.name: field.type for field in kind})
        case pa.ListType():
            return {"type": "array", "elementType": spark_type(kind.value_type), "containsNull": True}
        case pa.MapType():
            return {
                "type": "map",
                "keyType": spark_type(kind.key_type),
                "valueType": spark_type(kind.item_type),
                "valueContainsNull": True,
            }
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _SPARK_NAMES[kind]


def spark_schema(columns: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """Spark's JSON of a struct of nullable fields."""
    fields = [
        {"name": name, "type": spark_type(kind), "nullable": True, "metadata": {}} for name, kind in columns.items()
    ]
    return {"type": "struct", "fields": fields}


def has_null_type(kind: pa.DataType) -> bool:
    """Return whether the type, or a part of it, is null."""
    return pa.types.is_null(kind) or any(has_null_type(kind.field(index).type) for index in range(kind.num_fields))
