"""The cost of a hostile input for the process that refuses it: CPU, and the peak of its memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.hostile_inputs import HOSTILE, LINE, Stage, fresh

MAX_SECONDS = 2.0
"""The goal for the CPU of each input."""

MAX_MIB = 200
"""The goal for the memory of each input."""


async def cost(pid: int, call: Awaitable[Any]) -> tuple[float, float]:
    """Seconds of CPU and MiB of memory that a process takes meanwhile, above what it has."""
    process = psutil.Process(pid)
    forget_peak(pid)
    before, times = process.memory_info().rss, process.cpu_times()
    await call
    after = process.cpu_times()
    seconds = after.user + after.system - times.user - times.system
    return seconds, peak_memory(pid) - before / 1024**2


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_memory(pid: int) -> float:
    """MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def loop_seconds() -> float:
    """The CPU of ten million additions: the worth of a second on this machine now."""
    began, total = time.process_time(), 0
    for number in range(10_000_000):
        total += number
    return time.process_time() - began


async def measure_costs(stage: Stage, rounds: int) -> bool:
    print(LINE.format("", "input (medians)", "CPU s", "of loop", "MiB"))
    met = True
    ways = {"serve": stage.over_http, "trigger": stage.over_kafka, "worker": stage.over_temporal}
    for process, send in ways.items():
        await send(fresh({"twice": 1}))
        for name, value in HOSTILE.items():
            figures = []
            for _ in range(rounds):
                loop = loop_seconds()
                seconds, mib = await cost(stage.pids[process], send(fresh(value)))
                figures.append((seconds, seconds / loop, mib))
            seconds, relative, mib = (statistics.median(column) for column in zip(*figures, strict=True))
            met &= seconds < MAX_SECONDS and mib < MAX_MIB
            print(LINE.format(process, name, f"{seconds:.2f}", f"{relative:.1f}", f"{mib:.0f}"), flush=True)
    return met
