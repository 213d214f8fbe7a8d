"""Checks whether a table accepts an output: during the audit, and again immediately before the commit."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestContent
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform, VoidTransform
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

from saga_spark.job.job_spec import Output
from saga_spark.manifest import Manifest
from saga_spark.sinks.sink import Publication


def compatibility_problems(metadata: TableMetadata, publication: Publication) -> list[str]:
    """One message per mismatch between the output and the schema, partitions or properties of the table.

    Raises ValueError if a column's type has no counterpart in Iceberg.
    """
    output, manifest = publication.output, publication.manifest
    problems = schema_problems(metadata.schema(), staged_schema(manifest), manifest, output.destination)
    problems += partition_problems(metadata.spec(), metadata.schema(), output.partition_by, output.destination)
    return problems + _table_problems(metadata, output)


def _table_problems(metadata: TableMetadata, output: Output) -> list[str]:
    """Features of the table that this sink does not support."""
    problems = []
    if metadata.format_version > 2:
        problems.append(
            f"the table {output.destination} has the format version {metadata.format_version}; use version 1 or 2"
        )
    parts = [field for field in metadata.spec().fields if not isinstance(field.transform, VoidTransform)]
    if output.mode == "overwrite_partitions" and not parts:
        problems.append(f"the mode overwrite_partitions needs partitions, but the table {output.destination} has none")
    mapping = metadata.name_mapping()
    if mapping is not None:
        mapped = {name for field in mapping for name in field.names}
        for column in metadata.schema().column_names:
            if "." not in column and column not in mapped:
                problems.append(
                    f"the name mapping of the table lacks {column}; add it, because staged files have no field ids"
                )
    return problems


_PRIMITIVE_TYPES: dict[str, IcebergType] = {
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
_CHAR = re.compile(r"(var)?char\(\d+\)")


def staged_schema(manifest: Manifest) -> Schema:
    """The schema of the staged rows. Every column is optional: whether Spark can prove a column free of nulls depends
    on the query more than on the data.

    Raises ValueError if a column's type has no counterpart in Iceberg, or there are no columns.
    """
    ids = itertools.count(1)
    fields = list(_iceberg_fields(manifest.schema.get("fields", ()), ids, path=""))
    if not fields:
        raise ValueError("the staged rows have no columns")
    return Schema(*fields)


def partition_spec(schema: Schema, columns: Sequence[str]) -> PartitionSpec:
    """Identity partitioning by each column. Raises ValueError if a column does not exist."""
    if not columns:
        return UNPARTITIONED_PARTITION_SPEC
    ids = {field.name: field.field_id for field in schema.fields}
    for column in columns:
        if column not in ids:
            raise ValueError(f"the output has no column {column}, which `partition_by` names")
    return PartitionSpec(
        *(
            PartitionField(
                source_id=ids[column],
                field_id=PARTITION_FIELD_ID_START + number,
                transform=IdentityTransform(),
                name=column,
            )
            for number, column in enumerate(columns)
        )
    )


def schema_problems(table: Schema, staged: Schema, manifest: Manifest, table_name: str) -> list[str]:
    """One message per column that the table does not accept unchanged."""
    table_fields = {field.name: field for field in table.fields}
    staged_fields = {field.name: field for field in staged.fields}
    nulls = {column.name: column.nulls for column in manifest.columns}
    problems = [
        f"the output has no column {name}, which the table {table_name} has"
        for name in table_fields
        if name not in staged_fields
    ]
    for name, field in staged_fields.items():
        column = table_fields.get(name)
        if column is None:
            problems.append(f"the table {table_name} has no column {name}, which the output has")
        elif type_label(field.field_type) != type_label(column.field_type):
            problems.append(
                f"the column {name} is {type_label(field.field_type)} in the output "
                f"and {type_label(column.field_type)} in the table {table_name}"
            )
        elif _requires_nested_values(column.field_type):
            problems.append(f"the column {name} of the table {table_name} has required fields inside a nested type")
        elif column.required and nulls.get(name) != 0 and manifest.rows:
            count = nulls.get(name)
            seen = f"has {count} nulls" if count else "may have nulls"
            problems.append(
                f"the column {name} of the table {table_name} accepts no nulls, but the output {seen} in it"
            )
    return problems


def partition_problems(spec: PartitionSpec, schema: Schema, partition_by: Sequence[str], table_name: str) -> list[str]:
    """`partition_by` must equal the partitioning of an existing table."""
    if not partition_by:
        return []
    current = [partition_label(field.source_id, str(field.transform), schema) for field in spec.fields]
    if current == list(partition_by):
        return []
    partitioning = f"by {', '.join(current)}" if current else "not at all"
    return [f"`partition_by` is {', '.join(partition_by)}, but the table {table_name} is partitioned {partitioning}"]


def partition_label(source_id: int, transform: str, schema: Schema) -> str:
    column = schema.find_column_name(source_id) or f"field {source_id}"
    return column if transform == "identity" else f"{transform}({column})"


def type_label(kind: IcebergType) -> str:
    """A type without its field ids: `struct<a: int, b: list<string>>`."""
    match kind:
        case StructType():
            return f"struct<{', '.join(f'{field.name}: {type_label(field.field_type)}' for field in kind.fields)}>"
        case ListType():
            return f"list<{type_label(kind.element_type)}>"
        case MapType():
            return f"map<{type_label(kind.key_type)}, {type_label(kind.value_type)}>"
        case _:
            return str(kind)


def _requires_nested_values(kind: IcebergType) -> bool:
    match kind:
        case StructType():
            return any(field.required or _requires_nested_values(field.field_type) for field in kind.fields)
        case ListType():
            return kind.element_required or _requires_nested_values(kind.element_type)
        case MapType():
            return kind.value_required or _requires_nested_values(kind.value_type)
        case _:
            return False


def _iceberg_fields(spark_fields: Sequence[Mapping[str, Any]], ids: Iterator[int], path: str) -> Iterator[NestedField]:
    for spark_field in spark_fields:
        number = next(ids)
        kind = _iceberg_type(spark_field["type"], ids, f"{path}{spark_field['name']}")
        yield NestedField(number, spark_field["name"], kind, required=False)


def _iceberg_type(spark_type: Any, ids: Iterator[int], path: str) -> IcebergType:
    if isinstance(spark_type, Mapping):
        match spark_type.get("type"):
            case "struct":
                return StructType(*_iceberg_fields(spark_type["fields"], ids, f"{path}."))
            case "array":
                number = next(ids)
                return ListType(number, _iceberg_type(spark_type["elementType"], ids, path), element_required=False)
            case "map":
                key, value = next(ids), next(ids)
                key_type = _iceberg_type(spark_type["keyType"], ids, path)
                return MapType(
                    key, key_type, value, _iceberg_type(spark_type["valueType"], ids, path), value_required=False
                )
    elif isinstance(spark_type, str):
        if spark_type in _PRIMITIVE_TYPES:
            return _PRIMITIVE_TYPES[spark_type]
        if decimal := _DECIMAL.fullmatch(spark_type):
            return DecimalType(int(decimal[1]), int(decimal[2]))
        if _CHAR.fullmatch(spark_type):
            return StringType()
    name = spark_type.get("type") if isinstance(spark_type, Mapping) else spark_type
    raise ValueError(f"the column {path} has the type {name}, which Iceberg does not support")


COMPACTION_ADVICE = "rewrite its data files (compaction) with the engine that writes it"


def has_equality_deletes(io: FileIO, snapshot: Snapshot) -> bool:
    """Return whether an equality delete may apply to rows of live files.

    Compaction leaves equality deletes behind that are older than all live files; these have no effect.
    """
    manifests = snapshot.manifests(io)
    data = [data_manifest for data_manifest in manifests if data_manifest.content == ManifestContent.DATA]
    oldest = min((data_manifest.min_sequence_number or 0 for data_manifest in data), default=0)
    return any(
        entry.data_file.content == DataFileContent.EQUALITY_DELETES
        for manifest in manifests
        if manifest.content == ManifestContent.DELETES and (manifest.sequence_number or 0) >= oldest
        for entry in manifest.fetch_manifest_entry(io)
    )
