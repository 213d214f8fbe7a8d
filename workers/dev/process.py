"""Processes that outlive the command which started them, and are never mistaken for others.

A pid is used again by the system after its process has ended. So a process is named by its pid *and* the
moment it started; a record whose moment does not fit is a record of a process that is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# In the environment of everything we start: proof that it is ours, should its record be lost.
MARK = "SAGA_DEV_MARK"


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


@dataclass(frozen=True, slots=True)
class Launch:
    """How a service is started. ``user`` is a numeric uid (and gid) to become, None to stay."""

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    user: int | None = None


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


def spawn(launch: Launch, log: Path, mark: str) -> ProcessId:
    """Start a process in a session of its own, with its output appended to ``log``."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(launch.argv),
            cwd=launch.cwd,
            env={**launch.env, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=launch.user,
            group=launch.user,
            extra_groups=[] if launch.user is not None else None,
        )
    return ProcessId(process.pid, start_mark(process.pid) or "gone")


def find_marked(mark: str) -> ProcessId | None:
    """The process that was started with this mark; its children carry the mark too and are passed over."""
    import psutil

    marked: dict[int, int] = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                marked[process.pid] = process.ppid()
        except (psutil.Error, OSError):
            continue  # it ended meanwhile, or belongs to somebody else
    for pid, parent in marked.items():
        if parent not in marked and (started := start_mark(pid)):
            return ProcessId(pid, started)
    return None


def stop(process: ProcessId, *, number: int = signal.SIGTERM, grace: float) -> None:
    """Ask a process to end and make it end after ``grace`` seconds."""
    process.signal(number)
    # A stopped process (SIGSTOP) sees the request only when it goes on.
    process.signal(signal.SIGCONT)
    if not _wait_gone(process, grace):
        process.signal(signal.SIGKILL)
        _wait_gone(process, 5.0)


def _wait_gone(process: ProcessId, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while process.is_alive():
        _reap(process.pid)
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    _reap(process.pid)
    return True


def _reap(pid: int) -> None:
    """Take the exit status of a child of this very command; of others the system takes care."""
    with contextlib.suppress(ChildProcessError, OSError):
        os.waitpid(pid, os.WNOHANG)
