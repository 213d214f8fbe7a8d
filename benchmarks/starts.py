"""Starts over HTTP that wait for the end of their saga: sagas that share workflows, and one workflow for each saga.

`python -m benchmarks.starts [--rounds N] [--quick]`. Two processes of `saga serve` work on the same servers, with one
worker: one has `bulk_wait`. Each round measures both with the same numbers of callers at once, in turn; each caller
has a connection of its own, and sends its next start when the last has been answered. A saga has three guarded steps.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from benchmarks.bulk import INPUT, PARAMS, SETTINGS, SQL_STEP, STATEMENT, TABLES
from benchmarks.no_engine import Payment, payments
from benchmarks.support.bench_stack import bench_stack, pids_of
from benchmarks.support.measure import cpu_seconds
from sagas.settings import load_settings

ACCOUNTS = 1000
TOKEN = "a-token-of-the-benchmark-starts"
SERVE = """
[serve]
starts_per_second = 100000
max_waiting = 1000
[serve.tokens.bench]
secret = {env = "BENCH_TOKEN"}
scopes = ["start", "read"]
"""
WAYS = {"shared": "250ms", "own": "0s"}
"""How sagas are started, and the setting `bulk` of the process that does it."""

STARTS = {("shared", 1): 40, ("own", 1): 40, ("shared", 50): 1000, ("own", 50): 100}
"""Starts of a round, for each way and number of callers; of others see :func:`starts_of`."""

LINE = "{:>7} {:<7} {:>8} {:>7} {:>7}" + " {:>9}" * 6


def starts_of(way: str, callers: int) -> int:
    """The number of starts of a round."""
    return STARTS.get((way, callers), callers * (10 if way == "shared" else 1))


@dataclass
class Samples:
    """All rounds of one way with one number of callers. ``cpu``: milliseconds for each saga, by process."""

    rates: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def latency(self, quantile: float) -> float:
        """Milliseconds in which this part of the starts was answered."""
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


class StartsBench:
    """The callers. ``ports`` are those of the two ways, ``pids`` all processes; ``taken`` and ``sagas`` sum up what
    they have started."""

    def __init__(self, ports: Mapping[str, int], pids: Mapping[str, int]) -> None:
        self._ports = ports
        self._pids = pids
        self.taken = 0
        self.sagas = 0

    async def round(self, way: str, callers: int, samples: Samples) -> None:
        """Start sagas and wait for their ends, ``callers`` at once."""
        count = starts_of(way, callers)
        run = uuid.uuid4().hex
        todo = enumerate(payments(run, count, ACCOUNTS, 0.0, 0.0))
        pids = {name: pid for name, pid in self._pids.items() if name not in WAYS or name == way}
        before, own_before = {name: cpu_seconds(pid) for name, pid in pids.items()}, time.process_time()
        begin = time.perf_counter()
        await asyncio.gather(*(self._call(way, run, todo, samples) for _ in range(callers)))
        samples.rates.append(count / (time.perf_counter() - begin))
        samples.cpu.setdefault("client", []).append(1000 * (time.process_time() - own_before) / count)
        for name, pid in pids.items():
            part = "serve" if name in WAYS else name
            samples.cpu.setdefault(part, []).append(1000 * (cpu_seconds(pid) - before[name]) / count)
        self.sagas += count

    async def _call(self, way: str, run: str, todo: Iterator[tuple[int, Payment]], samples: Samples) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[way])
        for number, payment in todo:
            input = {"account": payment.account, "amount": payment.amount}
            body = json.dumps({"id": f"{run}-{number}", "input": input, "wait": "60s"}).encode()
            head = (
                f"POST /sagas/plain HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {TOKEN}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            begin = time.perf_counter()
            writer.write(head.encode() + body)
            status, answer = await _read_answer(reader)
            samples.seconds.append(time.perf_counter() - begin)
            assert (status, answer["outcome"]["state"]) == (200, "COMPLETED"), (status, answer)
            self.taken += 3 * payment.amount
        writer.close()


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, dict[str, str]]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = head.partition("content-length: ")[2].partition("\r\n")[0]
    return int(head.split()[1]), json.loads(await reader.readexactly(int(length)))


async def measure(bench: StartsBench, rounds: int, callers: Sequence[int]) -> None:
    samples = {(way, some): Samples() for some in callers for way in WAYS}
    for number in range(rounds + 1):
        for (way, some), own in samples.items() if number % 2 else reversed(samples.items()):
            await bench.round(way, some, own if number else Samples())  # the first round warms up
    print_samples(samples)


def print_samples(samples: Mapping[tuple[str, int], Samples]) -> None:
    parts = list(next(iter(samples.values())).cpu)
    print("\nmilliseconds: latency of a start with its end, and CPU for each saga by process")
    print(LINE.format("callers", "", "sagas/s", "p50", "p99", *parts, "sum"))
    for (way, callers), own in samples.items():
        cpu = [statistics.median(own.cpu[part]) for part in parts]
        numbers = [f"{own.latency(0.5):.0f}", f"{own.latency(0.99):.0f}", *(f"{used:.2f}" for used in [*cpu, sum(cpu)])]
        print(LINE.format(callers, way, f"{statistics.median(own.rates):.0f}", *numbers), flush=True)
    for callers in dict.fromkeys(callers for _, callers in samples):
        shared, own = samples["shared", callers], samples["own", callers]
        rates = [ours / theirs for ours, theirs in zip(shared.rates, own.rates, strict=True)]
        slower = shared.latency(0.5) / own.latency(0.5)
        print(f"{callers} callers: {statistics.median(rates):.1f} times the sagas/s, {slower:.2f} times the p50")


def check_rows(url: str, bench: StartsBench) -> None:
    """Every start that was answered has moved its amount, once."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "select (select sum(1000000000 - balance) from account),"
            " (select count(*) from saga_run where state = 'COMPLETED'), (select count(*) from saga_claim)"
        ).fetchone()
    assert row is not None
    assert (*row,) == (bench.taken, bench.sagas, 0), (row, bench.taken, bench.sagas)
    print(f"{bench.sagas} sagas, and every one has moved its amount once")


