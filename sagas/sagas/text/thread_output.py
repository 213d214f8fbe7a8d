"""Redirects standard output for one thread: `contextlib.redirect_stdout` does it for all, and not always back.

Two of its blocks that overlap in two threads leave the standard output of the process redirected for good.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()


class _OutputByThread:
    """Standard output that is standard error for some threads."""

    def __init__(self, output: Any) -> None:
        self.output = output
        self.blocks: dict[int, int] = {}
        """How many blocks each thread is in."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if threading.get_ident() in self.blocks else self.output, name)


@contextmanager
def stdout_as_stderr() -> Iterator[None]:
    """Let what this thread prints on standard output go to standard error; the output of other threads stays."""
    thread = threading.get_ident()
    with _lock:
        shared = sys.stdout if isinstance(sys.stdout, _OutputByThread) else _OutputByThread(sys.stdout)
        shared.blocks[thread] = shared.blocks.get(thread, 0) + 1
        sys.stdout = shared
    try:
        yield
    finally:
        with _lock:
            shared.blocks[thread] -= 1
            if not shared.blocks[thread]:
                del shared.blocks[thread]
            if sys.stdout is shared and not shared.blocks:
                sys.stdout = shared.output
