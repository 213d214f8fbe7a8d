"""The pointer of a Parquet folder on disk: read, locked and swapped."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from saga_spark.sinks.files import create_folder, delete_folder, replace
from saga_spark.sinks.parquet_pointer import CURRENT, DATA, LOCK, VERSIONS, Pointer, kept_versions
from saga_spark.sinks.sink import Conflict

LOCK_PATIENCE = 20.0
"""Seconds to wait for others who change the same pointer. They hold the lock for milliseconds, unless frozen."""


class PointerFolder:
    """One folder. Reading needs no lock: a version appears whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self) -> Pointer:
        place = self.folder / CURRENT
        try:
            return Pointer.parse(place.read_text(), str(place))
        except FileNotFoundError:
            return Pointer()

    def earlier(self, version: int) -> Pointer | None:
        place = self._version(version)
        try:
            return Pointer.parse(place.read_text(), str(place))
        except FileNotFoundError:
            return None

    def keep(self, pointer: Pointer) -> None:
        """Keep a version that is about to be replaced. Hold the lock."""
        if pointer.version:
            create_folder(str(self.folder / VERSIONS))
            replace(self._version(pointer.version), pointer.text().encode())

    def write(self, pointer: Pointer) -> None:
        """The swap. Hold the lock."""
        replace(self.folder / CURRENT, pointer.text().encode())

    def sweep(self) -> None:
        """Delete the versions that no undo needs any more, and the data that only they have named. Hold the lock."""
        current = self.read()
        needed = kept_versions(current.entries, self.earlier)
        names = {one.name for pointer in (current, *needed.values()) for one in pointer.entries}
        for place in (self.folder / VERSIONS).glob("[0-9]*.json"):
            if int(place.stem) not in needed:
                for entry in Pointer.parse(place.read_text(), str(place)).entries:
                    if entry.name not in names:
                        self.delete_data(entry.name)
                place.unlink()

    def delete_data(self, name: str) -> None:
        """Delete the data of all attempts of one target and generation. Hold the lock."""
        data = self.folder / DATA
        for folder in data.iterdir() if data.is_dir() else ():
            if folder.name.lstrip(".").startswith(f"{name}-e"):
                delete_folder(str(folder))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """The kernel releases the lock when its holder dies. Raises Conflict: somebody does not let go."""
        create_folder(str(self.folder))
        descriptor = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            end = time.monotonic() + LOCK_PATIENCE
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise Conflict(f"{self.folder / LOCK} is held by another process") from None
                    time.sleep(0.02)
            yield
        finally:
            os.close(descriptor)

    def _version(self, version: int) -> Path:
        return self.folder / VERSIONS / f"{version}.json"
