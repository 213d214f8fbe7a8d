"""The rows' type in Iceberg's words, and whether a table takes them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from saga_spark.manifest import Manifest

_PLAIN: dict[str, IcebergType] = {
    "boolean": BooleanType(),
    "byte": IntegerType(),
    "short": IntegerType(),
    "integer": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_TEXT = re.compile(r"(var)?char\(\d+\)")


def staged_schema(manifest: Manifest) -> Schema:
    """The schema of the staged rows, every column optional: whether Spark can prove a column to be without nulls says
    more about the query than about the data.

    Raises ValueError: a column's type has no counterpart in Iceberg, or there is no column.
    """
    ids = itertools.count(1)
    fields = list(_fields(manifest.schema.get("fields", ()), ids, where=""))
    if not fields:
        raise ValueError("the staged rows have no columns")
    return Schema(*fields)


def partition_spec(schema: Schema, columns: Sequence[str]) -> PartitionSpec:
    """Each column as it is (identity). Raises ValueError: there is no such column."""
    if not columns:
        return UNPARTITIONED_PARTITION_SPEC
    known = {field.name: field.field_id for field in schema.fields}
    for column in columns:
        if column not in known:
            raise ValueError(f"the output has no column {column}, by which it is to be partitioned")
    return PartitionSpec(
        *(
            PartitionField(
                source_id=known[column],
                field_id=PARTITION_FIELD_ID_START + number,
                transform=IdentityTransform(),
                name=column,
            )
            for number, column in enumerate(columns)
        )
    )


def schema_problems(table: Schema, staged: Schema, manifest: Manifest, place: str) -> list[str]:
    """One sentence for each column that the table does not take as it is."""
    known = {field.name: field for field in table.fields}
    given = {field.name: field for field in staged.fields}
    nulls = {column.name: column.nulls for column in manifest.columns}
    problems = [f"the output has no column {name}, and the table {place} has it" for name in known if name not in given]
    for name, field in given.items():
        column = known.get(name)
        if column is None:
            problems.append(f"the table {place} has no column {name}, and the output has it")
        elif type_text(field.field_type) != type_text(column.field_type):
            problems.append(
                f"the column {name} is {type_text(field.field_type)} in the output "
                f"and {type_text(column.field_type)} in the table {place}"
            )
        elif _has_required(column.field_type):
            problems.append(f"the column {name} of the table {place} requires values inside a nested type")
        elif column.required and nulls.get(name) != 0 and manifest.rows:
            found = nulls.get(name)
            seen = f"has {found} nulls" if found else "may have nulls"
            problems.append(f"the column {name} of the table {place} takes no nulls, and the output {seen} in it")
    return problems


def partition_problems(spec: PartitionSpec, schema: Schema, wanted: Sequence[str], place: str) -> list[str]:
    """What `partition_by` says must be how an existing table is partitioned."""
    if not wanted:
        return []
    now = [partition_text(field.source_id, str(field.transform), schema) for field in spec.fields]
    if now == list(wanted):
        return []
    how = f"by {', '.join(now)}" if now else "not at all"
    return [f"the output is to be partitioned by {', '.join(wanted)}, and the table {place} is partitioned {how}"]


def partition_text(source_id: int, transform: str, schema: Schema) -> str:
    column = schema.find_column_name(source_id) or f"field {source_id}"
    return column if transform == "identity" else f"{transform}({column})"


def type_text(kind: IcebergType) -> str:
    """A type without the ids of its fields: `struct<a: int, b: list<string>>`."""
    match kind:
        case StructType():
            return f"struct<{', '.join(f'{one.name}: {type_text(one.field_type)}' for one in kind.fields)}>"
        case ListType():
            return f"list<{type_text(kind.element_type)}>"
        case MapType():
            return f"map<{type_text(kind.key_type)}, {type_text(kind.value_type)}>"
        case _:
            return str(kind)


def _has_required(kind: IcebergType) -> bool:
    match kind:
        case StructType():
            return any(one.required or _has_required(one.field_type) for one in kind.fields)
        case ListType():
            return kind.element_required or _has_required(kind.element_type)
        case MapType():
            return kind.value_required or _has_required(kind.value_type)
        case _:
            return False


def _fields(written: Sequence[Mapping[str, Any]], ids: Iterator[int], where: str) -> Iterator[NestedField]:
    for one in written:
        number = next(ids)
        kind = _type(one["type"], ids, f"{where}{one['name']}")
        yield NestedField(number, one["name"], kind, required=False)


def _type(written: Any, ids: Iterator[int], where: str) -> IcebergType:
    if isinstance(written, Mapping):
        match written.get("type"):
            case "struct":
                return StructType(*_fields(written["fields"], ids, f"{where}."))
            case "array":
                number = next(ids)
                return ListType(number, _type(written["elementType"], ids, where), element_required=False)
            case "map":
                key, value = next(ids), next(ids)
                key_type = _type(written["keyType"], ids, where)
                return MapType(key, key_type, value, _type(written["valueType"], ids, where), value_required=False)
    elif isinstance(written, str):
        if written in _PLAIN:
            return _PLAIN[written]
        if decimal := _DECIMAL.fullmatch(written):
            return DecimalType(int(decimal[1]), int(decimal[2]))
        if _TEXT.fullmatch(written):
            return StringType()
    name = written.get("type") if isinstance(written, Mapping) else written
    raise ValueError(f"the column {where} has the type {name}, which Iceberg does not have")
