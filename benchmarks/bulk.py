"""Bulk execution, a program without an engine, and one workflow for each saga: `python -m benchmarks.bulk [--quick]`.

All of them take an amount from an account in three guarded steps, on the same servers. Each round measures every way
once, in turn; ratios are medians of the ratios of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Producer

from benchmarks.support.bench_stack import bench_stack
from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.config import producer_config
from saga_workers.client import Client
from saga_workers.start.start_requests import BulkRow
from sagas.settings import load_settings
from sagas.settings.project import Project

HERE = Path(__file__).parent
ACCOUNTS = 1000
SINGLE_COUNT = 100
"""Sagas of a round with a workflow of their own."""

SETTINGS = """
definitions = ["."]
actions = ["./bulk_participants.py"]
[connections.bench]
schema = "schema.sql"
[ledger]
connection = "bench"
"""
TABLES = """
create table if not exists account (id text primary key, balance bigint not null);
create table if not exists hand_barrier (key text, op text, result text, primary key (key, op));
insert into account select 'a' || n, 1000000000 from generate_series(0, 999) n on conflict do nothing;
"""
TOPIC = "bench-payments"
STATEMENT = '"update account set balance = balance {sign} :amount where id = :id"'
SQL_STEP = """
  - id: {id}
    uses: sql
    with: {{connection: bench, run: {take}, params: {params}, expect_rows: 1}}
    compensate: {{uses: sql, with: {{connection: bench, run: {give}, params: {params}}}}}
"""
BATCH_STEP = """
  - {{id: {id}, uses: bench.take, with: {params}, compensate: bench.give}}
"""
LEAVING_STEP = """
  - {id: pause, uses: wait, with: {signal: go, timeout: 1ms, on_timeout: continue}, if: input.leaves}
"""
PARAMS = '{amount: "${{ input.amount }}", id: "${{ input.account }}"}'
INPUT = "input: {type: object, properties: {account: {type: string}, amount: {type: integer}, leaves: {type: boolean}}}"


def definition(name: str, step: str, *, leaving: bool = False) -> str:
    """A saga of three equal steps; ``leaving``: one of them waits first, if its input says so."""
    texts = {"take": STATEMENT.format(sign="-"), "give": STATEMENT.format(sign="+"), "params": PARAMS}
    steps = [step.format(id=f"step{number}", **texts) for number in range(3)]
    if leaving:
        steps.insert(2, LEAVING_STEP)
    return f"saga: {name}\n{INPUT}\nsteps:\n" + "".join(steps)


def make_project(folder: Path) -> None:
    (folder / "saga.toml").write_text(SETTINGS)
    (folder / "schema.sql").write_text(TABLES)
    shutil.copy(HERE / "bulk_participants.py", folder)
    (folder / "plain.saga.yaml").write_text(definition("plain", SQL_STEP))
    (folder / "batched.saga.yaml").write_text(definition("batched", BATCH_STEP))
    (folder / "arriving.saga.yaml").write_text(arriving_definition())
    (folder / "leaving.saga.yaml").write_text(definition("leaving", SQL_STEP, leaving=True))


def arriving_definition() -> str:
    """The benchmark's saga, started by events."""
    triggers = (
        f'triggers: {{kafka: {{topic: {TOPIC}, id: "pay-${{{{ trigger.value.number }}}}-${{{{ trigger.value.sent }}}}",'
        " bulk: {max: 500, wait: 50ms}}}\n"
    )
    return definition("arriving", SQL_STEP).replace("steps:", f"{triggers}steps:")


