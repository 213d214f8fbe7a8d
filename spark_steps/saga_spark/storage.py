"""Which Parquet files are where, and what their footers say."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pyarrow.parquet as pq
from pyarrow import fs

from saga_spark.manifest import StagedFile
from saga_spark.sinks.files import resolve

READERS = 8
"""Footers read at the same time."""


@dataclass(frozen=True, slots=True)
class Found:
    """One file as the file system lists it: ``modified`` is in nanoseconds since 1970."""

    uri: str
    bytes: int
    modified: int | None


def spark_path(uri: str) -> str:
    """A URI as Hadoop reads it: it takes ``%20`` in the path of a local file for a name."""
    return f"file://{unquote(urlsplit(uri).path)}" if uri.startswith("file:") else uri


def uri_of(like: str, path: str) -> str:
    """The URI of a path on the file system of another URI, or of a local path."""
    parts = urlsplit(like)
    if "://" not in like or parts.scheme == "file":
        return "file://" + quote(path)
    return f"{parts.scheme}://{parts.netloc}{path}" if path.startswith("/") else f"{parts.scheme}://{path}"


def local_or_uri(text: str, root: Path) -> str:
    """A URI stays; a path is taken relative to the project folder."""
    return text if "://" in text or text.startswith("file:") else str(root / text)


def split_pattern(place: str) -> tuple[str, list[str]]:
    """The path above the first part with a ``*``, ``?`` or ``[``, and the parts from there on."""
    parts = resolve(place)[1].rstrip("/").split("/")
    plain = next((at for at, part in enumerate(parts) if any(one in part for one in "*?[")), len(parts))
    return "/".join(parts[:plain]), parts[plain:]


def listing(place: str) -> list[Found]:
    """The Parquet files of a folder and below it, or those that a pattern names (``days/*/part-*.parquet``), sorted.

    What begins with ``_`` or ``.`` is hidden, as Spark has it.
    """
    system, _ = resolve(place)
    base, pattern = split_pattern(place)
    info = system.get_file_info(base)
    if info.type is fs.FileType.File:
        return [_found(place, info)]
    if info.type is not fs.FileType.Directory:
        return []
    files = []
    for one in system.get_file_info(fs.FileSelector(base, recursive=True)):
        below = one.path[len(base) :].strip("/").split("/")
        if one.type is not fs.FileType.File or any(part[0] in "_." for part in below) or len(below) < len(pattern):
            continue
        named = bool(pattern) and len(below) == len(pattern)
        if (named or one.path.endswith(".parquet")) and all(map(fnmatch, below, pattern)):
            files.append(_found(place, one))
    return sorted(files, key=lambda file: file.uri)


def staged_files(uri: str) -> tuple[StagedFile, ...]:
    """The Parquet files of a folder with their sizes and rows, as their footers say."""
    found = listing(uri)
    system, _ = resolve(uri)

    def rows(file: Found) -> int:
        with system.open_input_file(resolve(file.uri)[1]) as source:
            return pq.read_metadata(source).num_rows

    with ThreadPoolExecutor(READERS) as pool:
        counts = list(pool.map(rows, found))
    return tuple(StagedFile(file.uri, file.bytes, count) for file, count in zip(found, counts, strict=True))


def null_counts(files: Sequence[StagedFile], names: Collection[str]) -> dict[str, int]:
    """How many nulls plain columns have, as the footers say. A column is left out where a footer does not tell: a
    writer may leave statistics out."""
    counts = dict.fromkeys(names, 0)
    with ThreadPoolExecutor(READERS) as pool:
        for found in pool.map(lambda file: _nulls(file, names), files):
            counts = {name: count + found[name] for name, count in counts.items() if name in found}
    return counts


def _nulls(file: StagedFile, names: Collection[str]) -> dict[str, int]:
    system, path = resolve(file.uri)
    with system.open_input_file(path) as source:
        footer = pq.read_metadata(source)
    paths = [footer.schema.column(at).path for at in range(footer.num_columns)]
    found: dict[str, int] = {}
    for name in names:
        if paths.count(name) != 1:  # the file lacks the column, or `a.b` is also a field of a struct
            continue
        at = paths.index(name)
        chunks = [footer.row_group(number).column(at).statistics for number in range(footer.num_row_groups)]
        if all(one is not None and one.has_null_count for one in chunks):
            found[name] = sum(one.null_count for one in chunks)
    return found


def _found(like: str, info: fs.FileInfo) -> Found:
    return Found(uri_of(like, info.path), info.size, info.mtime_ns)
