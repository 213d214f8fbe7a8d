"""The Spark runner of a project, as `dev status` tells of it. The worker starts it with the first job and ends it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psutil


def spark_runner(work: Path) -> dict[str, Any]:
    """``state`` (running or stopped), and of the newest runner that lives ``pid`` and ``log``.

    ``work`` is the folder of the runners' logs and scratch files.

    Each runner has a scratch folder, whose name holds its worker's pid, and knows it by its environment.
    """
    scratches = (work / "scratch").glob("runner-*")
    for scratch in sorted(scratches, key=lambda path: path.name, reverse=True):
        worker = scratch.name.split("-")[2]
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(int(worker)).children():
                if _works_in(process, scratch):
                    return {"state": "running", "pid": process.pid, "log": str(work / f"{scratch.name}.log")}
    return {"state": "stopped", "pid": None}


def _works_in(process: psutil.Process, scratch: Path) -> bool:
    # Its JVM has the same environment, but is a child of its own.
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get("SAGA_SPARK_SCRATCH") == str(scratch)
    return False
