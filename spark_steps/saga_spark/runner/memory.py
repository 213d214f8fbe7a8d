"""How much memory a runner may use, and how much it uses."""

from __future__ import annotations

import contextlib
import re

import psutil

from sagas.errors import UsageError

GIB = 2**30
MARGIN = 2 * GIB
"""Bytes a runner may use beyond the JVM's heap: the JVM itself, the runner's Python, Spark's Python workers."""

_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def heap_bytes(text: str) -> int:
    """``1g``, ``1500m`` in bytes. Raises UsageError, one sentence."""
    found = re.fullmatch(r"(\d+)\s*([kmgt])b?", text.strip().lower())
    if found is None:
        raise UsageError(f"[spark] memory: {text!r} is no amount of memory; write it like 512m or 2g")
    return int(found[1]) * _UNITS[found[2]]


def resident_bytes(pid: int) -> int:
    """The resident memory of a process and all its descendants."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for one in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += one.memory_info().rss
    return total
