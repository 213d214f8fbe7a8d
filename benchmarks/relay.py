"""The relay and a bare transactional producer: `python -m benchmarks.relay [--rounds N] [--batch N] [--quick]`.

Both write the same events, as many in a transaction, to topics of the same form on the same broker, round by round in
turn. The producer has them in memory; the relay reads them from the outbox, and records its progress. Next to the
rates: the CPU time of each event in publisher, PostgreSQL and broker, which other work on the machine disturbs less;
what an idle relay uses; and how long a committed event takes to reach a read_committed consumer, one event at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from psycopg import sql

from benchmarks.support.bench_stack import bench_stack
from benchmarks.support.measure import ratio
from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.config import consumer_config, producer_config
from saga_activities.kafka.record_codec import EncodedRecord
from saga_activities.messaging.outbox import event_row
from saga_workers.relay.outbox import RelayMetrics
from saga_workers.relay.outbox_table import EventRow
from saga_workers.relay.publisher import encode_event
from saga_workers.relay.relay_process import run_relay
from saga_workers.runtime.databases import set_up_database
from sagas.actions.events import Event
from sagas.settings import Settings, load_settings

LINE = "{:<44} {:>12} {:>12} {:>9}"
SETTINGS = """
[connections.bench]
[kafka]
batch = {batch}
"""
COLUMNS = (
    *("event_id", "topic", "event_key", "value", "headers", "saga_id", "step", "generation", "status", "created_at"),
    *("event_type", "shard"),
)
COPY = sql.SQL("copy saga_outbox_row ({}) from stdin").format(sql.SQL(", ").join(map(sql.Identifier, COLUMNS)))


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds of CPU of the three that work on an event: this process, PostgreSQL, and the broker."""

    publisher: float
    postgres: float
    broker: float

    @classmethod
    def now(cls, postgres: int, broker: int) -> CpuTimes:
        """The time used so far; the arguments are process ids."""
        return cls(time.process_time(), _with_children(postgres), _with_children(broker))

    def since(self, start: CpuTimes, events: float = 1) -> CpuTimes:
        """The time since ``start``, divided by a number of events (or of seconds)."""
        return CpuTimes(
            (self.publisher - start.publisher) / events,
            (self.postgres - start.postgres) / events,
            (self.broker - start.broker) / events,
        )


def _with_children(pid: int) -> float:
    """A process and its descendants, also those that have ended: each connection of PostgreSQL is a process."""
    root, used = psutil.Process(pid), 0.0
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used += times.user + times.system + times.children_user + times.children_system
    return used


@dataclass(frozen=True, slots=True)
class RelayFigures:
    """Events a second, and the CPU of each event."""

    rate: float
    cpu: CpuTimes


class RelayBench:
    """One outbox, and topics on one broker. ``shards`` is how many producers the relay has.

    ``servers`` are the process ids of PostgreSQL and of the broker.
    """

    def __init__(self, settings: Settings, shards: int, servers: tuple[int, int]) -> None:
        self.servers, self.shards = servers, shards
        self.kafka = settings.kafka.model_copy(update={"prefix": f"bench{uuid.uuid4().hex[:6]}"})
        self.settings = settings.model_copy(update={"kafka": self.kafka})
        self.url = settings.connection("bench").url.replace("+psycopg", "")
        with self.connect() as connection:
            connection.execute("truncate saga_outbox_row, saga_relay_lease")
            connection.execute("update saga_outbox_home set shards = %s, home = %s", (shards, str(uuid.uuid4())))

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, autocommit=True)

    def topic(self) -> str:
        name = f"bench-{uuid.uuid4().hex[:8]}"
        KafkaAdmin(self.kafka).ensure_topic(name, 1)
        return name

    def emit(self, topic: str, count: int, start: int = 0) -> None:
        """Commit ``count`` events in one transaction."""
        with self.connect() as connection:
            self.insert(connection, topic, range(start, start + count))

    def insert(self, connection: psycopg.Connection[Any], topic: str, numbers: Sequence[int]) -> None:
        """Write events with COPY: thousands in a second, so that the relay is most of what is measured."""
        with connection.cursor() as cursor, cursor.copy(COPY) as copy:
            for number in numbers:
                row = event_row(Event(topic, f"customer-{number % 997}", order(number)))
                shard = row.pop("hash") % self.shards
                row |= {"saga_id": "bench", "step": "pay", "generation": 1, "created_at": time.time(), "shard": shard}
                copy.write_row([row[name] for name in COLUMNS])

    async def relay(self, topic: str, count: int) -> RelayFigures:
        """The rate is taken from the first batch that is committed to the last; the CPU contains the relay's start."""
        self.emit(topic, count)
        start = CpuTimes.now(*self.servers)
        with _committed_batches() as batches:
            await run_relay(self.settings, connection="bench", once=True, stop=asyncio.Event())
        cpu = CpuTimes.now(*self.servers).since(start, count)
        assert sum(events for _, events in batches) == count, batches
        first, last = batches[0], batches[-1]
        return RelayFigures((count - first[1]) / (last[0] - first[0]), cpu)

    def producer(self, topic: str, count: int) -> RelayFigures:
        """Publish as a producer that has the records in memory: the rate and the CPU, as ``relay`` measures them."""
        producer = Producer(producer_config(self.kafka, transactional_id=f"{self.kafka.prefix}-bare"))
        producer.init_transactions(30)
        records = [encode_event(_row(topic, n), "/bench") for n in range(count)]
        ends: list[float] = []
        batch = self.kafka.batch
        start = CpuTimes.now(*self.servers)
        for at in range(0, count, batch):
            _transaction(producer, topic, records[at : at + batch])
            ends.append(time.perf_counter())
        cpu = CpuTimes.now(*self.servers).since(start, count)
        return RelayFigures((count - batch) / (ends[-1] - ends[0]), cpu)

    async def idle(self, seconds: float) -> CpuTimes:
        """The parts of a core that a relay without events uses."""
        stop = asyncio.Event()
        running = asyncio.create_task(run_relay(self.settings, connection="bench", stop=stop))
        await asyncio.sleep(3)
        start = CpuTimes.now(*self.servers)
        await asyncio.sleep(seconds)
        used = CpuTimes.now(*self.servers).since(start, seconds)
        stop.set()
        await running
        return used

    async def latencies(self, count: int) -> list[float]:
        """Seconds from COMMIT to the consumer, one event at a time, on an idle relay."""
        topic, stop = self.topic(), asyncio.Event()
        running = asyncio.create_task(run_relay(self.settings, connection="bench", stop=stop))
        try:
            return await asyncio.to_thread(self._see, topic, count)
        finally:
            stop.set()
            await running

    def _see(self, topic: str, count: int) -> list[float]:
        consumer = Consumer(consumer_config(self.kafka, f"bench-{topic}") | {"fetch.wait.max.ms": 10})
        consumer.assign([TopicPartition(topic, 0, 0)])
        took: list[float] = []
        with self.connect() as connection:
            for number in range(count + 5):
                self.insert(connection, topic, [number])
                began = time.perf_counter()
                while (message := consumer.poll(0.005)) is None or message.error() is not None:
                    assert time.perf_counter() - began < 60
                took.append(time.perf_counter() - began)
                time.sleep(0.02)
        consumer.close()
        return sorted(took[5:])


