"""Sagas by hand and by this engine on the same servers: `python -m benchmarks.sagas [--rounds N] [--quick]`.

Every round measures the hand-written workflow and this engine one after the other, in turn, so that a noisy
neighbour hits both. The report gives ratios; absolute figures belong to the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
from temporalio.client import Client as Temporal

from benchmarks.support.bench_stack import bench_stack
from benchmarks.support.definitions import KINDS, definition
from benchmarks.support.handwritten import HandwrittenInput
from benchmarks.support.measure import Figures, crowd, latencies
from benchmarks.support.report import print_growth, print_pair
from saga_workers.client import Client
from saga_workers.devstack.stack import Stack
from sagas.project import Project
from sagas.settings import load_settings

HERE = Path(__file__).parent
LENGTHS = (3, 30, 300)
ACCOUNTS = 1000
SETTINGS = """
definitions = ["definitions"]
actions = ["./participants.py"]
[connections.bench]
schema = "schema.sql"
"""
TABLES = """
create table if not exists account (id text primary key, balance bigint not null);
create table if not exists hand_barrier (key text, op text, result text, primary key (key, op));
insert into account select 'a' || n, 1000000 from generate_series(0, 999) n on conflict do nothing;
"""


def make_project(folder: Path) -> None:
    (folder / "definitions").mkdir()
    (folder / "saga.toml").write_text(SETTINGS)
    (folder / "schema.sql").write_text(TABLES)
    shutil.copy(HERE / "participants.py", folder)
    for kind in KINDS:
        for steps in LENGTHS if kind == "noop" else (3,):
            (folder / "definitions" / f"{kind}-{steps}.saga.yaml").write_text(definition(kind, steps))


async def measure(folder: Path, rounds: int, count: int) -> None:
    project = Project(load_settings(folder))
    status = Stack(project.settings, print).status()
    client = await Client.connect(project)
    worker, server = status["worker"]["pid"], status["temporal"]["pid"]
    queue = f"hand-{uuid.uuid4()}"
    url = project.settings.connection("bench").url.replace("+psycopg", "")
    hand = start_by_hand(str(project.settings.temporal.address), queue, url)
    try:
        for kind in KINDS:
            ours, theirs = Figures(), Figures()
            pair = (
                (theirs, by_hand(client.temporal, queue, kind, 3), hand.pid),
                (ours, by_engine(client, kind, 3), worker),
            )
            for _, run, _pid in pair:
                await latencies(Figures(), run, 10)
            for number in range(rounds):
                for figures, run, pid in pair if number % 2 else reversed(pair):
                    await latencies(figures, run, max(count // 10, 10))
                    await crowd(figures, run, count, 50, pid, server)
            for figures, run, _pid in pair:
                figures.events.append(await events_of(client.temporal, await run(0)))
            print_pair(kind, theirs, ours)
        await growth(client, queue, hand.pid, worker, server, rounds)
        check_balance(url)
    finally:
        hand.terminate()
        hand.wait()


def start_by_hand(address: str, queue: str, url: str) -> subprocess.Popen[bytes]:
    """The worker of the hand-written workflow, ready to serve."""
    argv = [sys.executable, "-m", "benchmarks.support.handwritten", address, queue, url]
    worker = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=HERE.parent)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"ready\n"
    return worker


async def growth(client: Client, queue: str, hand: int, worker: int, server: int, rounds: int) -> None:
    """The cost of each step, from 3 to 300 steps."""
    rows = []
    for steps in LENGTHS:
        ours, theirs = Figures(), Figures()
        for _ in range(rounds):
            for figures, run, pid in (
                (theirs, by_hand(client.temporal, queue, "noop", steps), hand),
                (ours, by_engine(client, "noop", steps), worker),
            ):
                await latencies(figures, run, max(1, 30 // steps))
                await crowd(figures, run, max(4, 120 // steps), 4, pid, server)
        rows.append((steps, theirs, ours))
    print_growth(rows)


def by_hand(
    temporal: Temporal, queue: str, kind: str, steps: int, workflow: str = "handwritten"
) -> Callable[[int], Awaitable[str]]:
    """``workflow``: the type of the hand-written workflow."""

    async def run(number: int) -> str:
        order = HandwrittenInput(f"a{number % ACCOUNTS}", 1, steps, kind)
        id = f"hand-{uuid.uuid4()}"
        result: Any = await temporal.execute_workflow(workflow, order, id=id, task_queue=queue)
        assert result == steps
        return id

    return run


def by_engine(client: Client, kind: str, steps: int) -> Callable[[int], Awaitable[str]]:
    async def run(number: int) -> str:
        started = await client.start(f"{kind}-{steps}", {"account": f"a{number % ACCOUNTS}", "amount": 1})
        assert await started.result() == 1
        return started.id

    return run


async def events_of(temporal: Temporal, id: str) -> int:
    history = await temporal.get_workflow_handle(id).fetch_history()
    return len(history.events)


def check_balance(url: str) -> None:
    """Both ways took as much as their barrier rows say: the fast way is also the right one."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "select (select sum(1000000 - balance) from account),"
            " (select count(*) from hand_barrier) + (select count(*) from saga_guard where op = 'do')"
        ).fetchone()
    assert row is not None
    assert row[0] == row[1], row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="one short round, to check that it works")
    options = parser.parse_args()
    rounds, count = (1, 30) if options.quick else (options.rounds, options.count)
    with bench_stack(make_project) as (folder, _):
        print(f"{rounds} rounds of {count} sagas, SQLite file")
        asyncio.run(measure(folder, rounds, count))


if __name__ == "__main__":
    main()
