"""The price of signed calls: `python -m benchmarks.signing [--rounds N] [--count N] [--quick]`.

Two workers of one project on the same servers: one signs and verifies the calls to activities, in the other this is
switched off. Each round measures both, in turn. Compared is the CPU of the worker for each saga, because a difference
of one part in a hundred is less than the noise of the throughput.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.support.bench_stack import bench_stack
from benchmarks.support.definitions import definition
from benchmarks.support.measure import cpu_seconds
from saga_workers.client import Client
from saga_workers.start.start_requests import BulkRow
from sagas.project import Project
from sagas.settings import load_settings

HERE = Path(__file__).parent
QUEUES = ("signed", "unsigned")
ACCOUNTS = 10_000
"""More than the sagas of a round have, so that none of them waits for the row of another one."""
SETTINGS = """
definitions = ["."]
actions = ["./participants.py"]
[connections.bench]
schema = "schema.sql"
[ledger]
connection = "bench"
"""
TABLES = """
create table if not exists account (id text primary key, balance bigint not null);
insert into account select 'a' || n, 1000000000 from generate_series(0, 9999) n on conflict do nothing;
"""
PART = 500
"""Sagas of one bulk workflow."""

GOAL = 1.02


def make_project(folder: Path) -> None:
    (folder / "saga.toml").write_text(SETTINGS)
    (folder / "schema.sql").write_text(TABLES)
    shutil.copy(HERE / "participants.py", folder)
    for kind in ("guarded", "local"):
        (folder / f"{kind}-3.saga.yaml").write_text(definition(kind, 3))


def run_unsigned_worker() -> None:
    """`saga worker`, which signs neither its calls nor their answers, and asks for no signature of them."""
    from temporalio.worker import Interceptor

    from saga_cli.main import main as run_command
    from saga_workers.worker import plugin
    from saga_workers.worker.worker_trust import WorkerTrust

    def replace(owner: object, name: str, value: object) -> None:
        assert hasattr(owner, name), f"{owner} has no {name}: the worker would go on signing"
        setattr(owner, name, value)

    replace(plugin, "SignedActivitiesInterceptor", lambda *_, **__: Interceptor())
    replace(WorkerTrust, "trusts_answer", lambda *_: True)
    sys.argv = ["saga", "worker"]
    run_command()


@contextmanager
def worker(folder: Path, queue: str) -> Iterator[int]:
    """A worker of the project on a task queue of its own; yields its pid."""
    program = ["-m", "benchmarks.signing", "--unsigned-worker"] if queue == "unsigned" else ["-m", "saga_cli", "worker"]
    environment = {**os.environ, "SAGA_TEMPORAL__TASK_QUEUE": queue, "PYTHONPATH": str(HERE.parent)}
    with (folder / f"{queue}.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, *program], cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def project_of(folder: Path, queue: str) -> Project:
    settings = load_settings(folder)
    temporal = settings.temporal.model_copy(update={"task_queue": queue})
    return Project(settings.model_copy(update={"temporal": temporal}))


async def run_sagas(client: Client, saga: str, count: int, *, bulk: bool) -> None:
    inputs = [{"account": f"a{number % ACCOUNTS}", "amount": 1} for number in range(count)]
    if not bulk:
        handles = await client.start_many(saga, inputs)
        assert await asyncio.gather(*(handle.result() for handle in handles)) == [1] * count
        return
    starter = await client.starter(saga)
    rows = [BulkRow(starter.new_id(), starter.make_request(input)) for input in inputs]
    parts = [await starter.start_bulk(rows[at : at + PART]) for at in range(0, count, PART)]
    for part in parts:
        result = await part.result()
        assert (result["counts"].keys(), result["detached"]) == ({"COMPLETED"}, []), result


WAYS: Mapping[str, tuple[str, int, bool]] = {
    "single, three activities": ("guarded-3", 1, False),
    "single, three local activities": ("local-3", 1, False),
    "bulk": ("guarded-3", 10, True),
}
"""The saga, how many times as many sagas a round has, and if they share workflows."""


async def measure(folder: Path, pids: Mapping[str, int], rounds: int, count: int) -> bool:
    clients = {queue: await Client.connect(project_of(folder, queue)) for queue in QUEUES}
    line = "{:<32} {:>10} {:>10} {:>8} {:>16}"
    print(line.format("CPU of a worker for each saga", "signed ms", "not ms", "ratio", "of the rounds"))
    met = True
    for name, (saga, times, bulk) in WAYS.items():
        taken: dict[str, list[float]] = {queue: [] for queue in QUEUES}
        for number in range(rounds + 1):
            for queue in QUEUES if number % 2 else reversed(QUEUES):
                before = cpu_seconds(pids[queue])
                await run_sagas(clients[queue], saga, times * count, bulk=bulk)
                if number:  # the first round warms up
                    taken[queue].append(1000 * (cpu_seconds(pids[queue]) - before) / (times * count))
        ratios = sorted(with_ / without for with_, without in zip(*taken.values(), strict=True))
        ratio = sum(taken["signed"]) / sum(taken["unsigned"])
        met &= ratio < GOAL
        figures = [f"{statistics.median(taken[queue]):.2f}" for queue in QUEUES]
        print(line.format(name, *figures, f"{ratio:.3f}", f"{ratios[0]:.3f} to {ratios[-1]:.3f}"), flush=True)
    for client in clients.values():
        await client.close()
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=200, help="sagas of a round; ten times as many in bulk")
    parser.add_argument("--quick", action="store_true", help="one short round, to check that it works")
    parser.add_argument("--unsigned-worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.unsigned_worker:
        run_unsigned_worker()
        return
    rounds, count = (1, 20) if options.quick else (options.rounds, options.count)
    with bench_stack(make_project, ("temporal", "postgres")) as (folder, _), ExitStack() as running:
        pids = {queue: running.enter_context(worker(folder, queue)) for queue in QUEUES}
        met = asyncio.run(measure(folder, pids, rounds, count))
    print("\nthe goal is met" if met else "\nthe goal is missed")


if __name__ == "__main__":
    main()
