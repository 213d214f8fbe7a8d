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
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
from confluent_kafka import Consumer, Producer
from temporalio.client import WorkflowFailureError

from benchmarks.support.bench_stack import bench_stack
from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.config import producer_config
from saga_workers.client import Client
from sagas.settings import load_settings
from sagas.settings.project import Project

MAX_SECONDS, MAX_MIB, MAX_RATIO = 2.0, 200, 2.0
"""The goals: for each input, and for honest starts."""

LINE = "{:<10} {:<34} {:>9} {:>9} {:>9}"
TOPIC = "bench-orders"
TOKENS = {name: f"a-token-of-the-benchmark-{name}" for name in ("honest", "first", "second")}
SETTINGS = """
definitions = ["."]
actions = ["./say.py"]
[kafka]
prefix = "bench"
[serve]
starts_per_second = 1000
"""
ACTIONS = """
from sagas import action

@action("say")
async def say(text: str) -> None:
    return None
"""
DEFINITION = """
saga: order
id: "${{ input.id }}"
triggers: {kafka: {topic: bench-orders, id: "${{ trigger.value.id }}"}}
input:
  type: object
  required: [id]
  properties:
    id: {type: string}
    twice: {$ref: "#/$defs/twice"}
    node: {$ref: "#/$defs/node"}
    numbers: {type: array, items: {type: integer}}
    rows:
      type: array
      uniqueItems: true
      items: {type: object, properties: {sku: {type: string, pattern: "^([a-z]+-)*[0-9]+$"}, count: {default: 1}}}
    named: {type: object, additionalProperties: {enum: [a, b, c]}}
    rest: {type: array, contains: {const: x}, unevaluatedItems: {type: string, maxLength: 3}}
  $defs:
    twice:
      anyOf:
        - {type: array, items: {$ref: "#/$defs/twice"}, contains: {const: 0}}
        - {type: array, items: {$ref: "#/$defs/twice"}}
    node:
      oneOf:
        - {type: string}
        - {type: array, items: {$ref: "#/$defs/node"}}
        - {type: object, additionalProperties: {$ref: "#/$defs/node"}}
steps:
  - {id: say, uses: say, with: {text: "${{ input.id }}"}, effect: none}
"""


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


HOSTILE: Mapping[str, Any] = {
    "lists inside each other": {"twice": nested(90)},
    "alternatives of alternatives": {"node": [["x"] * 10] * 20_000 + [1]},
    "many whole numbers": {"numbers": [*range(120_000), "x"]},
    "more values than are read": {"numbers": [1] * 400_000},
    "rows with a pattern": {"rows": [{"sku": "a-" * 10 + "x"}] * 30_000},
    "names": {"named": {f"n{number}": "d" for number in range(60_000)}},
    "no element of its list": {"rest": ["yyyy"] * 120_000},
    "one long text": {"rows": [{"sku": "a-" * 480_000}]},
}
"""Inputs that the schema refuses, or that take too long to check; about one megabyte at most."""


def make_project(folder: Path) -> None:
    tokens = "".join(
        f'[serve.tokens.{name}]\nsecret = {{env = "BENCH_{name.upper()}"}}\nscopes = ["start", "read"]\n'
        for name in TOKENS
    )
    (folder / "saga.toml").write_text(SETTINGS + tokens)
    (folder / "say.py").write_text(ACTIONS)
    (folder / "order.saga.yaml").write_text(DEFINITION)


class Stage:
    """The processes that inputs are sent to."""

    def __init__(self, client: Client, http: httpx.AsyncClient, pids: Mapping[str, int]) -> None:
        self.client = client
        self.http = http
        self.pids = pids
        self.kafka = client.project.settings.kafka
        self.producer = Producer(producer_config(self.kafka))
        self._dead = Consumer(
            {"bootstrap.servers": self.kafka.servers, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
        )
        self._dead.subscribe([f"{TOPIC}.dlq"])

    async def over_http(self, value: Any, token: str = "honest") -> int:
        """Start a saga; returns the status of the response."""
        headers = {"Authorization": f"Bearer {TOKENS[token]}", "Content-Type": "application/json"}
        body = json.dumps({"input": value}, separators=(",", ":"))
        return (await self.http.post("/sagas/order", content=body, headers=headers)).status_code

    def produce(self, value: Any) -> float:
        """Write an event; returns when it was written."""
        self.producer.produce(TOPIC, json.dumps(value, separators=(",", ":")).encode())
        assert self.producer.flush(60) == 0
        return time.time()

    async def over_kafka(self, value: Any) -> int:
        """Write an event that becomes a dead letter, and wait for it."""
        self.produce(value)
        while await asyncio.to_thread(self._dead.poll, 0.5) is None:
            pass
        return 0

    async def over_temporal(self, value: Any) -> int:
        """Start a saga as a client that checks nothing; it is refused."""
        temporal, queue = self.client.temporal, self.client.project.settings.temporal.task_queue
        with contextlib.suppress(WorkflowFailureError):
            await temporal.execute_workflow("order", value, id=value["id"], task_queue=queue)
        return 0

    def close(self) -> None:
        self._dead.close()


def fresh(value: Mapping[str, Any]) -> dict[str, Any]:
    return {**value, "id": f"b-{uuid.uuid4().hex}"}


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
        value = fresh({})
        written[value["id"]] = await asyncio.to_thread(stage.produce, value)
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
        await (await stage.client.start("order", fresh({}))).result()
        taken.append(time.perf_counter() - began)
    return taken


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


async def measure_starts(stage: Stage, rounds: int, count: int) -> bool:
    values = list(HOSTILE.values())

    async def http(number: int) -> None:
        await stage.over_http(fresh(values[number % len(values)]), ("first", "second")[number % 2])

    async def kafka(number: int) -> None:
        await asyncio.to_thread(stage.produce, fresh(values[number % len(values)]))
        await asyncio.sleep(1)

    async def temporal(number: int) -> None:
        await stage.over_temporal(fresh(values[number % len(values)]))

    print("\n" + LINE.format("", "honest starts", "alone ms", "with", "ratio"))
    met = True
    ways = (("HTTP", honest_http, http), ("Kafka", honest_kafka, kafka), ("Temporal", honest_temporal, temporal))
    for name, run, send in ways:
        await run(stage, count)
        alone: dict[float, list[float]] = {0.5: [], 0.95: []}
        beside: dict[float, list[float]] = {0.5: [], 0.95: []}
        hostile = 0
        for _ in range(rounds):
            add(alone, await run(stage, count))
            async with arriving(send, 4) as answered:
                add(beside, await run(stage, count))
            hostile += answered[0]
            await quiet(stage)
        for part, usual in alone.items():
            ratio = statistics.median(
                disturbed / undisturbed for disturbed, undisturbed in zip(beside[part], usual, strict=True)
            )
            met &= ratio < MAX_RATIO or part != 0.5
            label = f"p{100 * part:.0f}, {hostile} hostile ones refused"
            milliseconds = (f"{1000 * statistics.median(column):.0f}" for column in (usual, beside[part]))
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


async def measure(project: Project, port: int, pids: Mapping[str, int], rounds: int, count: int) -> bool:
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
            met = await measure_costs(stage, rounds)
            return await measure_starts(stage, rounds, count) and met
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
            met = asyncio.run(measure(project, port, pids, rounds, count))
    print("\nall goals are met" if met else "\na goal is missed")


if __name__ == "__main__":
    main()
