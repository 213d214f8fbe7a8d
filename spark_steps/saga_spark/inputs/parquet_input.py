"""Freezes Parquet files as one table: the union of their columns, each in the one type that holds all values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from saga_spark.inputs.readable_types import (
    ReadableType,
    TypesDiffer,
    UnreadableType,
    check_names,
    has_null_type,
    merged_fields,
    readable_type,
    spark_schema,
    without_nulls,
)
from saga_spark.job_errors import JobFailed, UnreadableInput, first_line
from saga_spark.storage import FOOTER_READERS, create_folder, resolve_uri

_SPARK_METADATA = b"org.apache.spark.sql.parquet.row.metadata"
_SPARK_OWN_TYPES = re.compile(rb'"(interval|variant|udt)')
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_PLAIN_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
_PLAIN_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_NUMBER_OR_TIME = re.compile(r"\s*[+-]?(\d|\.\d|inf|nan)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FileColumns:
    """The columns of one file as Spark reads them, and as pyarrow does."""

    uri: str
    label: str
    rows: int
    readable: Mapping[str, ReadableType]
    stored: pa.Schema
    has_spark_types: bool

    @property
    def types(self) -> dict[str, pa.DataType]:
        return {name: column.type for name, column in self.readable.items()}


def freeze_files(name: str, uris: Sequence[str], base: str | None, folder: str) -> dict[str, Any]:
    """``{"files", "base", "schema"}`` of files that Spark can read as they are, or of copies below ``folder``.

    Without a schema all files have the same columns. Files without rows count only for columns that no other file has:
    pandas gives their columns arbitrary types. Raises UnreadableInput, JobFailed.
    """
    with ThreadPoolExecutor(FOOTER_READERS) as pool:
        files = list(pool.map(lambda uri: _read_columns(name, uri, base), uris))
    columns = _merged_columns(name, files)
    _check_folder_columns(name, files, base)
    folder_columns = _text_columns(files, base)
    read = [file for file in files if file.rows] or files[:1]
    copied = [file for file in read if _needs_copy(file, columns)]
    same = all(file.types == read[0].types for file in read) and read[0].types == columns
    if same and not copied and not folder_columns:
        return {"files": [file.uri for file in read], **({"base": base} if base else {})}
    if any(file.has_spark_types for file in read):
        raise UnreadableInput(
            f"the input {name} has files with different columns, and columns of the types interval or variant, which "
            "Spark reads only from files with the same columns; write the files again"
        )
    if base and copied:  # the copies of all files need one base
        copied = list(read)
    copies = {file.uri: f"{folder}/{_relative(file.uri, base, index)}" for index, file in enumerate(copied)}
    for file in copied:
        _copy_file(name, file, columns, copies[file.uri])
    return {
        "files": [copies.get(file.uri, file.uri) for file in read],
        "schema": spark_schema({**columns, **folder_columns}),
        **({"base": folder if copied else base} if base else {}),
    }


def columns_of_files(name: str, uris: Sequence[str], base: str | None) -> tuple[dict[str, pa.DataType], set[str]]:
    """The columns that Spark reads of files, and the names of those in folders. Raises UnreadableInput, JobFailed."""
    with ThreadPoolExecutor(FOOTER_READERS) as pool:
        files = list(pool.map(lambda uri: _read_columns(name, uri, base), uris))
    folders = {column for uri in uris if base is not None for column, _ in _folder_values(uri[len(base) + 1 :])}
    return _merged_columns(name, files), folders


def convert_table(name: str, label: str, rows: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """The rows with the types that Spark reads. Raises UnreadableInput for a value that would change."""
    arrays = []
    for column, kind in types.items():
        array = rows.column(column)
        try:
            arrays.append(array if array.type == kind else _cast(array, kind))
        except pa.ArrowInvalid:
            raise UnreadableInput(
                f"the input {name}: the {label} has the value {_changed_value(array, kind)} in the column {column} "
                f"({array.type}), and Spark holds microseconds; round it, or write it as text or as a number"
            ) from None
    return pa.table(dict(zip(types, arrays, strict=True)))


def _read_columns(name: str, uri: str, base: str | None) -> FileColumns:
    label = f"file {unquote(uri[len(base) + 1 :] if base else uri.rpartition('/')[2])}"
    system, path = resolve_uri(uri)
    try:
        with system.open_input_file(path) as source, pq.ParquetFile(source) as file:
            stored, leaves, metadata = file.schema_arrow, file.schema, file.metadata
    except FileNotFoundError:
        raise JobFailed(f"the input {name}: the {label} does not exist any more") from None
    except pa.ArrowInvalid as error:
        raise UnreadableInput(
            f"the input {name}: the {label} is not a Parquet file, or is damaged; replace it ({first_line(error)})"
        ) from None
    details = [leaves.column(index) for index in range(len(leaves))]
    try:
        check_names(stored.names)
        readable = {}
        for field in stored:
            parts = [leaf for leaf in details if leaf.path == field.name or leaf.path.startswith(f"{field.name}.")]
            if any(leaf.converted_type == "INTERVAL" for leaf in parts):
                raise UnreadableType.of(field.name, "interval", "which Spark cannot read; write it as text")
            if "pandas.period" in (getattr(field.type, "extension_name", ""), _extension_name(field)):
                raise UnreadableType.of(field.name, "period", "which Spark would read as numbers; write dates or text")
            int96 = any(leaf.physical_type == "INT96" for leaf in parts)
            readable[field.name] = readable_type(field.type, field.name, int96=int96)
    except UnreadableType as error:
        raise UnreadableInput(f"the input {name}: in the {label} {error}") from None
    spark_types = bool(_SPARK_OWN_TYPES.search((metadata.metadata or {}).get(_SPARK_METADATA, b"")))
    return FileColumns(uri, label, metadata.num_rows, readable, stored, spark_types)


def _extension_name(field: pa.Field) -> str:
    """The name of an extension type that is not registered in this process."""
    return (field.metadata or {}).get(b"ARROW:extension:name", b"").decode()


def _merged_columns(name: str, files: Sequence[FileColumns]) -> dict[str, pa.DataType]:
    merged: dict[str, pa.DataType] = {}
    origin: dict[str, str] = {}
    for file in sorted(files, key=lambda file: not file.rows):
        types = file.types
        if not file.rows and any(other.rows for other in files):
            present = {column.lower() for column in merged}
            types = {column: kind for column, kind in types.items() if column.lower() not in present}
        try:
            merged = merged_fields(merged, types)
        except TypesDiffer as error:
            top = error.path.partition(".")[0]
            raise UnreadableInput(
                f"the input {name}: the column {error.path} is {error.first} in the {origin.get(top.lower(), 'first')} "
                f"and {error.second} in the {file.label}; write it with one type, or read the files as two inputs"
            ) from None
        for column, kind in types.items():
            if not pa.types.is_null(kind):
                origin.setdefault(column.lower(), file.label)
    return {column: without_nulls(kind) for column, kind in merged.items()}


def _needs_copy(file: FileColumns, columns: Mapping[str, pa.DataType]) -> bool:
    """Spark reads an integer as a wider one, but neither an unsigned one nor a column of nulls as another type."""
    merged = {name.lower(): kind for name, kind in columns.items()}
    for field in file.stored:
        column = file.readable[field.name]
        changes = merged[field.name.lower()] != column.type
        if column.converted or has_null_type(column.type) or (changes and _has_unsigned(field.type)):
            return True
    return False


def _has_unsigned(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _has_unsigned(kind.value_type)
    return pa.types.is_unsigned_integer(kind) or any(
        _has_unsigned(kind.field(index).type) for index in range(kind.num_fields)
    )


def _copy_file(name: str, file: FileColumns, columns: Mapping[str, pa.DataType], target: str) -> None:
    merged = {column.lower(): kind for column, kind in columns.items()}
    types = {field.name: kind for field in file.stored if not has_null_type(kind := merged[field.name.lower()])}
    create_folder(target.rpartition("/")[0])
    source_system, source_path = resolve_uri(file.uri)
    system, path = resolve_uri(target)
    with (
        source_system.open_input_file(source_path) as source,
        pq.ParquetFile(source) as reader,
        system.open_output_stream(path) as stream,
        pq.ParquetWriter(stream, pa.schema(list(types.items())), compression="zstd") as writer,
    ):
        for batch in reader.iter_batches():
            writer.write_table(convert_table(name, file.label, pa.Table.from_batches([batch]), types))


def _cast(array: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_timestamp(array.type) and array.type.tz and array.type.tz != "UTC":
        array = array.cast(pa.timestamp(array.type.unit, "UTC"))
    if isinstance(array.type, pa.BaseExtensionType):
        array = pa.chunked_array([chunk.storage for chunk in array.chunks], array.type.storage_type)
    return array.cast(kind)


def _changed_value(array: pa.ChunkedArray, kind: pa.DataType) -> str:
    for index in range(len(array)):
        value = array.slice(index, 1)
        try:
            _cast(value, kind)
        except pa.ArrowInvalid:
            return str(value.cast(pa.string())[0]) if pa.types.is_timestamp(array.type) else str(value[0])
    raise AssertionError("a column that cannot be converted has such a value")


def _relative(uri: str, base: str | None, at: int) -> str:
    return uri[len(base) + 1 :] if base else f"part-{at:05d}.parquet"


# Columns in the names of folders, day=2026-01-01. Spark infers their types: 007 becomes 7, and 12d the number 12.0.
def _check_folder_columns(name: str, files: Sequence[FileColumns], base: str | None) -> None:
    """Spark would replace the values of a file's column with the value of the folder. Raises UnreadableInput."""
    if base is None:
        return
    for file in files:
        stored = {column.lower(): column for column in file.stored.names}
        folders: dict[str, str] = {}
        for column, value in _folder_values(file.uri[len(base) + 1 :]):
            folder = f"{column}={value}"
            if column.lower() in stored:
                raise UnreadableInput(
                    f"the input {name}: the {file.label} has a column {stored[column.lower()]}, and its folder "
                    f"{folder} names that column too; remove the column from the file, or rename the folder"
                )
            if column.lower() in folders:
                raise UnreadableInput(
                    f"the input {name}: the {file.label} lies in the folders {folders[column.lower()]} and {folder}, "
                    "which name the same column; rename one of them"
                )
            folders[column.lower()] = folder


def _text_columns(files: Sequence[FileColumns], base: str | None) -> dict[str, pa.DataType]:
    """Folder columns that stay text: their values look like numbers or times, but are not all integers or all dates."""
    if base is None:
        return {}
    values: dict[str, set[str]] = {}
    for file in files:
        for column, value in _folder_values(file.uri[len(base) + 1 :]):
            if value == _NULL_FOLDER:
                continue
            values.setdefault(column, set()).add(value)
    return {
        column: pa.string()
        for column, seen in values.items()
        if any(map(_NUMBER_OR_TIME.match, seen))
        and not any(all(map(plain.fullmatch, seen)) for plain in (_PLAIN_INTEGER, _PLAIN_DATE))
    }


def _folder_values(path: str) -> Iterator[tuple[str, str]]:
    for part in path.split("/")[:-1]:
        column, equals, value = unquote(unquote(part)).partition("=")
        if equals:
            yield column, value