class BulkBench:
    """One stack, and the ways of running sagas on it. Each way returns sagas per second."""

    def __init__(self, client: Client, url: str, size: int, in_flight: int) -> None:
        self._client = client
        self._url = url
        self._size = size
        self._in_flight = in_flight

    async def without_engine(self, count: int, processes: int = 1) -> float:
        running = [await self._start_program(count // processes) for _ in range(processes)]
        begin = time.perf_counter()
        for process in running:
            assert process.stdin is not None
            process.stdin.close()  # go
        for process in running:
            await process.wait()
            assert process.returncode == 0
        return count / (time.perf_counter() - begin)

    async def _start_program(self, count: int) -> asyncio.subprocess.Process:
        program = [sys.executable, "-c", _PROGRAM, self._url, uuid.uuid4().hex, str(count), str(ACCOUNTS)]
        pipe = subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*program, cwd=HERE.parent, stdin=pipe, stdout=pipe)
        assert process.stdout is not None
        await process.stdout.readline()  # it has imported everything
        return process

    async def bulk(self, saga: str, count: int, *, leave_every: int = 0) -> float:
        starter = await self._client.starter(saga)
        run = uuid.uuid4().hex
        begin = time.perf_counter()
        gate = asyncio.Semaphore(self._in_flight)

        async def part(numbers: range) -> int:
            async with gate:
                rows = []
                for number in numbers:
                    leaves = bool(leave_every) and number % leave_every == 0
                    input = {"account": f"a{number % ACCOUNTS}", "amount": 1, "leaves": leaves}
                    rows.append(BulkRow(f"{run}-{number}", starter.make_request(input)))
                handle = await starter.start_bulk(rows, chunk_size=self._size)
                result = await handle.result()
                for id in result["detached"]:
                    await self._client.temporal.get_workflow_handle(id).result()
                return result["counts"].get("COMPLETED", 0) + len(result["detached"])

        parts = [range(start, min(start + self._size, count)) for start in range(0, count, self._size)]
        done = await asyncio.gather(*(part(numbers) for numbers in parts))
        assert sum(done) == count, done
        return count / (time.perf_counter() - begin)

    async def single(self, count: int) -> float:
        gate = asyncio.Semaphore(50)

        async def run_saga(number: int) -> None:
            async with gate:
                input = {"account": f"a{number % ACCOUNTS}", "amount": 1, "leaves": False}
                run = await self._client.start("plain", input)
                await run.result()

        begin = time.perf_counter()
        await asyncio.gather(*(run_saga(number) for number in range(count)))
        return count / (time.perf_counter() - begin)

    async def arriving(self, rate: int, length: int) -> Arrivals:
        """Produce ``rate`` events per second for ``length`` seconds, and watch the sagas end."""
        producer = Producer(producer_config(self._client.project.settings.kafka))
        begin, lags, sent = time.time(), [], 0
        while (elapsed := time.time() - begin) < length:
            while sent < elapsed * rate:
                now = int(time.time() * 1000)
                value = {"account": f"a{sent % ACCOUNTS}", "amount": 1, "number": sent, "sent": now}
                producer.produce(TOPIC, json.dumps(value).encode(), str(sent % ACCOUNTS))
                sent += 1
            producer.poll(0)
            if len(lags) < int(elapsed):
                lags.append(sent - await asyncio.to_thread(self._arrived, begin))
            await asyncio.sleep(0.005)
        producer.flush(30)
        while await asyncio.to_thread(self._arrived, begin) < sent:  # noqa: ASYNC110 - only rows tell
            await asyncio.sleep(0.2)
        quantiles = await asyncio.to_thread(self._delays, begin)
        return Arrivals(sent, time.time() - begin, quantiles, lags)

    def _arrived(self, begin: float) -> int:
        return self._of_arriving("count(*)", begin)[0]

    def _delays(self, begin: float) -> Sequence[float]:
        delay = "extract(epoch from ended_at) * 1000 - cast(split_part(saga_id, '-', 3) as bigint)"
        return self._of_arriving(f"percentile_cont(array[0.5, 0.99]) within group (order by {delay})", begin)[0]

    def _of_arriving(self, what: str, begin: float) -> Sequence[Any]:
        query = f"select {what} from saga_run where saga = 'arriving' and started_at > to_timestamp({begin})"
        with psycopg.connect(self._url) as connection:
            row = connection.execute(query).fetchone()  # pyright: ignore[reportArgumentType,reportCallIssue]
        assert row is not None
        return row


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How sagas followed their events. ``delays``: milliseconds from event to end, median and 99th percentile.

    ``lags``: events whose sagas had not ended, once a second.
    """

    events: int
    seconds: float
    delays: Sequence[float]
    lags: Sequence[int]

    def print(self) -> None:
        half = len(self.lags) // 2
        growth = statistics.median(self.lags[half:]) - statistics.median(self.lags[:half])
        print(f"\n{self.events} events in {self.lags and len(self.lags)} s, all sagas ended after {self.seconds:.1f} s")
        print(f"event to end: median {self.delays[0]:.0f} ms, 99 of 100 within {self.delays[1]:.0f} ms")
        print(f"events that wait: median {statistics.median(self.lags):.0f}, second half against first {growth:+.0f}")


_PROGRAM = """
import asyncio, sys
from benchmarks.no_engine import run_sagas
print("ready", flush=True)
sys.stdin.read()
asyncio.run(run_sagas(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""


async def measure(folder: Path, options: argparse.Namespace) -> None:
    project = Project(load_settings(folder))
    url = project.settings.connection("bench").url.replace("+psycopg", "")
    async with await Client.connect(project) as client:
        bench = BulkBench(client, url, options.size, options.in_flight)
        ways: dict[str, Callable[[], Awaitable[float]]] = {
            "no engine, three transactions": lambda: bench.without_engine(options.count),
            "the same in several processes": lambda: bench.without_engine(options.count, options.workers),
            "bulk, three sql steps": lambda: bench.bulk("plain", options.count),
            "bulk, three batch actions": lambda: bench.bulk("batched", options.count),
            "bulk, every twentieth leaves": lambda: bench.bulk("leaving", options.count, leave_every=20),
            "bulk, the same, none leaves": lambda: bench.bulk("leaving", options.count),
            "a workflow for each saga": lambda: bench.single(SINGLE_COUNT),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(options.rounds + 1):
            for name, run in ways.items() if number % 2 else reversed(ways.items()):
                rate = await run()
                if number:  # the first round warms up
                    rates[name].append(rate)
        print_rates(rates)
        KafkaAdmin(project.settings.kafka).ensure_topic(TOPIC, 4)
        await bench.arriving(options.events, 3)  # the trigger finds its topic
        (await bench.arriving(options.events, 3 if options.quick else 20)).print()
    check_balance(url)


def start_worker(folder: Path) -> subprocess.Popen[bytes]:
    """One more beside that of the stack: a Python process uses one core."""
    program = [sys.executable, "-P", "-m", "saga_cli.main", "worker"]
    with (folder / "worker.log").open("ab") as log:
        return subprocess.Popen(program, cwd=folder, stdout=log, stderr=log)


def print_rates(rates: dict[str, list[float]]) -> None:
    base, single, staying = (
        rates["no engine, three transactions"],
        rates["a workflow for each saga"],
        rates["bulk, the same, none leaves"],
    )
    print(f"\n{'':<34} {'sagas/s':>9} {'no engine':>10} {'single':>8} {'none leaves':>12}")
    for name, own in rates.items():
        ratios = [
            statistics.median(rate / other_rate for rate, other_rate in zip(own, others, strict=True))
            for others in (base, single, staying)
        ]
        print(f"{name:<34} {statistics.median(own):>9.0f} {ratios[0]:>10.2f} {ratios[1]:>8.1f} {ratios[2]:>12.2f}")


def check_balance(url: str) -> None:
    """Every way took as much as its barrier rows say: the fast way is also the right one."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "select (select sum(1000000000 - balance) from account),"
            " (select count(*) from hand_barrier) + (select count(*) from saga_guard where op = 'do'"
            " and step like 'step%')"
        ).fetchone()
    assert row is not None
    assert row[0] == row[1], row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=5000, help="sagas of a round")
    parser.add_argument("--size", type=int, default=500, help="sagas of a bulk workflow")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="worker processes")
    parser.add_argument("--in-flight", type=int, default=4, help="bulk workflows at once")
    parser.add_argument("--events", type=int, default=1000, help="events per second for the trigger")
    parser.add_argument("--quick", action="store_true", help="one short round, to check that it works")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.count, options.events = 1, 500, 100
    with bench_stack(make_project) as (folder, _):
        more = [start_worker(folder) for _ in range(options.workers - 1)]
        try:
            print(
                f"{options.rounds} rounds of {options.count} sagas in parts of {options.size},"
                f" {options.workers} worker processes, load {os.getloadavg()[0]:.1f}"
            )
            asyncio.run(measure(folder, options))
        finally:
            for worker in more:
                worker.terminate()
                worker.wait()


if __name__ == "__main__":
    main()
