"""The most that fusing steps could save: `python -m benchmarks.fused [--rounds N] [--count N] [--quick]`.

Three guarded steps of a hand-written saga, each in a transaction of its own: in three activities, and in one. No engine
takes part, so its share of the cost is in neither figure.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from pathlib import Path

from benchmarks.sagas import by_hand, make_project, start_by_hand
from benchmarks.support.bench_stack import bench_stack
from benchmarks.support.measure import Figures, crowd, latencies, ratio
from saga_workers.client import Client
from saga_workers.devstack.stack import Stack
from sagas.project import Project
from sagas.settings import load_settings

KINDS = ("guarded", "local")
LINE = "{:<38} {:>12} {:>12} {:>9}"


async def measure(folder: Path, rounds: int, count: int) -> None:
    project = Project(load_settings(folder))
    server = Stack(project.settings, print).status()["temporal"]["pid"]
    client = await Client.connect(project)
    queue = f"hand-{uuid.uuid4()}"
    url = project.settings.connection("bench").url.replace("+psycopg", "")
    worker = start_by_hand(str(project.settings.temporal.address), queue, url)
    try:
        for kind in KINDS:
            separate, fused = Figures(), Figures()
            pair = (
                (separate, by_hand(client.temporal, queue, kind, 3)),
                (fused, by_hand(client.temporal, queue, kind, 3, "handwritten-fused")),
            )
            for _, run in pair:
                await latencies(Figures(), run, 10)
            for number in range(rounds):
                for figures, run in pair if number % 2 else reversed(pair):
                    await latencies(figures, run, max(count // 10, 10))
                    await crowd(figures, run, count, 50, worker.pid, server)
            _print(kind, separate, fused)
    finally:
        worker.terminate()
        worker.wait()


def _print(kind: str, separate: Figures, fused: Figures) -> None:
    print()
    print(LINE.format(f"three {kind} steps", "3 activities", "1 activity", "ratio"))
    rows = [
        (
            "latency p50 ms (one at a time)",
            separate.latency(0.5),
            fused.latency(0.5),
            fused.latency(0.5) / separate.latency(0.5),
        ),
        ("sagas/s (50 at a time)", separate.rate, fused.rate, ratio(fused.rates, separate.rates)),
        (
            "worker CPU ms per saga",
            separate.cpu("worker"),
            fused.cpu("worker"),
            ratio(fused.worker_cpu, separate.worker_cpu),
        ),
        (
            "server CPU ms per saga",
            separate.cpu("server"),
            fused.cpu("server"),
            ratio(fused.server_cpu, separate.server_cpu),
        ),
    ]
    for label, left, right, ratio_ in rows:
        print(LINE.format(label, f"{left:.1f}", f"{right:.1f}", f"{ratio_:.2f}"), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="one short round, to check that it works")
    options = parser.parse_args()
    rounds, count = (1, 30) if options.quick else (options.rounds, options.count)
    with bench_stack(make_project, ("temporal", "postgres")) as (folder, _):
        print(f"{rounds} rounds of {count} sagas, SQLite file")
        asyncio.run(measure(folder, rounds, count))


if __name__ == "__main__":
    main()
