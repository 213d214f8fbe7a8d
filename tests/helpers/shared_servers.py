"""Servers that all pytest processes of a run share: the first process that needs one starts it, the run ends it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.processes import Process


def shared_address(run: Path, name: str, start: Callable[[Path], tuple[Process, str]]) -> str:
    """The address of the server ``name`` of the run; unless it runs, ``start`` starts it in the given folder."""
    record = run / "servers" / f"{name}.json"
    record.parent.mkdir(exist_ok=True)
    with record.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not record.exists():
            process, address = start(record.with_suffix(""))
            record.write_text(json.dumps({"pid": process.pid, "address": address}), encoding="utf-8")
        return json.loads(record.read_text(encoding="utf-8"))["address"]


def end_servers(run: Path) -> None:
    for record in run.glob("servers/*.json"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(json.loads(record.read_text(encoding="utf-8"))["pid"], signal.SIGKILL)
        record.unlink()


def run_folder(factory: pytest.TempPathFactory) -> Path:
    """The temporary folder of the run; with xdist, that of each process lies in it."""
    return factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
