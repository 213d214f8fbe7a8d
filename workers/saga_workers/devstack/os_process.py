"""Processes that outlive the command that started them: start, find by mark, stop."""

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
from sagas.settings.private_files import open_private_log

# In the environment of everything that is started: identifies the process if its record is lost.
MARK_VARIABLE = "SAGA_DEV_MARK"


@dataclass(frozen=True, slots=True)
class Launch:
    """The command that starts a service. ``user``: the numeric uid and gid under which it runs; None: those of the
    caller.
    """

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    user: int | None = None


def environment_without(prefix: str) -> dict[str, str]:
    """The environment without variables of this prefix, which may name another server."""
    return {name: value for name, value in os.environ.items() if not name.startswith(prefix)}


def start_process(launch: Launch, log: Path, mark: str) -> ProcessId:
    """Start a process in a session of its own, with its output appended to ``log``."""
    with open_private_log(log) as output:
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
    """The process that was started with this mark; its children, which inherit the mark, are skipped."""
    import psutil

    marked: dict[int, int] = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK_VARIABLE) == mark:
                marked[process.pid] = process.ppid()
        except (psutil.Error, OSError):
            continue  # it has ended, or belongs to another user
    for pid, parent in marked.items():
        if parent not in marked and (started := start_mark(pid)):
            return ProcessId(pid, started)
    return None


def stop_process(process: ProcessId, *, number: int = signal.SIGTERM, grace: float) -> None:
    """Send a signal to a process, and kill it after ``grace`` seconds."""
    process.signal(number)
    # A process stopped by SIGSTOP handles the signal only when it continues.
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
    """Reap a child of this very command; other processes are reaped by the system."""
    with contextlib.suppress(ChildProcessError, OSError):
        os.waitpid(pid, os.WNOHANG)
