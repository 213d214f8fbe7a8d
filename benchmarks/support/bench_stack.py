"""The servers of a benchmark, in a folder of their own."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from saga_workers.devstack.stack import Stack
from sagas.settings import load_settings


@contextmanager
def bench_stack(
    write_project: Callable[[Path], object], services: Collection[str] | None = None
) -> Iterator[tuple[Path, Stack]]:
    """Start the servers of a project (None: all); yields its folder and the stack, and removes both at the end.

    ``write_project`` writes the files of the project into the folder. SIGTERM, which `timeout` sends, ends it too.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp(prefix="saga-bench-"))
    try:
        write_project(folder)
        stack = Stack(load_settings(folder), lambda _: None)
        try:
            stack.up(services)
            yield folder, stack
        finally:
            stack.down(wipe=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def pids_of(stack: Stack) -> dict[str, int]:
    """The processes of a stack whose CPU is measured."""
    status = stack.status()
    return {name: status[name]["pid"] for name in ("worker", "temporal", "postgres")}
