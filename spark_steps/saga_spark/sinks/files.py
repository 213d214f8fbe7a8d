"""Small file-system helpers of the sinks, over pyarrow.fs: everything is named by URI or by local path."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyarrow import fs

CHUNK = 8 * 1024 * 1024
"""Bytes that are copied at once."""


def resolve(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system of a URI or of a local path, and the path in it."""
    if "://" not in uri and not uri.startswith("file:"):
        return fs.LocalFileSystem(), os.path.abspath(uri)
    return fs.FileSystem.from_uri(uri)


def local_path(uri: str) -> Path | None:
    """The path of a local URI (``file:///…``) or of a plain path; None for every other file system."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(os.path.abspath(uri)) if "://" not in uri else None


def size(uri: str) -> int | None:
    """The size of a file in bytes; None: there is no such file."""
    system, path = resolve(uri)
    info = system.get_file_info(path)
    return info.size if info.type is fs.FileType.File else None


def is_folder(uri: str) -> bool:
    """Is there a folder (or, in an object store, anything below this prefix)?"""
    system, path = resolve(uri)
    return system.get_file_info(path).type is fs.FileType.Directory


def create_folder(uri: str) -> None:
    """Create a folder and those above it; nothing happens when it is there."""
    system, path = resolve(uri)
    system.create_dir(path, recursive=True)


def probe_folder(uri: str) -> None:
    """Write into a folder, made where it is missing, read that back and remove it. Raises OSError, or ValueError: the
    URI names no file system."""
    create_folder(uri)
    system, folder = resolve(uri)
    path = f"{folder.rstrip('/')}/.probe-{uuid.uuid4().hex}"
    with system.open_output_stream(path) as stream:
        stream.write(b"probe")
    try:
        with system.open_input_stream(path) as stream:
            if stream.read() != b"probe":
                raise OSError("what was written is not what is read")
    finally:
        system.delete_file(path)


def delete_folder(uri: str) -> None:
    """Delete a folder with all it holds; nothing happens when it is not there, or goes meanwhile."""
    system, path = resolve(uri)
    with contextlib.suppress(FileNotFoundError):
        if system.get_file_info(path).type is fs.FileType.Directory:
            system.delete_dir(path)


def link_or_copy(source: str, target: str) -> None:
    """Bring a file to another place without changing it: a hard link on one local file system, else a copy.

    What is there afterwards is whole and on disk, and a target that exists already is replaced. The folder of the
    target must exist.
    """
    here, there = local_path(source), local_path(target)
    if there is None:
        from_system, from_path = resolve(source)
        to_system, to_path = resolve(target)
        # An object appears whole, or not at all.
        fs.copy_files(from_path, to_path, from_system, to_system, chunk_size=CHUNK)
        return
    temporary = there.with_name(f".{there.name}.{uuid.uuid4().hex}")
    try:
        if here is None or not _linked(here, temporary):
            system, path = resolve(source)
            fs.copy_files(path, str(temporary), source_filesystem=system, destination_filesystem=fs.LocalFileSystem())
        flush(temporary)
        os.replace(temporary, there)
        if temporary.exists():  # rename does nothing where both names are the same file already
            temporary.unlink()
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_once(uri: str, content: bytes) -> None:
    """Create a file that is never changed again; the same content a second time is no error.

    Raises FileExistsError: it is there with another content. On a local file system only one of several writers wins;
    elsewhere it is looked up before it is written.
    """
    place = local_path(uri)
    if place is None:
        system, path = resolve(uri)
        if system.get_file_info(path).type is not fs.FileType.File:
            with system.open_output_stream(path) as stream:
                stream.write(content)
            return
        with system.open_input_stream(path) as stream:
            found = stream.read()
    else:
        temporary = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
        try:
            temporary.write_bytes(content)
            flush(temporary)
            os.link(temporary, place)  # fails when the name is taken: that is the "once"
            flush(place.parent)
            return
        except FileExistsError:
            found = place.read_bytes()
        finally:
            temporary.unlink(missing_ok=True)
    if found != content:
        raise FileExistsError(f"{uri} exists with another content")


def replace(place: Path, content: bytes) -> None:
    """Replace a local file atomically: who reads it sees the old or the new content, also after a power cut."""
    temporary = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(content)
        flush(temporary)
        os.replace(temporary, place)
    finally:
        temporary.unlink(missing_ok=True)
    flush(place.parent)


def flush(place: Path) -> None:
    """Wait until a local file's content, or a folder's names, are on disk."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _linked(source: Path, target: Path) -> bool:
    """False where a hard link is impossible: another device, or a file system without links."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True
