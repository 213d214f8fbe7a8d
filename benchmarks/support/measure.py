"""Measures one way of running sagas: latency alone, throughput in a crowd, CPU and history events of each saga."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import psutil

RunOne = Callable[[int], Awaitable[str]]
"""Starts saga number n, waits for its end, and gives its workflow id."""


@dataclass
class Figures:
    """All samples of one way; seconds."""

    latencies: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    worker_cpu: list[float] = field(default_factory=list)
    server_cpu: list[float] = field(default_factory=list)
    events: list[int] = field(default_factory=list)

    def latency(self, quantile: float) -> float:
        """Milliseconds below which this part of the samples lies."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]

    @property
    def rate(self) -> float:
        """Sagas a second: the median of the rounds."""
        return statistics.median(self.rates)

    def cpu(self, who: str) -> float:
        """Milliseconds of CPU for each saga, the median of the rounds."""
        return 1000 * statistics.median(self.worker_cpu if who == "worker" else self.server_cpu)


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios round by round: what slows a whole round down cancels out."""
    return statistics.median(our_figure / their_figure for our_figure, their_figure in zip(ours, theirs, strict=True))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its children, with those that have ended and been waited for."""
    process = psutil.Process(pid)
    used = 0.0
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            used += times.user + times.system + times.children_user + times.children_system
    return used


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """By the clock, and of CPU: this process and its children, a JVM among them."""
    begun, before = time.perf_counter(), cpu_seconds(os.getpid())
    work()
    return time.perf_counter() - begun, cpu_seconds(os.getpid()) - before


async def latencies(figures: Figures, run: RunOne, count: int) -> None:
    """One saga after another."""
    for number in range(count):
        begin = time.perf_counter()
        await run(number)
        figures.latencies.append(time.perf_counter() - begin)


async def crowd(figures: Figures, run: RunOne, count: int, concurrency: int, worker: int, server: int) -> None:
    """``count`` sagas, ``concurrency`` at a time."""
    gate = asyncio.Semaphore(concurrency)

    async def run_saga(number: int) -> None:
        async with gate:
            await run(number)

    cpu = cpu_seconds(worker), cpu_seconds(server)
    begin = time.perf_counter()
    await asyncio.gather(*(run_saga(number) for number in range(count)))
    elapsed = time.perf_counter() - begin
    figures.rates.append(count / elapsed)
    figures.worker_cpu.append((cpu_seconds(worker) - cpu[0]) / count)
    figures.server_cpu.append((cpu_seconds(server) - cpu[1]) / count)