@contextmanager
def _committed_batches() -> Iterator[list[tuple[float, int]]]:
    """When a batch of this process was committed in Kafka, and its events; complete at the end of the block."""
    batches: list[tuple[float, int]] = []
    count = RelayMetrics.published

    def published(self: RelayMetrics, connection: str, events: int) -> None:
        batches.append((time.perf_counter(), events))
        count(self, connection, events)

    RelayMetrics.published = published
    try:
        yield batches
    finally:
        RelayMetrics.published = count


def order(number: int) -> dict[str, Any]:
    """An event of about 200 bytes, as a shop would send it."""
    lines = [{"sku": f"sku-{number % 4000:06d}", "quantity": 1 + number % 3, "price": "12.50"}] * 2
    return {"order": number, "customer": f"customer-{number % 997}", "lines": lines, "total": "50.00"}


def _row(topic: str, number: int) -> EventRow:
    row = event_row(Event(topic, f"customer-{number % 997}", order(number)))
    event_id, key, value, headers = (row[name] for name in ("event_id", "event_key", "value", "headers"))
    return EventRow(number, event_id, topic, key, value, headers, "bench", "pay", 1, time.time(), None)


def _transaction(producer: Producer, topic: str, records: Sequence[EncodedRecord]) -> None:
    producer.begin_transaction()
    for record in records:
        headers: Any = list(record.headers)
        producer.produce(topic, record.value, record.key, headers=headers)
    producer.commit_transaction(60)


async def measure(settings: Settings, rounds: int, events: int, servers: tuple[int, int]) -> None:
    print(LINE.format(f"{events} events, {settings.kafka.batch} in a transaction", "bare", "relay", "ratio"))
    for shards in (1, settings.kafka.shards):
        bench = RelayBench(settings, shards, servers)
        ours: list[RelayFigures] = []
        theirs: list[RelayFigures] = []
        for number in range(-1, rounds):  # the first warms up
            publication = await bench.relay(bench.topic(), events)
            bare_publication = await asyncio.to_thread(bench.producer, bench.topic(), events)
            if number >= 0:
                ours.append(publication)
                theirs.append(bare_publication)
        rates, bare = [publication.rate for publication in ours], [publication.rate for publication in theirs]
        what = f"events/s, {shards} shard{'s' if shards > 1 else ''}, one producer alongside"
        print(LINE.format(what, f"{median(bare):.0f}", f"{median(rates):.0f}", f"{ratio(rates, bare):.2f}"))
        for name in ("publisher", "postgres", "broker"):
            used, needed = (
                1e6 * median(getattr(publication.cpu, name) for publication in publications)
                for publications in (ours, theirs)
            )
            print(LINE.format(f"  µs of CPU for each event: {name}", f"{needed:.1f}", f"{used:.1f}", ""), flush=True)
    bench = RelayBench(settings, settings.kafka.shards, servers)
    idle = await bench.idle(2 if rounds < 2 else 20)
    print(f"idle: {100 * idle.publisher:.1f} % of a core, PostgreSQL {100 * idle.postgres:.1f} %", flush=True)
    took = await bench.latencies(20 if rounds < 2 else 200)
    p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
    print(f"commit → visible, idle: p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=30_000)
    parser.add_argument("--batch", type=int, default=500, help="events in a transaction")
    parser.add_argument("--quick", action="store_true", help="one short round, to check that it works")
    options = parser.parse_args()
    gc.set_threshold(100_000)  # as the commands do
    rounds, events = (1, 2_000) if options.quick else (options.rounds, options.events)

    def write_project(folder: Path) -> None:
        (folder / "saga.toml").write_text(SETTINGS.format(batch=options.batch))

    with bench_stack(write_project, ("postgres", "kafka")) as (folder, stack):  # without the stack's own relay
        settings = load_settings(folder)
        asyncio.run(set_up_database(settings.sql_connection("bench")))
        services = stack.status()
        asyncio.run(measure(settings, rounds, events, (services["postgres"]["pid"], services["kafka"]["pid"])))


if __name__ == "__main__":
    main()
