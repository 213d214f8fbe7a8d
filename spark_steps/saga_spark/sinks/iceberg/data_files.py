"""The data files of a publication below the location of its table: placing, describing and removing them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.metadata import TableMetadata

from saga_spark.manifest import StagedFile, Target
from saga_spark.sinks.iceberg.partition_values import file_partition
from saga_spark.sinks.sink import Publication
from saga_spark.storage import link_or_copy, local_path, resolve_uri
from sagas.errors import UsageError


def publication_folder(location: str, target: Target) -> str:
    """The folder of everything that a publication adds to the table's location."""
    return f"{location.rstrip('/')}/data/saga-{target.name}"


def placed_files(location: str, publication: Publication) -> dict[str, StagedFile]:
    """The location of each staged file, the same for every attempt; files without rows are left out."""
    folder = f"{publication_folder(location, publication.tag.target)}/{publication.tag.sha}"
    files = [file for file in publication.manifest.files if file.rows]
    return {f"{folder}/{number:05d}.parquet": file for number, file in enumerate(files)}


def place_files(io: FileIO, location: str, publication: Publication) -> list[str]:
    """Link the staged files to their locations, or copy them where linking is impossible; existing files stay."""
    names = placed_files(location, publication)
    for name, file in names.items():
        system, path = resolve_table_file(io, name)
        existing = system.get_file_info(path)
        if existing.type == pafs.FileType.File and existing.size == file.bytes:
            continue
        if _is_local(system):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(file.uri, path)
        else:
            source, source_path = resolve_uri(file.uri)
            pafs.copy_files(source_path, path, source_filesystem=source, destination_filesystem=system)
    return list(names)


def remove_files(io: FileIO, location: str, target: Target) -> None:
    """Remove everything that was placed for the target."""
    system, path = resolve_table_file(io, publication_folder(location, target))
    if system.get_file_info(path).type == pafs.FileType.Directory:
        system.delete_dir(path)


def space_problems(io: FileIO, location: str, publication: Publication) -> list[str]:
    """For local disks: whether the location is writable, and has space for a copy where one is needed."""
    system, path = resolve_table_file(io, location)
    if not _is_local(system):
        return []
    folder = next(folder for folder in (Path(path), *Path(path).parents) if folder.exists())
    if not os.access(folder, os.W_OK | os.X_OK):
        return [f"the folder {folder} of the table {publication.output.destination} is not writable"]
    needed = sum(file.bytes for file in publication.manifest.files if not _can_hard_link(file.uri, folder))
    free = shutil.disk_usage(folder).free
    if needed > free:
        return [
            f"the table {publication.output.destination} needs {needed} bytes in {folder}, but only {free} are free"
        ]
    return []


def to_data_file(metadata: TableMetadata, name: str, system: pafs.FileSystem, path: str) -> DataFile:
    """The Iceberg description of one file, from its footer. Nullability of columns is ignored, because the manifest has
    the null counts.

    Raises ValueError, one message, if the file does not fit the table's partitions.
    """
    schema = metadata.schema()
    with system.open_input_file(path) as stream:
        size = stream.size()
        footer = pq.read_metadata(stream)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )

    def read_column(column: str) -> pa.ChunkedArray:
        with system.open_input_file(path) as stream, pq.ParquetFile(stream) as file:
            return file.read(columns=[column]).column(column)

    try:
        partition = file_partition(metadata, statistics, read_column)
    except ValueError as error:
        raise ValueError(f"the file {Path(path).name} {error}") from None
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=name,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def staged_field_ids(uris: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Columns of staged files that have a field id: readers would match these columns by id instead of by name."""
    for uri in uris:
        system, path = resolve_uri(uri)
        for column in pq.read_schema(path, filesystem=system):
            field_id = (column.metadata or {}).get(b"PARQUET:field_id")
            if field_id is not None:
                yield column.name, int(field_id)


def resolve_table_file(io: FileIO, location: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a table's file, with the catalog's credentials, and the path in it.

    Raises UsageError if the catalog does not read files through pyarrow.
    """
    if not isinstance(io, PyArrowFileIO):
        raise UsageError(
            f"the `py-io-impl` of the catalog is {type(io).__name__}; remove it, because Spark steps need PyArrowFileIO"
        )
    scheme, server, path = io.parse_location(location, io.properties)
    return io.fs_by_scheme(scheme, server), path


def _is_local(system: pafs.FileSystem) -> bool:
    return isinstance(system, pafs.LocalFileSystem)


def _can_hard_link(uri: str, folder: Path) -> bool:
    path = local_path(uri)
    return path is not None and path.stat().st_dev == folder.stat().st_dev