def make_project(folder: Path) -> None:
    take, give = STATEMENT.format(sign="-"), STATEMENT.format(sign="+")
    steps = "".join(SQL_STEP.format(id=f"step{number}", params=PARAMS, take=take, give=give) for number in range(3))
    (folder / "saga.toml").write_text(SETTINGS.replace('actions = ["./bulk_participants.py"]\n', "") + SERVE)
    (folder / "schema.sql").write_text(TABLES)
    (folder / "plain.saga.yaml").write_text(f"saga: plain\n{INPUT}steps:\n{steps}")


@contextlib.contextmanager
def serving(folder: Path, port: int, bulk_wait: str) -> Iterator[int]:
    """A process of `saga serve`; yields its pid."""
    words = ["--config", str(folder / "saga.toml"), "serve", "--listen", f"127.0.0.1:{port}"]
    environment = {**os.environ, "BENCH_TOKEN": TOKEN, "SAGA_SERVE__BULK_WAIT": bulk_wait}
    with (folder / f"serve-{port}.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "saga_cli", *words], stderr=log, env=environment)
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None, (folder / f"serve-{port}.log").read_text()
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind(("127.0.0.1", 0))
        return [free.getsockname()[1] for free in sockets]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--callers", type=int, nargs="*", default=[1, 50, 200], help="callers at once")
    parser.add_argument("--quick", action="store_true", help="one short round, to check that it works")
    options = parser.parse_args()
    rounds, callers = (1, [1, 20]) if options.quick else (options.rounds, options.callers)
    with (
        bench_stack(make_project, ("temporal", "postgres", "worker")) as (folder, stack),
        contextlib.ExitStack() as running,
    ):
        ports = dict(zip(WAYS, free_ports(len(WAYS)), strict=True))
        serve = {way: running.enter_context(serving(folder, ports[way], wait)) for way, wait in WAYS.items()}
        bench = StartsBench(ports, {**serve, **pids_of(stack)})
        print(f"{rounds} rounds, one worker process, load {os.getloadavg()[0]:.1f}")
        asyncio.run(measure(bench, rounds, callers))
        url = load_settings(folder).connection("bench").url.replace("+psycopg", "")
        check_rows(url, bench)


if __name__ == "__main__":
    main()
