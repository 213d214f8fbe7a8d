"""Count files while Spark is still writing others.

The tasks of a write seldom end together: what the first have written is counted on the processors that they leave idle.
Only for the local file system, where a file that moves to its place stays the same file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from saga_spark.file_counts import Counted, count_files
from saga_spark.manifest import StagedFile
from saga_spark.sinks.files import local_path

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_COMMITTED, _TASK = "_temporary/0", "task_"
"""Where Hadoop's committer keeps the folders of tasks that have ended, until the job has: their files are whole."""

_LOOK = 0.1
"""Seconds between two looks."""

_Identity = tuple[int, int, int]
"""Number of the file, size and time of its last change: these stay when it is moved, and no other file has them."""


class CountedAhead:
    """What was counted while Spark wrote; None for a file that is Spark's to count."""

    def __init__(self, schema: StructType) -> None:
        self._schema = schema
        self._known: dict[_Identity, Counted | None] = {}

    def look(self, folder: Path, stop: threading.Event) -> None:
        """Count what is there and not known, file by file, until told to stop."""
        for path in _written(folder):
            if stop.is_set():
                return
            try:
                identity = _identity(path)
                if identity not in self._known:
                    # One thread: another task of Spark's has the other processors.
                    found = count_files([StagedFile(path.as_uri(), identity[1], 0)], self._schema, threads=1)
                    self._known[identity] = found
            except (OSError, pa.ArrowException):
                continue  # it was moved to its place meanwhile; what cannot be read is told by the count at the end

    def count(self, files: Sequence[StagedFile]) -> Counted | None:
        """All of the files; those that are known are not read again. None as :func:`count_files` says it."""
        known: list[Counted] = []
        left: list[StagedFile] = []
        for file in files:
            path = local_path(file.uri)
            identity = _identity(path) if path is not None else None
            if identity is None or identity not in self._known:
                left.append(file)
                continue
            found = self._known[identity]
            if found is None:
                return None
            known.append(found)
        rest = count_files(left, self._schema)
        return None if rest is None else sum(known, rest)


@contextmanager
def counting_ahead(folder: str, schema: StructType) -> Iterator[CountedAhead]:
    """Count in the background as long as the block writes below ``folder``, a local one."""
    ahead, stop, path = CountedAhead(schema), threading.Event(), local_path(folder)
    assert path is not None

    def run() -> None:
        while not stop.wait(_LOOK):
            ahead.look(path, stop)

    thread = threading.Thread(target=run, name="count-ahead", daemon=True)
    thread.start()
    try:
        yield ahead
    finally:
        stop.set()
        thread.join()


def _written(folder: Path) -> Iterator[Path]:
    """The files of tasks that have ended. What is moved to its place meanwhile is passed over."""
    top = str(folder / _COMMITTED)
    for parent, folders, names in os.walk(top):
        if parent == top:
            folders[:] = [one for one in folders if one.startswith(_TASK)]
        yield from (Path(parent, name) for name in names if name.endswith(".parquet"))


def _identity(path: Path) -> _Identity:
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns
