"""Sagas that applications enqueue in their transactions, and a client that starts them: `python -m benchmarks.enqueue
[--rounds N] [--sagas N] [--quick]`.

The latency of one row on an idle system is from the end of its commit to the time at which Temporal, or the claim of a
bulk workflow, has its saga; of a client it is that of the request. The rate is that of a backlog: rows that are
committed before a relay begins, and the same inputs that a client has in memory, as many at once. Its starts share
workflows (`bulk_wait`), and each has one of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import time
import uuid
from pathlib import Path
from statistics import median

import psycopg

from benchmarks.support.bench_stack import bench_stack
from benchmarks.support.measure import ratio
from saga_workers.client import Client
from saga_workers.enqueued import row_delivery
from saga_workers.enqueued.enqueued_table import EnqueuedRow
from saga_workers.relay.relay_process import run_relay
from sagas import enqueue
from sagas.project import Project
from sagas.settings import load_settings

LINE = "{:<52} {:>12} {:>12} {:>9}"
SETTINGS = """
[connections.shop]
[ledger]
connection = "shop"
[enqueue]
connections = ["shop"]
delivered_by = "relay"
"""
DEFINITION = """
saga: order
input: {type: object, required: [order], properties: {order: {type: string}}}
steps:
  - {id: noted, uses: pass}
"""


def order(number: int) -> dict[str, object]:
    lines = [{"sku": f"sku-{number % 4000:06d}", "quantity": 1 + number % 3, "price": "12.50"}] * 2
    return {"order": str(number), "lines": lines, "total": "50.00"}


class StartTimes:
    """The times at which rows were delivered, by the ids of their sagas."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        self.changed = asyncio.Event()
        self._deliver = row_delivery.RowDelivery.deliver
        times = self

        async def deliver(self: row_delivery.RowDelivery, row: EnqueuedRow) -> row_delivery.Outcome:
            outcome = await times._deliver(self, row)
            times.times[row.saga_id or ""] = time.perf_counter()
            times.changed.set()
            return outcome

        row_delivery.RowDelivery.deliver = deliver

    async def wait(self, count: int) -> None:
        while len(self.times) < count:
            self.changed.clear()
            await self.changed.wait()

    def close(self) -> None:
        row_delivery.RowDelivery.deliver = self._deliver


def libpq(project: Project) -> str:
    return project.settings.sql_connection("shop").url.replace("postgresql+psycopg:", "postgresql:")


async def row_latency(project: Project, count: int) -> list[float]:
    """Seconds from the commit of a row to the start of its saga, one row after the other."""
    times, stop, mark = StartTimes(), asyncio.Event(), uuid.uuid4().hex[:8]
    relay = asyncio.create_task(run_relay(project.settings, stop=stop))
    latencies = []
    async with await psycopg.AsyncConnection.connect(libpq(project)) as connection:
        for number in range(count + 5):
            saga_id = f"{mark}-{number}"
            await enqueue(connection, "order", order(number), id=saga_id)
            await connection.commit()
            committed = time.perf_counter()
            await times.wait(number + 1)
            latencies.append(times.times[saga_id] - committed)
            await asyncio.sleep(0.02 + 0.013 * (number % 4))
    stop.set()
    await relay
    times.close()
    return latencies[5:]


async def client_latency(project: Project, count: int) -> list[float]:
    latencies, mark = [], uuid.uuid4().hex[:8]
    async with await Client.connect(project) as client:
        for number in range(count + 5):
            begin = time.perf_counter()
            await client.start("order", order(number), id=f"{mark}-{number}")
            latencies.append(time.perf_counter() - begin)
            await asyncio.sleep(0.02)
    return latencies[5:]


async def row_rate(project: Project, count: int) -> float:
    """Sagas a second of a backlog, from the first that is started to the last."""
    mark = uuid.uuid4().hex[:8]
    async with await psycopg.AsyncConnection.connect(libpq(project)) as connection:
        for number in range(count):
            await enqueue(connection, "order", order(number), id=f"{mark}-{number}")
    times, stop = StartTimes(), asyncio.Event()
    relay = asyncio.create_task(run_relay(project.settings, stop=stop))
    await times.wait(count)
    stop.set()
    await relay
    times.close()
    return (count - 1) / (max(times.times.values()) - min(times.times.values()))


async def client_rate(project: Project, count: int, *, bulk: bool) -> float:
    inputs = [order(number) for number in range(count)]
    async with await Client.connect(project) as client:
        begin = time.perf_counter()
        await client.start_many("order", inputs, bulk=bulk)
        return count / (time.perf_counter() - begin)


def with_wait(project: Project, seconds: float) -> Project:
    enqueued = project.settings.enqueue.model_copy(update={"bulk_wait": seconds})
    return Project(project.settings.model_copy(update={"enqueue": enqueued}))


async def measure(folder: Path, rounds: int, count: int) -> None:
    project = Project(load_settings(folder))
    ours, theirs = await row_latency(project, 100), await client_latency(project, 100)
    print(LINE.format("", "client", "rows", "ratio"))
    shown = (f"{1000 * median(theirs):.1f} ms", f"{1000 * median(ours):.1f} ms", f"{median(ours) / median(theirs):.2f}")
    print(LINE.format("commit (of a client: request) to started, p50", *shown), flush=True)
    shown = (f"{1000 * sorted(theirs)[-6]:.1f} ms", f"{1000 * sorted(ours)[-6]:.1f} ms", "")
    print(LINE.format("the same, p95", *shown), flush=True)
    for name, bulk in (("a workflow for each", False), ("shared workflows", True)):
        waiting = with_wait(project, 0.25 if bulk else 0.0)
        our_rates: list[float] = []
        their_rates: list[float] = []
        for number in range(-1, rounds):  # the first warms up
            our_rate = await row_rate(waiting, count)
            their_rate = await client_rate(waiting, count, bulk=bulk)
            if number >= 0:
                our_rates.append(our_rate)
                their_rates.append(their_rate)
        shown = (f"{median(their_rates):.0f}", f"{median(our_rates):.0f}", f"{ratio(our_rates, their_rates):.2f}")
        print(LINE.format(f"{count} sagas, {name}: started/s", *shown), flush=True)


def write_project(folder: Path) -> None:
    (folder / "saga.toml").write_text(SETTINGS)
    (folder / "definitions").mkdir()
    (folder / "definitions/order.saga.yaml").write_text(DEFINITION)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sagas", type=int, default=3_000)
    parser.add_argument("--quick", action="store_true", help="one short round, to check that it works")
    options = parser.parse_args()
    rounds, sagas = (1, 200) if options.quick else (options.rounds, options.sagas)
    # The relay is one of this process.
    with bench_stack(write_project, ("temporal", "postgres", "worker")) as (folder, _):
        asyncio.run(measure(folder, rounds, sagas))


if __name__ == "__main__":
    main()
