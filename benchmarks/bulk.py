"""Bulk execution, a program without an engine, and one workflow for each saga: `python -m benchmarks.bulk [--quick]`.

All of them take random amounts from random accounts in three guarded steps, on the same servers, with one worker. Each
round measures every way once, in turn; ratios are medians of the ratios of the rounds. In the mixed ways 8 % of the
sagas are rejected and 0.5 % violate a constraint in their second step, and the first one is undone. CPU is user and
system time of all processes. `--second-worker` starts and stops one between rounds instead, each worker on a core of
its own, and everything else on the others.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
from confluent_kafka import Producer

from benchmarks.no_engine import Payment, payments
from benchmarks.support.bench_stack import bench_stack, pids_of
from benchmarks.support.measure import cpu_seconds
from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.config import producer_config
from saga_workers.client import Client
from saga_workers.start.start_requests import BulkRow
from sagas.project import Project
from sagas.settings import load_settings

HERE = Path(__file__).parent
ACCOUNTS = 1000
FEWEST_CORES = 4
"""Cores with which two workers have one each, and everything else has others."""

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
create table if not exists account (id text primary key, balance bigint not null check (balance >= 0));
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
SECOND_PARAMS = '{amount: "${{ input.amount + input.excess }}", id: "${{ input.second }}"}'
"""Parameters of the second step of a mixed saga, which may be rejected or violate a constraint."""

INPUT = """
input:
  type: object
  properties:
    account: {type: string}
    amount: {type: integer}
    second: {type: string}
    excess: {type: integer}
    leaves: {type: boolean}
"""
REJECTED, VIOLATING = 0.08, 0.005
"""The fractions of the sagas of a mixed run."""


def definition(name: str, step: str, *, leaving: bool = False, mixed: bool = False) -> str:
    """A saga of three equal steps. ``leaving``: one of them waits first, if its input says so. ``mixed``: its second
    step may fail."""
    texts = {"take": STATEMENT.format(sign="-"), "give": STATEMENT.format(sign="+")}
    params = [PARAMS, SECOND_PARAMS if mixed else PARAMS, PARAMS]
    steps = [step.format(id=f"step{number}", params=params[number], **texts) for number in range(3)]
    if leaving:
        steps.insert(2, LEAVING_STEP)
    return f"saga: {name}\n{INPUT}steps:\n" + "".join(steps)


def make_project(folder: Path) -> None:
    (folder / "saga.toml").write_text(SETTINGS)
    (folder / "schema.sql").write_text(TABLES)
    shutil.copy(HERE / "bulk_participants.py", folder)
    (folder / "plain.saga.yaml").write_text(definition("plain", SQL_STEP))
    (folder / "mixed.saga.yaml").write_text(definition("mixed", SQL_STEP, mixed=True))
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


def _failing(mixed: bool) -> tuple[float, float]:
    """The fractions of the sagas that are rejected, and that violate a constraint."""
    return (REJECTED, VIOLATING) if mixed else (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one way. ``cpu``: milliseconds for each saga, by process. ``deadlocks``: those that PostgreSQL has
    resolved meanwhile."""

    rate: float
    cpu: Mapping[str, float]
    deadlocks: int


