"""The folder of the test servers' data: in memory, where the machine has enough of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import psutil

_IN_MEMORY = Path("/dev/shm")
_FREE_BYTES = 8 << 30
"""A whole run needs about a third of it."""

_AVAILABLE_BYTES = 16 << 30
"""Of the machine's memory, for these data and all processes of a run. Without swap it stands still when that is used
up; data that a killed run has left in memory count."""


def use_memory() -> None:
    """Without a TMPDIR of the user. Processes started from here inherit it.

    A new database of PostgreSQL is 300 files: on a disk they cost twice as many seconds of a core.
    """
    if os.environ.get("TMPDIR") or not _IN_MEMORY.is_dir() or not os.access(_IN_MEMORY, os.W_OK):
        return
    if psutil.virtual_memory().available < _AVAILABLE_BYTES:
        return
    file_system = os.statvfs(_IN_MEMORY)
    if file_system.f_bavail * file_system.f_frsize >= _FREE_BYTES and not file_system.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = str(_IN_MEMORY)
