"""Reads what ``saga dev up`` wrote about the services of a project, ignoring services that have ended.

A process is identified by its pid *and* its start time, because the operating system reuses pids.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sagas.settings.toml_files import read_toml
from sagas.settings.trust import require_own
from sagas.text.exact_json import decode_json


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process. ``started`` is opaque and unique among the processes with this pid."""

    pid: int
    started: str

    def is_alive(self) -> bool:
        return start_mark(self.pid) == self.started

    def signal(self, number: int) -> None:
        """Send a signal to this process only; it is not an error if the process has ended."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def start_mark(pid: int) -> str | None:
    """The start time of the process with this pid, as an opaque string; None if it has ended or is a zombie."""
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        # The process name in parentheses may itself contain spaces and parentheses.
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


# The files of `saga dev up`. They survive a crash or a reboot, after which another program may listen on their ports.
DEV_FOLDER = Path(".saga") / "dev"
DEV_FILE = Path(".saga") / "dev.toml"

_SERVICE = {"temporal": "temporal", "connections": "postgres", "catalogs": "postgres", "kafka": "kafka"}
"""The service that each table of the file describes."""


def require_own_stack(root: Path) -> None:
    """The records of the stack name processes that are ended and addresses that are used. Raises UsageError."""
    dev = root / DEV_FOLDER
    for path in (dev.parent, root / DEV_FILE, dev, dev / "ID", *dev.glob("*.json"), dev / "logs", *dev.glob("logs/*")):
        require_own(path)


def read_dev_file(root: Path) -> dict[str, Any]:
    """The tables of ``.saga/dev.toml`` whose services run; empty in a copied project folder while the original exists.

    Raises:
        UsageError: the file cannot be read, or belongs to another user.
    """
    file = root / DEV_FILE
    if not file.is_file():
        return {}
    require_own_stack(root)
    if _is_copy(root):
        return {}
    written = {name: table for name, table in read_toml(file).items() if isinstance(table, dict)}
    return {name: table for name, table in written.items() if not _has_ended(root, _SERVICE.get(name, name))}


def has_dev_stack(root: Path) -> bool:
    """True if `saga dev up` has been run in this folder, whether or not the stack is running."""
    return (root / DEV_FOLDER).is_dir()


def _is_copy(root: Path) -> bool:
    """True if the folder's ID file names another folder that still exists."""
    try:
        _, _, path = (root / DEV_FOLDER / "ID").read_text(encoding="utf-8").strip().partition(" ")
    except FileNotFoundError:
        return False
    return path != str(root) and (Path(path) / DEV_FOLDER / "ID").exists()


def _has_ended(root: Path, service: str) -> bool:
    """True if the recorded process is gone. False if the record is missing: only `saga dev up` can then find out."""
    try:
        process = decode_json((root / DEV_FOLDER / f"{service}.json").read_text(encoding="utf-8"))["process"]
        return not (process and ProcessId(**process).is_alive())
    except (OSError, ValueError, KeyError, TypeError):
        return False
