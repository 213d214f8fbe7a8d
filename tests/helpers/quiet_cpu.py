"""CPU time of work as a machine that does nothing else would need it: others that share its cores make it longer."""

from __future__ import annotations

import time
from collections.abc import Callable

QUIET_LOOP = 0.04
"""Seconds of CPU for a million additions on a machine that does nothing else."""


def quiet_seconds(seconds: float) -> float:
    """Seconds of CPU, just measured, divided by how much slower than a quiet machine this one is now."""
    began, total = time.thread_time(), 0
    for number in range(1_000_000):
        total += number
    return seconds / max(1.0, (time.thread_time() - began) / QUIET_LOOP)


def work_seconds(work: Callable[[], object], *, enough: float) -> float:
    """The seconds of CPU that this thread needs for the work; below ``enough`` they are not corrected."""
    began = time.thread_time()
    work()
    seconds = time.thread_time() - began
    return seconds if seconds < enough else quiet_seconds(seconds)


def is_short(work: Callable[[], object], limit: float) -> bool:
    """True if one of three tries stays below the limit: between two of them others may do less."""
    return any(work_seconds(work, enough=limit) < limit for _ in range(3))