class BulkBench:
    """One stack, and the ways of running sagas on it. Each way returns sagas per second.

    ``pids`` are the processes of the stack. ``taken`` is the amount by which all ways together must have lowered the
    balances.
    """

    def __init__(self, client: Client, url: str, size: int, in_flight: int, pids: Mapping[str, int]) -> None:
        self._client = client
        self._url = url
        self._size = size
        self._in_flight = in_flight
        self._pids = pids
        self._preparation = 0.0
        self.taken = 0

    async def sample(self, run: Callable[[int], Awaitable[float]], count: int) -> Sample:
        """Run ``count`` sagas in one way."""
        deadlocks, self._preparation = await self._deadlocks(), 0.0
        before, own_before = {part: cpu_seconds(pid) for part, pid in self._pids.items()}, sum(os.times()[:4])
        rate = await run(count)
        used = {"program or client": sum(os.times()[:4]) - own_before - self._preparation}
        used |= {part: cpu_seconds(pid) - before[part] for part, pid in self._pids.items()}
        cpu = {part: 1000 * seconds / count for part, seconds in used.items()}
        return Sample(rate, cpu, await self._deadlocks() - deadlocks)

    async def _deadlocks(self) -> int:
        await asyncio.sleep(1.2)  # PostgreSQL's sessions report their counts at most once a second
        query = "select deadlocks from pg_stat_database where datname = current_database()"
        return (await asyncio.to_thread(self._row, query))[0]

    def _payments(self, count: int, *, mixed: bool = False) -> tuple[str, list[Payment]]:
        """The name of a run, and what its sagas take."""
        run = uuid.uuid4().hex
        todo = list(payments(run, count, ACCOUNTS, *_failing(mixed)))
        self.taken += 3 * sum(payment.amount for payment in todo if payment.succeeds)
        return run, todo

    async def without_engine(self, count: int, *, mixed: bool = False) -> float:
        run, _ = self._payments(count, mixed=mixed)
        words = [self._url, run, *map(str, (count, ACCOUNTS, *_failing(mixed)))]
        pipe = subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _PROGRAM, *words, cwd=HERE.parent, stdin=pipe, stdout=pipe
        )
        assert process.stdout is not None
        assert process.stdin is not None
        await process.stdout.readline()  # it has imported everything
        self._preparation += cpu_seconds(process.pid)
        begin = time.perf_counter()
        process.stdin.close()  # go
        assert await process.wait() == 0
        return count / (time.perf_counter() - begin)

    async def bulk(self, saga: str, count: int, *, leave_every: int = 0, mixed: bool = False) -> float:
        starter = await self._client.starter(saga)
        run, todo = self._payments(count, mixed=mixed)
        begin = time.perf_counter()
        gate = asyncio.Semaphore(self._in_flight)

        async def part(numbers: range) -> Counter[str]:
            async with gate:
                rows = []
                for number in numbers:
                    leaves = bool(leave_every) and number % leave_every == 0
                    input = {**asdict(todo[number]), "leaves": leaves}
                    rows.append(BulkRow(f"{run}-{number}", starter.make_request(input)))
                handle = await starter.start_bulk(rows, chunk_size=self._size)
                result = await handle.result()
                for id in result["detached"]:
                    await self._client.temporal.get_workflow_handle(id).result()
                return Counter(result["counts"])

        parts = [range(start, min(start + self._size, count)) for start in range(0, count, self._size)]
        ended = sum(await asyncio.gather(*(part(numbers) for numbers in parts)), Counter[str]())
        succeeded = sum(payment.succeeds for payment in todo)
        assert ended["COMPLETED"] + ended["DETACHED"] == succeeded, ended
        assert ended["COMPENSATED"] == count - succeeded, ended
        return count / (time.perf_counter() - begin)

    async def single(self, count: int) -> float:
        gate = asyncio.Semaphore(50)

        async def run_saga(payment: Payment) -> None:
            async with gate:
                run = await self._client.start("plain", {**asdict(payment), "leaves": False})
                await run.result()

        _, todo = self._payments(count)
        begin = time.perf_counter()
        await asyncio.gather(*map(run_saga, todo))
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
        self.taken += 3 * sent
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
        return self._row(f"select {what} from saga_run where saga = 'arriving' and started_at > to_timestamp({begin})")

    def _row(self, query: str) -> Sequence[Any]:
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
import sys
from benchmarks.no_engine import payments, run_sagas
url, run, count, accounts, rejected, violating = sys.argv[1:]
todo = payments(run, int(count), int(accounts), float(rejected), float(violating))
print("ready", flush=True)
sys.stdin.read()
run_sagas(url, run, todo)
"""


async def measure(folder: Path, pids: Mapping[str, int], options: argparse.Namespace) -> None:
    project = Project(load_settings(folder))
    url = project.settings.connection("bench").url.replace("+psycopg", "")
    async with await Client.connect(project) as client:
        bench = BulkBench(client, url, options.size, options.in_flight, pids)
        if options.second_worker:
            await measure_second_worker(bench, folder, pids, options)
        else:
            await measure_ways(bench, options)
            KafkaAdmin(project.settings.kafka).ensure_topic(TOPIC, 4)
            await bench.arriving(options.events, 3)  # the trigger finds its topic
            (await bench.arriving(options.events, 3 if options.quick else 20)).print()
        check_balance(url, bench.taken)


async def measure_ways(bench: BulkBench, options: argparse.Namespace) -> None:
    ways: dict[str, Callable[[int], Awaitable[float]]] = {
        "no engine, three transactions": bench.without_engine,
        "no engine, mixed": lambda count: bench.without_engine(count, mixed=True),
        "bulk, three sql steps": lambda count: bench.bulk("plain", count),
        "bulk, mixed": lambda count: bench.bulk("mixed", count, mixed=True),
        "bulk, three batch actions": lambda count: bench.bulk("batched", count),
        "bulk, every twentieth leaves": lambda count: bench.bulk("leaving", count, leave_every=20),
        "bulk, the same, none leaves": lambda count: bench.bulk("leaving", count),
        "a workflow for each saga": bench.single,
    }
    samples: dict[str, list[Sample]] = {name: [] for name in ways}
    for number in range(options.rounds + 1):
        for name, run in ways.items() if number % 2 else reversed(ways.items()):
            sample = await bench.sample(run, SINGLE_COUNT if run == bench.single else options.count)
            if number:  # the first round warms up
                samples[name].append(sample)
    print_rates(samples)
    print_cpu(samples)


async def measure_second_worker(
    bench: BulkBench, folder: Path, pids: Mapping[str, int], options: argparse.Namespace
) -> None:
    """Rounds with one worker, and with two, in turn."""
    first, second, *others = sorted(os.sched_getaffinity(0))
    pin(pids["worker"], [first])
    for pid in (os.getpid(), pids["temporal"], pids["postgres"]):
        pin(pid, others)
    rates: dict[int, list[float]] = {1: [], 2: []}
    for number in range(options.rounds + 1):
        for workers in (1, 2) if number % 2 else (2, 1):
            with contextlib.ExitStack() as running:
                if workers == 2:
                    pin(running.enter_context(one_more_worker(folder)), [second])
                    await bench.bulk("plain", options.size)  # it has imported everything
                rate = await bench.bulk("plain", options.count)
            if number:
                rates[workers].append(rate)
    ratios = [more / fewer for fewer, more in zip(rates[1], rates[2], strict=True)]
    for workers, own in rates.items():
        print(f"{workers} worker: {statistics.median(own):.0f} sagas/s")
    print(f"a second worker: {statistics.median(ratios):.2f} times one, {min(ratios):.2f} to {max(ratios):.2f}")


def pin(pid: int, cores: Sequence[int]) -> None:
    """Let all threads of a process, and of its children, run on these cores only."""
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        for thread in process.threads():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread.id, cores)


@contextlib.contextmanager
def one_more_worker(folder: Path) -> Iterator[int]:
    """A worker in addition to that of the stack; yields its pid."""
    program = [sys.executable, "-P", "-m", "saga_cli.main", "worker"]
    with (folder / "worker.log").open("ab") as log:
        process = subprocess.Popen(program, cwd=folder, stdout=log, stderr=log)
    try:
        time.sleep(5)  # it starts to poll
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def print_rates(samples: Mapping[str, Sequence[Sample]]) -> None:
    """The ratio of a mixed way is that to the mixed yardstick."""
    print(
        f"\n{'':<34} {'sagas/s':>9} {'spread':>7} {'no engine':>10} {'single':>8} {'none leaves':>12} {'deadlocks':>10}"
    )
    for name, own in samples.items():
        others = (_yardstick(name), "a workflow for each saga", "bulk, the same, none leaves")
        ratios = [_ratio([each.rate for each in own], [each.rate for each in samples[other]]) for other in others]
        middle = statistics.median(each.rate for each in own)
        spread = (max(each.rate for each in own) - min(each.rate for each in own)) / middle
        print(
            f"{name:<34} {middle:>9.0f} {spread:>7.0%} {ratios[0]:>10.2f} {ratios[1]:>8.1f} {ratios[2]:>12.2f}"
            f" {sum(each.deadlocks for each in own):>10}"
        )


def print_cpu(samples: Mapping[str, Sequence[Sample]]) -> None:
    """On a busy machine CPU says more than sagas per second. The ratio: how much less than the yardstick."""
    parts = list(next(iter(samples.values()))[0].cpu)
    print(f"\n{'CPU ms for each saga':<34}" + "".join(f" {part:>17}" for part in [*parts, "sum", "no engine / own"]))
    for name, own in samples.items():
        used = [statistics.median(each.cpu[part] for each in own) for part in parts]
        sums = [sum(each.cpu.values()) for each in own]
        ratio = _ratio([sum(each.cpu.values()) for each in samples[_yardstick(name)]], sums)
        numbers = [*used, statistics.median(sums), ratio]
        print(f"{name:<34}" + "".join(f" {number:>17.2f}" for number in numbers), flush=True)


def _yardstick(name: str) -> str:
    return "no engine, mixed" if "mixed" in name else "no engine, three transactions"


def _ratio(own: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(mine / other for mine, other in zip(own, others, strict=True))


def check_balance(url: str, taken: int) -> None:
    """Every way took what its sagas that succeeded were to take: the fast way is also the right one."""
    with psycopg.connect(url) as connection:
        row = connection.execute("select sum(1000000000 - balance) from account").fetchone()
    assert row == (taken,), (row, taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=5000, help="sagas of a round")
    parser.add_argument("--size", type=int, default=500, help="sagas of a bulk workflow")
    parser.add_argument("--second-worker", action="store_true", help="two workers beside one; needs four cores")
    parser.add_argument("--in-flight", type=int, default=4, help="bulk workflows at once")
    parser.add_argument("--events", type=int, default=1000, help="events per second for the trigger")
    parser.add_argument("--quick", action="store_true", help="one short round, to check that it works")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.count, options.events = 1, 500, 100
    if options.second_worker and len(os.sched_getaffinity(0)) < FEWEST_CORES:
        parser.error(f"a second worker needs {FEWEST_CORES} cores")
    with bench_stack(make_project) as (folder, stack):
        load = f"load {os.getloadavg()[0]:.1f}"
        print(f"{options.rounds} rounds of {options.count} sagas in parts of {options.size}, one worker, {load}")
        asyncio.run(measure(folder, pids_of(stack), options))


if __name__ == "__main__":
    main()
