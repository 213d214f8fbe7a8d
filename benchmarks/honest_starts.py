"""The time of honest starts, alone and while hostile inputs arrive."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import psutil

from benchmarks.hostile_inputs import ALL, LINE, Stage, fresh

WAYS = ("HTTP", "Kafka", "Temporal")

RATES = (2, 5, 10, 20)
"""Hostile starts per second over Temporal, each of up to a megabyte."""

MAX_RATIO = 2.0
"""The goal for the median of honest starts: how many times slower. More than ten megabytes per second miss it."""


async def honest_http(stage: Stage, count: int) -> list[float]:
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        assert await stage.over_http(fresh({})) == 202
        taken.append(time.perf_counter() - began)
    return taken


async def honest_kafka(stage: Stage, count: int) -> list[float]:
    written = {}
    for _ in range(count):
        document = fresh({})
        written[document.id] = await asyncio.to_thread(stage.produce, document)
        await asyncio.sleep(0.05)
    taken = []
    for id, at in written.items():
        handle = stage.client.temporal.get_workflow_handle(id)
        while True:
            with contextlib.suppress(Exception):
                taken.append((await handle.describe()).start_time.timestamp() - at)
                break
            await asyncio.sleep(0.2)
    return taken


async def honest_temporal(stage: Stage, count: int) -> list[float]:
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        await (await stage.client.start("order", json.loads(fresh({}).text))).result()
        taken.append(time.perf_counter() - began)
    return taken


@contextlib.asynccontextmanager
async def arriving_at(rate: float, send: Callable[[int], Awaitable[Any]]) -> AsyncIterator[list[int]]:
    """Send hostile inputs at this rate per second, whether earlier ones are answered or not; counts those that were."""
    answered = [0]
    under_way: set[asyncio.Task[None]] = set()

    async def one(number: int) -> None:
        await send(number)
        answered[0] += 1

    async def clock() -> None:
        began = time.perf_counter()
        for number in itertools.count():
            await asyncio.sleep(max(0, began + number / rate - time.perf_counter()))
            task = asyncio.create_task(one(number))
            under_way.add(task)
            task.add_done_callback(under_way.discard)

    ticking = asyncio.create_task(clock())
    await asyncio.sleep(2)
    try:
        yield answered
    finally:
        ticking.cancel()
        for task in under_way:
            task.cancel()
        await asyncio.gather(ticking, *under_way, return_exceptions=True)


@contextlib.asynccontextmanager
async def arriving(send: Callable[[int], Awaitable[Any]], at_once: int) -> AsyncIterator[list[int]]:
    """Send hostile inputs, so many at once, without a pause; counts those that were answered."""
    answered = [0]

    async def sender(number: int) -> None:
        while True:
            await send(number)
            answered[0] += 1

    tasks = [asyncio.create_task(sender(number)) for number in range(at_once)]
    await asyncio.sleep(2)
    try:
        yield answered
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def measure_starts(stage: Stage, rounds: int, count: int, only: str | None) -> bool:
    values = list(ALL.values())
    for value in values:
        fresh(value)

    async def http(number: int) -> None:
        await stage.over_http(fresh(values[number % len(values)]), ("first", "second")[number % 2])

    async def kafka(number: int) -> None:
        await asyncio.to_thread(stage.produce, fresh(values[number % len(values)]))
        await asyncio.sleep(1)

    async def temporal(number: int) -> None:
        await stage.over_temporal(fresh(values[number % len(values)]))

    print("\n" + LINE.format("", "honest starts", "alone ms", "with", "ratio"))
    without_pause = partial(arriving, at_once=4)
    cases: list[tuple[str, str, Any, Any]] = [
        ("HTTP", "4 at once", honest_http, partial(without_pause, http)),
        ("Kafka", "4 at once", honest_kafka, partial(without_pause, kafka)),
        *(("Temporal", f"{rate}/s", honest_temporal, partial(arriving_at, rate, temporal)) for rate in RATES),
        ("Temporal", "4 at once", honest_temporal, partial(without_pause, temporal)),
    ]
    met = True
    for name, arrival, run, hostile in cases:
        if only in (None, name):
            met &= await measure_beside(stage, rounds, count, (name, arrival), run, hostile)
    return met


async def measure_beside(
    stage: Stage,
    rounds: int,
    count: int,
    case: tuple[str, str],
    run: Callable[[Stage, int], Awaitable[list[float]]],
    hostile: Callable[[], contextlib.AbstractAsyncContextManager[list[int]]],
) -> bool:
    """Honest starts alone and beside hostile ones, in turn. True if the goal is met."""
    name, arrival = case
    await run(stage, count)
    alone: dict[float, list[float]] = {0.5: [], 0.95: []}
    mixed: dict[float, list[float]] = {0.5: [], 0.95: []}
    refused = 0
    for _ in range(rounds):
        add(alone, await run(stage, count))
        async with hostile() as answered:
            add(mixed, await run(stage, count))
        refused += answered[0]
        await quiet(stage)
    met = True
    for part, usual in alone.items():
        ratio = statistics.median(
            disturbed / undisturbed for disturbed, undisturbed in zip(mixed[part], usual, strict=True)
        )
        met &= ratio < MAX_RATIO or part != 0.5
        label = f"p{100 * part:.0f}, {arrival}, {refused} hostile ones refused"
        milliseconds = (f"{1000 * statistics.median(column):.0f}" for column in (usual, mixed[part]))
        print(LINE.format(name, label, *milliseconds, f"{ratio:.2f}"), flush=True)
    return met


def add(quantiles: Mapping[float, list[float]], taken: list[float]) -> None:
    ordered = sorted(taken)
    for part, values in quantiles.items():
        values.append(ordered[min(len(ordered) - 1, int(part * len(ordered)))])


async def quiet(stage: Stage) -> None:
    """Wait until no process has an input to check any more."""
    processes = [psutil.Process(pid) for pid in stage.pids.values()]
    while True:
        before = [process.cpu_times().user for process in processes]
        await asyncio.sleep(2)
        if all(process.cpu_times().user - was < 0.2 for process, was in zip(processes, before, strict=True)):
            return
