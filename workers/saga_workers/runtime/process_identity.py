"""The name of a process in a database, by which processes of the same machine know whether it has ended."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil


def process_identity() -> str:
    """The name of this process: host name, process id, start time, and boot and PID namespace."""
    return f"{socket.gethostname()}/{os.getpid()}/{psutil.Process().create_time():.2f}/{_pid_namespace()}"


def owner_is_dead(owner: str) -> bool:
    """Return whether ``owner`` is a process of this machine that has ended. False if that cannot be determined."""
    try:
        _, pid, began, _ = owner.rsplit("/", 3)
        number, born = int(pid), float(began)
    except ValueError:
        return False
    if not is_of_this_machine(owner):
        return False
    try:
        return abs(psutil.Process(number).create_time() - born) > 1.0
    except psutil.NoSuchProcess:
        return True


def is_of_this_machine(owner: str) -> bool:
    """True if the process ids of ``owner`` and of this process can be compared."""
    machine, *numbers = owner.rsplit("/", 3)
    world = numbers[-1] if numbers else ""
    return machine == socket.gethostname() and bool(world) and world == _pid_namespace()


def _pid_namespace() -> str:
    """Containers may share a host name; a process id is comparable only within one boot and PID namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot[:8]}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""  # not Linux: nothing is known about the processes of others
