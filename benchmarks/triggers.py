"""Sagas started by events and by a client: `python -m benchmarks.triggers [--rounds N] [--events N] [--quick]`.

Both start the same saga with the same inputs on the same server, as many at once, round by round in turn: `saga
trigger` from the events of a topic, its offsets committed behind them, the Python client from a list in memory. The
sagas wait for a signal and no worker runs, so what is measured is starting them, and nothing that they do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Producer

from benchmarks.support.bench_stack import bench_stack
from benchmarks.support.measure import ratio
from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.config import producer_config
from saga_workers.client import Client
from saga_workers.runtime.shutdown import run_tasks
from saga_workers.temporal.temporal_client import connect
from saga_workers.trigger.trigger_process import MAX_CONCURRENT_STARTS, TriggerTasks, make_plan
from sagas.project import Project
from sagas.settings import load_settings

LINE = "{:<44} {:>12} {:>12} {:>9}"
PARTITIONS = 4
DEFINITION = """
saga: order
triggers: {{kafka: {{topic: {topic}, id: "order-${{{{ trigger.value.order }}}}"}}}}
input: {{type: object, required: [order], properties: {{order: {{type: string}}, customer: {{type: string}}}}}}
steps:
  - {{id: paid, uses: wait, with: {{signal: paid}}}}
"""


def order(mark: str, number: int) -> dict[str, Any]:
    lines = [{"sku": f"sku-{number % 4000:06d}", "quantity": 1 + number % 3, "price": "12.50"}] * 2
    return {"order": f"{mark}-{number}", "customer": f"customer-{number % 997}", "lines": lines, "total": "50.00"}


def project_of(folder: Path) -> Project:
    """A project with a topic, a prefix and a task queue of its own: each round begins with nothing."""
    mark = uuid.uuid4().hex[:8]
    settings = load_settings(folder)
    place = folder / mark
    place.mkdir()
    (place / "order.saga.yaml").write_text(DEFINITION.format(topic=f"orders-{mark}"))
    return Project(
        settings.model_copy(
            update={
                "definition_folders": (place,),
                "kafka": settings.kafka.model_copy(update={"prefix": f"bench-{mark}"}),
                "temporal": settings.temporal.model_copy(update={"task_queue": f"bench-{mark}"}),
            }
        )
    )


async def by_events(folder: Path, count: int) -> float:
    """Sagas a second, from the first that was started to the last."""
    project, mark = project_of(folder), uuid.uuid4().hex[:8]
    topic = project.definitions["order"].triggers[0].topic
    await asyncio.to_thread(_produce, project, topic, mark, count)
    stop, ends = asyncio.Event(), []
    async with AsyncExitStack() as stack:
        parts = TriggerTasks(project, Client(await connect(project.settings), project), stop, stack)
        counted = parts.metrics.started

        def started(saga: str, topic: str) -> None:
            counted(saga, topic)
            ends.append(time.perf_counter())
            if len(ends) == count:
                stop.set()

        parts.metrics.started = started
        await run_tasks(parts.make_tasks(make_plan(project), 30.0), stop)
    assert len(ends) == count
    return (count - 1) / (ends[-1] - ends[0])


def _produce(project: Project, topic: str, mark: str, count: int) -> None:
    KafkaAdmin(project.settings.kafka).ensure_topic(topic, PARTITIONS)
    producer = Producer(producer_config(project.settings.kafka))
    for number in range(count):
        producer.produce(topic, json.dumps(order(mark, number)).encode(), f"customer-{number % 997}")
        producer.poll(0)
    assert producer.flush(60) == 0


async def by_client(folder: Path, count: int) -> float:
    """Sagas a second, started by a program that has the inputs in memory, with as many requests at once."""
    project, mark = project_of(folder), uuid.uuid4().hex[:8]
    client = Client(await connect(project.settings), project)
    await client.starter("order")
    gate, ends = asyncio.Semaphore(MAX_CONCURRENT_STARTS), []

    async def start(number: int) -> None:
        async with gate:
            value = order(mark, number)
            await client.start("order", value, id=f"order-{value['order']}")
            ends.append(time.perf_counter())

    await asyncio.gather(*(start(number) for number in range(count)))
    return (count - 1) / (ends[-1] - ends[0])


async def measure(folder: Path, rounds: int, count: int) -> None:
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(-1, rounds):  # the first warms up
        pair = [(ours, by_events), (theirs, by_client)]
        for rates, run in pair if number % 2 else reversed(pair):
            rate = await run(folder, count)
            if number >= 0:
                rates.append(rate)
    print(LINE.format(f"{count} sagas, {MAX_CONCURRENT_STARTS} at once", "client", "events", "ratio"))
    print(
        LINE.format("sagas started/s", f"{median(theirs):.0f}", f"{median(ours):.0f}", f"{ratio(ours, theirs):.2f}"),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=3_000)
    parser.add_argument("--quick", action="store_true", help="one short round, to check that it works")
    options = parser.parse_args()
    rounds, events = (1, 200) if options.quick else (options.rounds, options.events)
    # Without the stack's own trigger, relay and worker.
    with bench_stack(lambda folder: (folder / "saga.toml").write_text("[kafka]\n"), ("temporal", "kafka")) as (
        folder,
        _,
    ):
        asyncio.run(measure(folder, rounds, events))


if __name__ == "__main__":
    main()
