"""The folder of a run's temporary files: in memory, where the machine has enough of it.

Each run has one of its own, which it locks. So the next run recognises what a killed one has left, and removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path

import psutil

_IN_MEMORY = Path("/dev/shm")
_PREFIX = "saga-"
_FREE_BYTES = 8 << 30
"""A whole run needs about a third of it."""

_AVAILABLE_BYTES = 16 << 30
"""Of the machine's memory, for these data and all processes of a run. Without swap it stands still when that is used
up; data that are left in memory count."""


def use_memory() -> RunFolder | None:
    """Without a TMPDIR of the user. Processes started from here inherit it.

    A new database of PostgreSQL is 300 files: on a disk they cost twice as many seconds of a core.
    """
    if os.environ.get("TMPDIR") or not _IN_MEMORY.is_dir() or not os.access(_IN_MEMORY, os.W_OK):
        return None
    remove_dead_runs(_IN_MEMORY)
    if psutil.virtual_memory().available < _AVAILABLE_BYTES:
        return None
    file_system = os.statvfs(_IN_MEMORY)
    if file_system.f_bavail * file_system.f_frsize < _FREE_BYTES or file_system.f_flag & os.ST_NOEXEC:
        return None
    folder = RunFolder(_IN_MEMORY)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder.path)
    return folder


class RunFolder:
    """A new folder in ``parent``, locked as long as this process lives."""

    def __init__(self, parent: Path) -> None:
        with _all_folders(parent):
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            self._lock = _lock_file(self.path).open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove_at_exit(self) -> None:
        """Remove it after multiprocessing has removed its own folder in it, with the priority -100."""
        util.Finalize(None, self.remove, exitpriority=-200)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def remove_dead_runs(parent: Path) -> None:
    """Remove the folders of runs that have ended, and that are this user's."""
    with _all_folders(parent):
        for folder in parent.glob(f"{_PREFIX}*"):
            # A folder without a lock file is not one of these.
            with contextlib.suppress(OSError), _lock_file(folder).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


def _lock_file(folder: Path) -> Path:
    return folder / "run.lock"


@contextlib.contextmanager
def _all_folders(parent: Path) -> Iterator[None]:
    """No other run makes or removes a folder meanwhile: one that is made is not locked at once."""
    with (parent / f".{_PREFIX}tests-{os.getuid()}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
