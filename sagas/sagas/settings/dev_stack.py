"""A process of this machine, named so that it is never mistaken for another one.

The system uses a pid again after its process has ended. So a process is named by its pid *and* the time it started; a
record whose start does not match is a record of a process that is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sagas.errors import UsageError


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


# What `saga dev up` has written about the services of a project, without those that have ended.
#
# After a crash or a reboot the file with their addresses is still there, and another program may listen at one of them.


DEV_FOLDER = Path(".saga") / "dev"
DEV_FILE = Path(".saga") / "dev.toml"

_SERVICE = {"temporal": "temporal", "connections": "postgres", "catalogs": "postgres", "kafka": "kafka"}
"""Which service each table of the file tells of."""


def read_dev_file(root: Path) -> dict[str, Any]:
    """The tables of ``.saga/dev.toml`` whose services run; none in the copy of a project, whose original they serve.

    Raises:
        UsageError: the file cannot be read.
    """
    file = root / DEV_FILE
    if not file.is_file() or _is_copy(root):
        return {}
    return {name: table for name, table in read_toml(file).items() if not _has_ended(root, _SERVICE.get(name, name))}


def has_dev_stack(root: Path) -> bool:
    """True when `saga dev up` has been called for this folder, whether the stack runs or not."""
    return (root / DEV_FOLDER).is_dir()


def _is_copy(root: Path) -> bool:
    """A folder whose written path is another one that is still there."""
    try:
        _, _, path = (root / DEV_FOLDER / "ID").read_text(encoding="utf-8").strip().partition(" ")
    except FileNotFoundError:
        return False
    return path != str(root) and (Path(path) / DEV_FOLDER / "ID").exists()


def _has_ended(root: Path, service: str) -> bool:
    """False also when its record was lost: then only `saga dev up` can find out."""
    try:
        process = json.loads((root / DEV_FOLDER / f"{service}.json").read_text(encoding="utf-8"))["process"]
    except (OSError, ValueError, KeyError):
        return False
    return not (process and ProcessId(**process).is_alive())


# Reads a TOML file; what is wrong with it becomes one sentence.


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises UsageError: it cannot be read, or is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text.") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from error
