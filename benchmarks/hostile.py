"""Hostile inputs, their cost, and the starts of others: `python -m benchmarks.hostile [--rounds N] [--quick]`.

Inputs of at most 1 MB, made to be dear, go to `saga serve` over HTTP, to `saga trigger` over Kafka and to the worker
over Temporal, as a client in another language sends them. The first table has what each costs the process that refuses
it: CPU, and the peak of its memory. The second has how long honest starts take, alone and while hostile ones arrive
without a pause, in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from benchmarks.honest_starts import WAYS, measure_starts
from benchmarks.hostile_costs import loop_seconds, measure_costs
from benchmarks.hostile_inputs import TOKENS, TOPIC, Stage, make_project
from benchmarks.support.bench_stack import bench_stack
from saga_activities.kafka.admin import KafkaAdmin
from saga_workers.client import Client
from sagas.project import Project
from sagas.settings import load_settings


async def measure(
    project: Project, port: int, pids: Mapping[str, int], rounds: int, count: int, only: str | None
) -> bool:
    client = await Client.connect(project)
    async with client, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120) as http:
        while True:
            with contextlib.suppress(httpx.ConnectError):
                await http.get("/")
                break
            await asyncio.sleep(0.2)
        stage = Stage(client, http, pids)
        print(f"ten million additions: {loop_seconds():.2f} s of CPU")
        try:
            met = only is not None or await measure_costs(stage, rounds)
            return await measure_starts(stage, rounds, count, only) and met
        finally:
            stage.close()


@contextlib.contextmanager
def running(folder: Path, port: int) -> Iterator[Mapping[str, int]]:
    """The pids of `saga serve` and `saga trigger`."""
    saga = [sys.executable, "-m", "saga_cli", "--config", str(folder / "saga.toml")]
    commands = {"serve": ["serve", "--listen", f"127.0.0.1:{port}"], "trigger": ["trigger"]}
    with (folder / "processes.log").open("wb") as log:
        processes = {name: subprocess.Popen([*saga, *words], stderr=log) for name, words in commands.items()}
    try:
        yield {name: process.pid for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=40, help="honest starts of a round")
    parser.add_argument("--quick", action="store_true", help="one short round, to check that it works")
    parser.add_argument("--only", choices=WAYS, help="measure nothing but the starts on this way")
    options = parser.parse_args()
    rounds, count = (1, 10) if options.quick else (options.rounds, options.count)
    for name, token in TOKENS.items():
        os.environ[f"BENCH_{name.upper()}"] = token
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with bench_stack(make_project, ("temporal", "kafka", "worker")) as (folder, stack):
        project = Project(load_settings(folder))
        KafkaAdmin(project.settings.kafka).ensure_topic(TOPIC, 1)
        with running(folder, port) as pids:
            pids = {**pids, "worker": stack.status()["worker"]["pid"]}
            met = asyncio.run(measure(project, port, pids, rounds, count, options.only))
    print("\nall goals are met" if met else "\na goal is missed")


if __name__ == "__main__":
    main()
