"""Records that end their process: each becomes a dead letter, and the other readers go on."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from temporalio.client import Client as TemporalClient

from saga_activities.kafka.admin import KafkaAdmin
from saga_workers.trigger.delivery import DeliveryMark
from sagas import Message, bridge, consumer
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.processes import TemporalServer, TriggerProcess
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import (
    Shop,
    count,
    fresh,
    fully_consumed,
    open_shop,
    produce_keyed,
    project_of,
    triggering,
    write_project,
)

MODULE = """
from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

from sagas import Message, bridge, consumer

INSERT = "insert into effect (what, number) values (:what, :number)"


def attempt(what: str) -> None:
    with Path("attempts").open("a") as file:
        file.write(what + "\\n")


@consumer("{poison}", connection="shop", max_attempts={max_attempts}, timeout=1.5)
async def poisoned(message: Message) -> None:
    if message.key == "poison":
        attempt("poisoned")
        {end}
    await message.sql.execute(INSERT, what="poisoned", number=message.value)


@consumer("{healthy}", connection="shop", timeout=1.5)
async def healthy(message: Message) -> None:
    await message.sql.execute(INSERT, what="healthy", number=message.value)


@bridge("{source}", to="{target}", max_attempts={max_attempts})
def copy(message: Message) -> object:
    if message.key == "poison":
        attempt("copy")
        os.kill(os.getpid(), 9)
    return message.value
"""

DEFINITION = """
saga: note-{prefix}
triggers:
  kafka: {{topic: {started}, input: {{}}, id: "note-{prefix}-${{{{ trigger.value }}}}"}}
steps:
  - {{id: there, uses: wait, with: {{signal: never}}}}
