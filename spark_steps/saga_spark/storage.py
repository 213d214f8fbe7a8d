"""File-system helpers over pyarrow.fs. Every file is named by a URI or a local path."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import uuid
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pyarrow.parquet as pq
from pyarrow import fs

from saga_spark.manifest import StagedFile

COPY_CHUNK_BYTES = 8 * 1024 * 1024
"""Chunk size of a copy, in bytes."""


def resolve_uri(uri: str) -> tuple[fs.FileSystem, str]:
    """Returns the file system of a URI or a local path, and the path within it."""
    if "://" not in uri and not uri.startswith("file:"):
        return fs.LocalFileSystem(), os.path.abspath(uri)
    return fs.FileSystem.from_uri(uri)


def local_path(uri: str) -> Path | None:
    """The path of a local URI (``file:///…``) or of a plain path; None for every other file system."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(os.path.abspath(uri)) if "://" not in uri else None


def file_size(uri: str) -> int | None:
    """The size of a file in bytes; None if it does not exist."""
    system, path = resolve_uri(uri)
    info = system.get_file_info(path)
    return info.size if info.type is fs.FileType.File else None


def is_folder(uri: str) -> bool:
    """Return whether a folder exists (in an object store: whether anything exists under this prefix)."""
    system, path = resolve_uri(uri)
    return system.get_file_info(path).type is fs.FileType.Directory


def create_folder(uri: str) -> None:
    """Create a folder and its parents; does nothing if it exists."""
    system, path = resolve_uri(uri)
    system.create_dir(path, recursive=True)


def probe_folder(uri: str) -> None:
    """Check that a folder is usable: create it if missing, then write, read back and remove a file.

    Raises OSError, or ValueError if the URI names no file system.
    """
    create_folder(uri)
    system, folder = resolve_uri(uri)
    path = f"{folder.rstrip('/')}/.probe-{uuid.uuid4().hex}"
    with system.open_output_stream(path) as stream:
        stream.write(b"probe")
    try:
        with system.open_input_stream(path) as stream:
            if stream.read() != b"probe":
                raise OSError("the file that was read differs from the file that was written")
    finally:
        system.delete_file(path)


def delete_folder(uri: str) -> None:
    """Delete a folder with its contents; does nothing if it does not exist or is deleted concurrently."""
    system, path = resolve_uri(uri)
    with contextlib.suppress(FileNotFoundError):
        if system.get_file_info(path).type is fs.FileType.Directory:
            system.delete_dir(path)


def link_or_copy(source: str, target: str) -> None:
    """Make a file available at another location: a hard link within one local file system, else a copy.

    The target is complete and durable afterwards; an existing target is replaced. The folder of the target must exist.
    """
    source_path, target_path = local_path(source), local_path(target)
    if target_path is None:
        from_system, from_path = resolve_uri(source)
        to_system, to_path = resolve_uri(target)
        # Object stores write an object atomically.
        fs.copy_files(from_path, to_path, from_system, to_system, chunk_size=COPY_CHUNK_BYTES)
        return
    temporary = target_path.with_name(f".{target_path.name}.{uuid.uuid4().hex}")
    try:
        if source_path is None or not _try_hard_link(source_path, temporary):
            system, path = resolve_uri(source)
            fs.copy_files(path, str(temporary), source_filesystem=system, destination_filesystem=fs.LocalFileSystem())
        fsync_path(temporary)
        os.replace(temporary, target_path)
        if temporary.exists():  # rename does nothing when both names are hard links to the same file
            temporary.unlink()
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_once(uri: str, content: bytes) -> None:
    """Create an immutable file; writing the same content again is not an error.

    Raises FileExistsError if the file exists with different content. On a local file system exactly one of several
    concurrent writers succeeds; on others the check precedes the write and is not atomic.
    """
    local = local_path(uri)
    if local is None:
        system, path = resolve_uri(uri)
        if system.get_file_info(path).type is not fs.FileType.File:
            with system.open_output_stream(path) as stream:
                stream.write(content)
            return
        with system.open_input_stream(path) as stream:
            existing = stream.read()
    else:
        temporary = local.with_name(f".{local.name}.{uuid.uuid4().hex}")
        try:
            temporary.write_bytes(content)
            fsync_path(temporary)
            os.link(temporary, local)  # fails if the name exists, which makes this write-once
            fsync_path(local.parent)
            return
        except FileExistsError:
            existing = local.read_bytes()
        finally:
            temporary.unlink(missing_ok=True)
    if existing != content:
        raise FileExistsError(f"{uri} exists with different content")


def replace_file(path: Path, content: bytes) -> None:
    """Replace a local file atomically: a reader sees the old or the new content, even after a power failure."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(content)
        fsync_path(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_path(path.parent)


def fsync_path(path: Path) -> None:
    """Flush a local file's content, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _try_hard_link(source: Path, target: Path) -> bool:
    """False where a hard link is impossible: another device, or a file system without links."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


FOOTER_READERS = 8
"""Number of footers read concurrently."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One file as the file system lists it. ``modified`` is in nanoseconds since 1970."""

    uri: str
    bytes: int
    modified: int | None


_HADOOP_GLOB = re.compile(r"[*?\[\]{}\\]")
_ESCAPED_WILDCARD = re.compile(r"\[([*?[])\]")


def spark_path(uri: str) -> str:
    """The place of one file or folder as Hadoop names it: it does not decode ``%20`` in the path of a local file.

    Spark writes there, and takes it as `basePath`; a reader needs :func:`spark_read_path`.
    """
    return f"file://{unquote(urlsplit(uri).path)}" if uri.startswith("file:") else uri


def spark_read_path(uri: str) -> str:
    """The place of one file or folder for a reader of Spark, which takes every path as a glob: with its special
    characters escaped, so that the file ``a*.parquet`` does not also mean ``a1.parquet``.
    """
    return _HADOOP_GLOB.sub(r"\\\g<0>", spark_path(uri))


def to_uri(like: str, path: str) -> str:
    """The URI of a path on the same file system as ``like``, which is a URI or a local path."""
    parts = urlsplit(like)
    if "://" not in like or parts.scheme == "file":
        return "file://" + quote(path)
    return f"{parts.scheme}://{parts.netloc}{path}" if path.startswith("/") else f"{parts.scheme}://{path}"


def project_location(location: str, root: Path) -> str:
    """Resolve a path against the project folder; a URI is returned unchanged."""
    return location if "://" in location or location.startswith("file:") else str(root / location)


def project_glob(location: str, root: Path) -> str:
    """Resolve a glob against the project folder, whose own path is not a pattern; a URI is returned unchanged."""
    if "://" in location or location.startswith("file:"):
        return location
    return str(Path(glob.escape(str(root)), location))


def split_glob(location: str) -> tuple[str, list[str]]:
    """Split before the first component with a wildcard (``*``, ``?``, ``[``): the path above it, and the components.

    ``[*]``, ``[?]`` and ``[[]`` are the characters themselves.
    """
    parts = resolve_uri(location)[1].rstrip("/").split("/")
    plain = next((index for index, part in enumerate(parts) if _has_wildcard(part)), len(parts))
    return _ESCAPED_WILDCARD.sub(r"\1", "/".join(parts[:plain])), parts[plain:]


def _has_wildcard(part: str) -> bool:
    return any(wildcard in _ESCAPED_WILDCARD.sub("", part) for wildcard in "*?[")


def list_parquet_files(location: str) -> list[ListedFile]:
    """The Parquet files in or below a folder, or those that match a glob (``days/*/part-*.parquet``), sorted.

    Names that begin with ``_`` or ``.`` are hidden, as in Spark.
    """
    return _list_parquet_files(location, *split_glob(location))


def _list_parquet_files(like: str, base: str, pattern: Sequence[str] = ()) -> list[ListedFile]:
    system, _ = resolve_uri(like)
    info = system.get_file_info(base)
    if info.type is fs.FileType.File:
        return [_listed_file(like, info)]
    if info.type is not fs.FileType.Directory:
        return []
    files = []
    for info in system.get_file_info(fs.FileSelector(base, recursive=True)):
        below = info.path[len(base) :].strip("/").split("/")
        if info.type is not fs.FileType.File or any(part[0] in "_." for part in below) or len(below) < len(pattern):
            continue
        named = bool(pattern) and len(below) == len(pattern)
        if (named or info.path.endswith(".parquet")) and all(map(fnmatch, below, pattern)):
            files.append(_listed_file(like, info))
    return sorted(files, key=lambda file: file.uri)


def list_staged_files(uri: str) -> tuple[StagedFile, ...]:
    """The Parquet files of a folder with their sizes, and their row counts from the footers."""
    system, folder = resolve_uri(uri)
    listed = _list_parquet_files(uri, folder.rstrip("/"))

    def rows(file: ListedFile) -> int:
        with system.open_input_file(resolve_uri(file.uri)[1]) as source:
            return pq.read_metadata(source).num_rows

    with ThreadPoolExecutor(FOOTER_READERS) as pool:
        counts = list(pool.map(rows, listed))
    return tuple(StagedFile(file.uri, file.bytes, count) for file, count in zip(listed, counts, strict=True))


def null_counts(files: Sequence[StagedFile], names: Collection[str]) -> dict[str, int]:
    """The null counts of plain columns from the footers.

    A column is omitted if any footer lacks its count: statistics are optional in Parquet.
    """
    counts = dict.fromkeys(names, 0)
    with ThreadPoolExecutor(FOOTER_READERS) as pool:
        for file_counts in pool.map(lambda file: _file_null_counts(file, names), files):
            counts = {name: count + file_counts[name] for name, count in counts.items() if name in file_counts}
    return counts


def _file_null_counts(file: StagedFile, names: Collection[str]) -> dict[str, int]:
    system, path = resolve_uri(file.uri)
    with system.open_input_file(path) as source:
        footer = pq.read_metadata(source)
    paths = [footer.schema.column(index).path for index in range(footer.num_columns)]
    counts: dict[str, int] = {}
    for name in names:
        if paths.count(name) != 1:  # the column is missing, or `a.b` is also a field of a struct
            continue
        index = paths.index(name)
        chunks = [footer.row_group(number).column(index).statistics for number in range(footer.num_row_groups)]
        if all(chunk is not None and chunk.has_null_count for chunk in chunks):
            counts[name] = sum(chunk.null_count for chunk in chunks)
    return counts


def _listed_file(like: str, info: fs.FileInfo) -> ListedFile:
    return ListedFile(to_uri(like, info.path), info.size, info.mtime_ns)
