"""The memory of worker and `saga serve` while sagas arrive: `python -m benchmarks.growth.memory [--minutes N]`.

Sagas are started over HTTP, five per second, and end. The memory of each process at the end is compared with that after
a quarter of the time, when its caches are full: a difference that grows with the time is a leak.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
import uuid
from collections.abc import Mapping

import psutil

from benchmarks.no_engine import payments
from benchmarks.peers.peers import make_project
from benchmarks.starts import TOKEN, WAYS, free_ports, pids_of, serving
from benchmarks.support.bench_stack import bench_stack
from benchmarks.support.http_caller import HttpCaller

CALLERS = 50
LINE = "{:<10}" + " {:>10}" * 4 + " {:>16}"


async def start_sagas(port: int, pids: Mapping[str, int], rate: float, minutes: float) -> dict[str, list[float]]:
    """Start ``rate`` sagas per second; the MiB of each process after each twentieth of the time."""
    seconds = 60 * minutes
    sizes: dict[str, list[float]] = {name: [] for name in pids}
    begin, run = time.monotonic(), uuid.uuid4().hex
    todo = enumerate(payments(run, round(rate * seconds), 1000, 0.08, 0.005))

    async def call() -> None:
        caller = HttpCaller(port, f"Authorization: Bearer {TOKEN}\r\n")
        for number, payment in todo:
            await asyncio.sleep(begin + number / rate - time.monotonic())
            input = {"account": payment.account, "amount": payment.amount, "second": payment.second}
            content = {"id": f"{run}-{number}", "input": {**input, "excess": payment.excess}, "wait": "60s"}
            status, answer = await caller.post("/sagas/mixed", content)
            assert status in {200, 202}, (status, answer)

    async def watch() -> None:
        for number in range(20):
            await asyncio.sleep(begin + seconds * (number + 1) / 20 - time.monotonic())
            for name, pid in pids.items():
                sizes[name].append(psutil.Process(pid).memory_info().rss / 2**20)

    await asyncio.gather(watch(), *(call() for _ in range(CALLERS)))
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=5.0, help="sagas per second")
    parser.add_argument("--quick", action="store_true", help="half a minute, to check that it works")
    options = parser.parse_args()
    minutes = 0.5 if options.quick else options.minutes
    with (
        bench_stack(make_project, ("temporal", "postgres", "worker")) as (folder, stack),
        contextlib.ExitStack() as running,
    ):
        [port] = free_ports(1)
        serve = running.enter_context(serving(folder, port, WAYS["own"]))
        pids = {"worker": pids_of(stack)["worker"], "serve": serve}
        sizes = asyncio.run(start_sagas(port, pids, options.rate, minutes))
    print(f"{options.rate:g} sagas per second for {minutes:g} minutes, MiB")
    print(LINE.format("", "at 1/20", "at 1/4", "at 1/2", "at the end", "per 1000 sagas"))
    for name, own in sizes.items():
        growth = (own[-1] - own[4]) / (options.rate * 60 * minutes * 0.75) * 1000
        print(LINE.format(name, *(f"{own[index]:.0f}" for index in (0, 4, 9, 19)), f"{growth:+.2f}"))


if __name__ == "__main__":
    main()