"""


class PoisonedProject:
    """A project with two consumers, a bridge and a trigger, each of a topic of its own."""

    def __init__(self, folder: Path, kafka: Broker, shop: Shop, temporal: str, *, end: str, max_attempts: int) -> None:
        self.kafka, self.shop, self.temporal, self.prefix = kafka, shop, temporal, fresh("p")
        self.topics = {name: kafka.create_topic() for name in ("poison", "healthy", "source", "target", "started")}
        module = MODULE.format(**self.topics, end=end, max_attempts=max_attempts)
        self.folder = write_project(
            folder, kafka, temporal=temporal, database=shop.url, prefix=self.prefix, module=module
        )
        settings = self.folder / "saga.toml"  # a process that was killed is missed sooner
        settings.write_text(settings.read_text().replace('"6000"', '"2000"').replace('"1000"', '"400"'))
        definition = DEFINITION.format(prefix=self.prefix, **self.topics)
        (self.folder / "note.saga.yaml").write_text(definition, encoding="utf-8")
        self.groups = {
            "poison": f"{self.prefix}-consumer-poisoned",
            "healthy": f"{self.prefix}-consumer-healthy",
            "source": f"{self.prefix}-bridge-copy",
            "started": f"{self.prefix}-trigger-note-{self.prefix}-{self.topics['started']}",
        }

    def consumed(self, *names: str) -> bool:
        return all(fully_consumed(self.kafka, self.groups[name], self.topics[name]) for name in names)

    async def started(self, total: int) -> list[str]:
        """The ids of the sagas, as soon as there are ``total``."""
        client = await TemporalClient.connect(self.temporal)

        async def ids() -> list[str]:
            sagas = [run.id async for run in client.list_workflows(f"WorkflowType = 'note-{self.prefix}'")]
            return sorted(sagas) if len(sagas) >= total else []

        return await until_in_thread(ids)

    def attempts(self) -> Counter[str]:
        file = self.folder / "attempts"
        return Counter(file.read_text().split() if file.exists() else ())

    async def supervise(
        self, process: TriggerProcess, *names: str, runs: int = 12, ended: Callable[[], None] = lambda: None
    ) -> int:
        """Start the process again whenever it has ended, until these topics are consumed; returns how often it was.

        ``ended`` is called before each new start.
        """
        process.launch()
        for ends in range(runs):
            while process.running:
                if await asyncio.to_thread(self.consumed, *names):
                    return ends
                await asyncio.sleep(0.3)
            ended()
            process.launch()
        raise AssertionError(f"not consumed after {runs} runs:\n{process.tail(100)}")


@pytest.mark.parametrize(
    ("poisoned", "max_attempts"), [(("poison",), 2), pytest.param(("poison", "source"), 5, marks=pytest.mark.slow)]
)
async def test_a_record_that_ends_its_process_becomes_a_dead_letter(
    kafka: Broker,
    postgres_server: DatabaseServer,
    temporal: TemporalServer,
    tmp_path: Path,
    poisoned: Sequence[str],
    max_attempts: int,
) -> None:
    """One of a consumer; or also one of a bridge in the same process."""
    shop = await open_shop(postgres_server)
    project = PoisonedProject(
        tmp_path / "project", kafka, shop, temporal.address, end="os.kill(os.getpid(), 9)", max_attempts=max_attempts
    )
    topics = project.topics
    for name in ("poison", "source"):
        keys = ["poison" if number == 5 and name in poisoned else f"k{number % 3}" for number in range(12)]
        produce_keyed(kafka, topics[name], list(zip(keys, range(12), strict=True)))
    kafka.produce(topics["healthy"], *range(300))
    kafka.produce(topics["started"], *range(3))
    handled: list[int] = []

    def look() -> None:
        """Note what the healthy consumer has done so far, and give it more to do."""
        handled.append(sum(what == "healthy" for what, _ in shop.effects()))
        kafka.produce(topics["healthy"], *range(300 + 10 * (len(handled) - 1), 300 + 10 * len(handled)))

    process = TriggerProcess("trigger", project.folder)
    try:
        ends = await project.supervise(process, "poison", "healthy", "source", "started", runs=16, ended=look)
        assert process.stop() == 0
    finally:
        process.kill()
    log = process.log.read_text()
    # The first end is not counted: it may have had another cause than this record.
    assert len(poisoned) * max_attempts < ends <= len(poisoned) * (max_attempts + 1), log
    assert project.attempts().total() == ends
    if max_attempts > 2:  # before its second attempt alone no record is more suspected than another
        assert handled[0] < handled[-1], "others go on before the last end"
    assert Counter(number for what, number in shop.effects() if what == "healthy") == Counter(range(300 + 10 * ends))
    assert sorted(number for what, number in shop.effects() if what == "poisoned") == [*range(5), *range(6, 12)]
    assert await project.started(3) == [f"note-{project.prefix}-{number}" for number in range(3)]
    copied = [record.json() for record in kafka.read_committed(topics["target"])]
    assert copied == [number for number in range(12) if number != 5 or "source" not in poisoned]
    for name in poisoned:
        [dead] = kafka.read_committed(f"{topics[name]}.dlq")
        assert (dead.json(), dead.headers["sagadlqreason"]) == (5, f"it ended its process {max_attempts} times")
    assert f"record={topics['poison']}/0/5" in log


NOWHERE = "127.0.0.1:1"


def commit_mark(kafka: Broker, group: str, topic: str, offset: int, mark: DeliveryMark) -> None:
    """Leave the offset and the mark that a process leaves when it is killed."""
    client = Consumer({"bootstrap.servers": kafka.address, "group.id": group, "enable.auto.commit": False})
    client.commit(offsets=[TopicPartition(topic, 0, offset, metadata=str(mark))], asynchronous=False)
    client.close()


def committed_mark(kafka: Broker, group: str, topic: str) -> DeliveryMark:
    client = Consumer({"bootstrap.servers": kafka.address, "group.id": group, "enable.auto.commit": False})
    try:
        [position] = client.committed([TopicPartition(topic, 0)], 30)
        return DeliveryMark.parse(position.metadata)
    finally:
        client.close()


@pytest.mark.slow
async def test_attempts_of_other_processes_count(
    kafka: Broker, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    """The handler runs as often as attempts are left, and alone; a process that is stopped leaves no mark."""
    shop, topic, other = await open_shop(postgres_server), kafka.create_topic(), kafka.create_topic()
    settings = kafka.settings()
    calls: list[tuple[int, int]] = []

    @consumer(topic, connection="shop", name="note", max_attempts=3)
    async def note(message: Message) -> None:
        calls.append((message.value, message.attempt))
        if message.value in (0, 1):
            raise ValueError("bad")

    @consumer(other, connection="shop", name="other")
    async def neighbour(message: Message) -> None:
        await message.sql.execute("insert into effect (what, number) values ('other', :number)", number=message.value)

    project = project_of(tmp_path, settings, NOWHERE, readers=[note, neighbour], connections={"shop": shop.url})
    kafka.produce(topic, *range(100), key="k")
    kafka.produce(other, *range(50))
    group, topic_id = f"{settings.prefix}-consumer-note", KafkaAdmin(settings).topic_id(topic)
    commit_mark(kafka, group, topic, 0, DeliveryMark(topic_id, "another", 64, 0, 2))
    async with triggering(project) as metrics:
        await until_in_thread(lambda: count(metrics, "saga_trigger_ended_attempts") == 2)
        assert committed_mark(kafka, group, topic).reader not in ("", "another")
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
        await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-consumer-other", other))
        assert count(metrics, "saga_trigger_ended_attempts") == 0
    assert calls == [(0, 3), (1, 1), (1, 2), (1, 3), *((number, 1) for number in range(2, 100))]
    assert len(shop.effects()) == 50
    assert committed_mark(kafka, group, topic) == DeliveryMark(topic_id)
    # The effect of the first of these was committed before its process ended.
    for number, offset in enumerate((40, 100)):
        if offset == 100:
            kafka.produce(topic, 100, key="k")
        commit_mark(kafka, group, topic, offset, DeliveryMark(topic_id, "another", 64, offset, 3))
        async with triggering(project):
            await until_in_thread(lambda: fully_consumed(kafka, group, topic))
        dead = [record.headers["sagadlqreason"] for record in kafka.read_committed(f"{topic}.dlq")]
        assert dead == ["ValueError: bad"] * 2 + ["it ended its process 3 times"] * number
    assert len(calls) == 102, "the handler was called for a record that had ended three processes"


BLOCKING = {
    "in Python": "time.sleep(600)",
    "with the interpreter lock": 're.match("(a+)+$", "a" * 60 + "b")',
    "without an end": "await asyncio.sleep(0)\n        while True: pass",
}


@pytest.mark.slow
@pytest.mark.parametrize("end", BLOCKING.values(), ids=BLOCKING.keys())
async def test_a_record_that_blocks_the_event_loop_becomes_a_dead_letter(
    kafka: Broker, postgres_server: DatabaseServer, temporal: TemporalServer, tmp_path: Path, end: str
) -> None:
    shop = await open_shop(postgres_server)
    project = PoisonedProject(tmp_path / "project", kafka, shop, temporal.address, end=end, max_attempts=2)
    produce_keyed(kafka, project.topics["poison"], [("k", 0), ("poison", 1), ("k", 2)])
    kafka.produce(project.topics["healthy"], *range(20))
    process = TriggerProcess("trigger", project.folder)
    try:
        assert await project.supervise(process, "poison", "healthy") == 3
        assert process.stop() == 0
    finally:
        process.kill()
    assert sorted(shop.effects()) == [*(("healthy", number) for number in range(20)), ("poisoned", 0), ("poisoned", 2)]
    [dead] = kafka.read_committed(f"{project.topics['poison']}.dlq")
    assert dead.headers["sagadlqreason"] == "it ended its process 2 times"
    assert "in poisoned" in process.log.read_text(), "no traceback that shows where the process was blocked"


async def test_sys_exit_fails_an_attempt(kafka: Broker, postgres_server: DatabaseServer, tmp_path: Path) -> None:
    shop, topics = await open_shop(postgres_server), [kafka.create_topic() for _ in range(4)]

    @consumer(topics[0], connection="shop", name="a", max_attempts=2)
    async def leave(message: Message) -> None:
        sys.exit(1)

    @consumer(topics[1], connection="shop", name="b", max_attempts=2)
    def leave_thread(message: Message) -> None:
        sys.exit(1)

    @bridge(topics[2], to=topics[3], name="c", max_attempts=2)
    def leave_bridge(message: Message) -> object:
        sys.exit(1)

    readers = [leave, leave_thread, leave_bridge]
    project = project_of(tmp_path, kafka.settings(), NOWHERE, readers=readers, connections={"shop": shop.url})
    for topic in topics[:3]:
        kafka.produce(topic, 1)
    async with triggering(project) as metrics:
        await until_in_thread(lambda: count(metrics, "saga_dead_letters_total") == 3)
    for topic in topics[:3]:
        [dead] = kafka.read_committed(f"{topic}.dlq")
        assert "the code raised SystemExit" in dead.headers["sagadlqreason"]


@pytest.mark.slow
async def test_nothing_is_lost_or_doubled_by_kills(
    kafka: Broker, postgres_server: DatabaseServer, temporal: TemporalServer, tmp_path: Path
) -> None:
    """Twenty kills at random moments, and one record that ends its process: only that one is a dead letter."""
    shop, choose, total = await open_shop(postgres_server), random.Random(3), 1500
    project = PoisonedProject(
        tmp_path / "project", kafka, shop, temporal.address, end="os.kill(os.getpid(), 9)", max_attempts=3
    )
    topics = project.topics
    keys = ["poison" if number == 700 else f"k{number % 5}" for number in range(total)]
    produce_keyed(kafka, topics["poison"], list(zip(keys, range(total), strict=True)))
    produce_keyed(kafka, topics["source"], [(f"k{number % 5}", number) for number in range(total)])
    kafka.produce(topics["healthy"], *range(total))
    kafka.produce(topics["started"], *range(30))
    process = TriggerProcess("trigger", project.folder)
    try:
        for _ in range(20):
            process.launch()
            await asyncio.sleep(choose.uniform(2.0, 6.0))
            process.kill()
        await project.supervise(process, "poison", "healthy", "source", "started")
        assert process.stop() == 0
    finally:
        process.kill()
    effects = Counter(shop.effects())
    expected = [("poisoned", number) for number in range(total) if number != 700]
    assert effects == Counter([*expected, *(("healthy", number) for number in range(total))])
    assert [record.json() for record in kafka.read_committed(topics["target"])] == list(range(total))
    assert len(await project.started(30)) == 30
    assert {record.json() for record in kafka.read_committed(f"{topics['poison']}.dlq")} == {700}
    assert not any(name in existing_topics(kafka) for name in (f"{topics['source']}.dlq", f"{topics['healthy']}.dlq"))


def existing_topics(kafka: Broker) -> set[str]:
    """The topics that exist."""
    return set(KafkaAdmin(kafka.settings()).topics())
