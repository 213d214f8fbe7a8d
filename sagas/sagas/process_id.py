"""A process of this machine, named so that it is never mistaken for another one.

The system uses a pid again after its process has ended. So a process is named by its pid *and* the time it started; a
record whose start does not match is a record of a process that is gone.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process. ``started`` is opaque and unique for the pid."""

    pid: int
    started: str

    def is_alive(self) -> bool:
        return start_mark(self.pid) == self.started

    def signal(self, number: int) -> None:
        """Send a signal to this process, and only to this one; a process that is gone is no error."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def start_mark(pid: int) -> str | None:
    """When the process of that pid started, or None when it is gone (or only waits to be reaped)."""
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        # The name in parentheses may hold spaces and parentheses itself.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else f"{_boot_id()}:{fields[19]}"
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.Error:
        return None


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
