"""Processes that outlive the command which started them: started, found by their mark, stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sagas.settings.dev_stack import ProcessId, start_mark

# In the environment of everything we start: proof that it is ours, should its record be lost.
MARK_VARIABLE = "SAGA_DEV_MARK"


@dataclass(frozen=True, slots=True)
class Launch:
    """How a service is started. ``user`` is a numeric uid (and gid) to become, None to stay."""

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    user: int | None = None


def start_process(launch: Launch, log: Path, mark: str) -> ProcessId:
    """Start a process in a session of its own, with its output appended to ``log``."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(launch.argv),
            cwd=launch.cwd,
            env={**launch.env, MARK_VARIABLE: mark},
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
            if process.environ().get(MARK_VARIABLE) == mark:
                marked[process.pid] = process.ppid()
        except (psutil.Error, OSError):
            continue  # it ended meanwhile, or belongs to somebody else
    for pid, parent in marked.items():
        if parent not in marked and (started := start_mark(pid)):
            return ProcessId(pid, started)
    return None


def stop_process(process: ProcessId, *, number: int = signal.SIGTERM, grace: float) -> None:
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
