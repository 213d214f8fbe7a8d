"""How long sagas stand still when their worker is killed: `python -m benchmarks.recovery [--rounds N] [--quick]`.

Eight sagas run at a time, so that some are always in the middle. The worker of `saga dev up` is killed with SIGKILL and
started again at once. Measured from the kill: until the worker says that it is ready, until the first effect of any
saga, and until the first effect of each saga that was in the middle. An effect is a row that a guarded step writes.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil
import psycopg

from benchmarks.support.bench_stack import bench_stack
from saga_workers.client import Client
from saga_workers.devstack.stack import Stack
from sagas.project import Project
from sagas.settings import load_settings

LINE = "{:<44} {:>8} {:>8} {:>8}"
CROWD = 8
STEPS = 20
SETTINGS = """
definitions = ["definitions"]
actions = ["./participants.py"]
[connections.bench]
schema = "schema.sql"
"""
TABLE = """
create table if not exists effect (saga text, at double precision default extract(epoch from clock_timestamp()));
"""
ACTION = '''
from sagas import Step, action


@action("bench.write", connection="bench", rejects=False)
async def write(step: Step) -> None:
    """Leave a row."""
    await step.sql.execute("insert into effect (saga) values (:saga)", saga=step.saga_id)
'''
KINDS = ("remote", "local")
"""How the steps are executed."""

EFFECTS = "select saga, min(at) from effect where at > %s group by saga"


@dataclass
class RecoveryFigures:
    """Seconds from the kill: one for each round, and in ``stopped`` one for each saga that was in the middle."""

    ready: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    stopped: list[float] = field(default_factory=list)


def make_project(folder: Path) -> None:
    (folder / "definitions").mkdir()
    (folder / "saga.toml").write_text(SETTINGS)
    (folder / "schema.sql").write_text(TABLE)
    (folder / "participants.py").write_text(ACTION)
    for kind in KINDS:
        steps = "".join(
            f"  - {{id: s{number}, uses: bench.write, compensate: bench.write}}\n" for number in range(STEPS)
        )
        text = f"saga: {kind}\ndefaults: {{timeout: 5s, execution: {kind}}}\nsteps:\n{steps}"
        (folder / "definitions" / f"{kind}.saga.yaml").write_text(text)


async def one_round(folder: Path, kind: str, figures: RecoveryFigures) -> None:
    project = Project(load_settings(folder))
    client = await Client.connect(project)
    url = project.settings.connection("bench").url.replace("+psycopg", "")
    current: dict[int, str] = {}
    stop = asyncio.Event()

    async def sagas(place: int) -> None:
        while not stop.is_set():
            run = await client.start(kind, {}, id=f"{kind}-{uuid.uuid4()}")
            current[place] = run.id
            await run.result()

    async with asyncio.TaskGroup() as crowd, await psycopg.AsyncConnection.connect(url, autocommit=True) as database:
        for place in range(CROWD):
            crowd.create_task(sagas(place))
        await asyncio.sleep(random.uniform(2.0, 4.0))  # the kill comes at any moment
        worker = psutil.Process(Stack(project.settings, print).status()["worker"]["pid"])
        worker.kill()
        killed, in_the_middle = time.time(), set(current.values())
        await asyncio.to_thread(worker.wait)
        await asyncio.to_thread(Stack(project.settings, lambda _: None).up, ("worker",))
        figures.ready.append(time.time() - killed)
        stop.set()
        for saga_id in in_the_middle:
            await client.temporal.get_workflow_handle(saga_id).result()
        effects = dict(await (await database.execute(EFFECTS, (killed,))).fetchall())
    figures.first.append(min(effects.values()) - killed)
    figures.stopped += [effects[saga_id] - killed for saga_id in in_the_middle & effects.keys()]


async def measure(folder: Path, rounds: int) -> None:
    kinds = {kind: RecoveryFigures() for kind in KINDS}
    for number in range(rounds):
        for kind, figures in kinds.items():
            await one_round(folder, kind, figures)
            print(f"round {number + 1}, {kind}: first effect after {figures.first[-1]:.1f} s", file=sys.stderr)
    print(LINE.format(f"seconds from the kill, {rounds} rounds", "median", "least", "most"))
    for kind, figures in kinds.items():
        for what, values in (
            ("the worker is ready", figures.ready),
            ("first effect of any saga", figures.first),
            ("first effect of each saga in the middle", figures.stopped),
        ):
            print(LINE.format(f"{kind}: {what}", *(f"{of(values):.1f}" for of in (median, min, max))), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="one round, to check that it works")
    options = parser.parse_args()
    with bench_stack(make_project, ("temporal", "postgres", "worker")) as (folder, _):
        asyncio.run(measure(folder, 1 if options.quick else options.rounds))


if __name__ == "__main__":
    main()
