"""From topic to topic, exactly once: with Kafka's own metrics, and with clients and a broker that are killed."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from pathlib import Path
from random import randbytes
from traceback import extract_tb
from typing import Any

import pytest

from saga_workers.trigger import bridge as bridge_reader
from sagas import Event, Message, bridge
from tests.helpers.kafka_broker import Broker, BrokerProcess
from tests.helpers.processes import TriggerProcess
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import (
    count,
    fresh,
    fully_consumed,
    produce_keyed,
    project_of,
    triggering,
    write_project,
)

NOWHERE = "127.0.0.1:1"

MODULE = """
from __future__ import annotations

import time

from sagas import Message, bridge

@bridge("{source}", to="{target}", name="copier")
def copy(message: Message) -> object:
    time.sleep({pause})
    return message.value
"""


def _run(folder: Path, kafka: Broker, reader: Any) -> Any:
    return project_of(folder, kafka.settings(), NOWHERE, readers=[reader])


async def test_a_bridge_writes_what_it_returns(kafka: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, target, other = (kafka.create_topic() for _ in range(3))

    @bridge(source, to=target, name="sorter", max_attempts=2)
    def sort(message: Message) -> object:
        match message.value:
            case {"drop": True}:
                return None
            case {"split": parts}:
                return [Event(other, key=str(part), value=part) for part in parts]
            case {"bad": _}:
                raise ValueError("no such product")
        return {"seen": message.value}

    project = _run(tmp_path, kafka, sort)
    headers = {"ce_id": "e-1", "ce_source": "/a", "colour": "red"}
    kafka.produce(source, {"n": 1}, {"drop": True}, {"split": [7, 8]}, {"bad": 1}, b"{", key="k", headers=headers)
    async with triggering(project) as metrics:
        group = f"{project.settings.kafka.prefix}-bridge-sorter"
        await until_in_thread(lambda: fully_consumed(kafka, group, source))
        assert count(metrics, "saga_dead_letters_total") == 2
        assert count(metrics, "saga_trigger_lag") == 0
    [plain] = kafka.read_committed(target)
    assert (plain.key, plain.json(), plain.headers["colour"]) == ("k", {"seen": {"n": 1}}, "red")
    parts = kafka.read_committed(other)
    assert [(part.key, part.json()) for part in parts] == [("7", 7), ("8", 8)]
    assert len({part.headers["ce_id"] for part in parts}) == 2
    reasons = [record.headers["sagadlqreason"] for record in kafka.read_committed(f"{source}.dlq")]
    assert reasons[0] == "ValueError: no such product"
    [(_, _, where)] = [record.exc_info for record in caplog.records if record.exc_info]
    assert [frame.name for frame in extract_tb(where)] == ["sort"]
    assert "not JSON" in reasons[1]


ODD_EVENTS: list[dict[str, Any]] = [
    *({"topic": topic} for topic in ("orders-no such/land", "", "__consumer_offsets", None, 5)),
    *({"headers": {"colour": value}} for value in (None, [1], "\ud800")),
    {"headers": {"\ud800": "x"}},
    {"headers": 7},
    {"id": 7},
    {"key": "\ud800"},
    {"value": "\ud800"},
]


async def test_an_event_that_no_producer_takes_is_a_dead_letter(kafka: Broker, tmp_path: Path) -> None:
    source, target = kafka.create_topic(), kafka.create_topic()

    @bridge(source, to=target, name="odd", max_attempts=1)
    def odd(message: Message) -> object:
        fields: dict[str, Any] = ODD_EVENTS[message.value] if message.value < len(ODD_EVENTS) else {"headers": {"n": 7}}
        return Event(**{"topic": target, "key": "k", "value": message.value, **fields})

    project = _run(tmp_path, kafka, odd)
    kafka.produce(source, *range(len(ODD_EVENTS) + 1), key="k")
    async with triggering(project):
        await until_in_thread(lambda: fully_consumed(kafka, f"{project.settings.kafka.prefix}-bridge-odd", source))
    [good] = kafka.read_committed(target)
    assert (good.json(), good.headers["n"]) == (len(ODD_EVENTS), "7")
    dead = kafka.read_committed(f"{source}.dlq")
    assert [letter.json() for letter in dead] == list(range(len(ODD_EVENTS)))
    reasons = [letter.headers["sagadlqreason"] for letter in dead]
    assert "'orders-no such/land' is not a valid topic name" in reasons[0]
    assert "a header must be a string; 'colour'" in reasons[5]
    assert "the id of an event must be a string, not 7" in reasons[10]


async def test_a_missing_topic_is_reported_until_it_exists(
    kafka: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = kafka.create_topic(), fresh("later")

    @bridge(source, to=target, name="early")
    def copy(message: Message) -> object:
        return message.value

    project = _run(tmp_path, kafka, copy)
    kafka.produce(source, 1, key="k")
    group = f"{project.settings.kafka.prefix}-bridge-early"
    async with triggering(project):
        await until_in_thread(lambda: f"bridge restarts: {target}: the topic does not exist" in caplog.text)
        kafka.create_topic(target)
        await until_in_thread(lambda: fully_consumed(kafka, group, source))
    assert [record.json() for record in kafka.read_committed(target)] == [1]


async def test_a_record_refused_by_the_target_is_a_dead_letter(kafka: Broker, tmp_path: Path) -> None:
    source = kafka.create_topic()
    target = kafka.create_topic(config={"max.message.bytes": "2000"})

    @bridge(source, to=target, name="grow")
    def grow(message: Message) -> object:
        return randbytes(message.value // 2).hex()  # compressed it is not smaller

    project = _run(tmp_path, kafka, grow)
    kafka.produce(source, 10, 50_000, 20, key="k")
    async with triggering(project):
        await until_in_thread(lambda: fully_consumed(kafka, f"{project.settings.kafka.prefix}-bridge-grow", source))
    assert [len(record.json()) for record in kafka.read_committed(target)] == [10, 20]
    [dead] = kafka.read_committed(f"{source}.dlq")
    assert dead.headers["sagadlqoffset"] == "1"
    assert "larger than the topic accepts" in dead.headers["sagadlqreason"]


async def test_an_output_larger_than_a_message_may_be_costs_its_bridge_no_session(
    kafka: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A session of all partitions would end for each of them: who may write to the topic could hold the bridge up."""
    source, target = kafka.create_topic(), kafka.create_topic()

    @bridge(source, to=target, name="double")
    def double(message: Message) -> object:
        return [message.value, message.headers["x"]]

    project = _run(tmp_path, kafka, double)
    for number in range(20):
        kafka.produce(source, number, key="k", headers={"x": "y" * 900_000})
    kafka.produce(source, 20, key="k", headers={"x": "y"})
    async with triggering(project):
        await until_in_thread(lambda: fully_consumed(kafka, f"{project.settings.kafka.prefix}-bridge-double", source))
    assert [record.json() for record in kafka.read_committed(target)] == [[20, "y"]]
    reasons = [record.headers["sagadlqreason"] for record in kafka.read_committed(f"{source}.dlq")]
    assert len(reasons) == 20
    assert all("at most 1000000 are allowed" in reason for reason in reasons)
    assert "bridge restarts" not in caplog.text


async def _soak(kafka: Broker, tmp_path: Path, *, messages: int, bounces: int, processes: int, partitions: int) -> None:
    """Copy while clients (and a broker that is no other test's) are killed and stopped in turn; then compare."""
    broker = kafka if isinstance(kafka, BrokerProcess) else None
    source = kafka.create_topic(partitions=partitions)
    target = kafka.create_topic(partitions=partitions)
    prefix = fresh("b")
    folder = write_project(
        tmp_path / "project",
        kafka,
        temporal=NOWHERE,
        database=f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}",
        prefix=prefix,
        module=MODULE.format(source=source, target=target, pause=0),
    )
    group, choose = f"{prefix}-bridge-copier", random.Random(messages)
    await asyncio.to_thread(produce_keyed, kafka, source, [(f"k{number % 50}", number) for number in range(messages)])
    crew = [TriggerProcess(f"bridge-{number}", folder, "--grace", "10s") for number in range(processes)]
    try:
        for process in crew:
            await asyncio.to_thread(process.start)
        for number in range(bounces):
            await asyncio.sleep(choose.uniform(0.2, 2.5))
            process = crew[number % processes]
            bounced = broker if broker is not None and number % 4 > 1 else process
            if number % 2 == 0:
                bounced.kill()
            else:
                code = await asyncio.to_thread(bounced.stop)
                assert bounced is broker or code == 0
            await asyncio.to_thread(bounced.start)
        await until_in_thread(lambda: fully_consumed(kafka, group, source), limit=300)
    finally:
        for process in crew:
            process.kill()
    copied = await asyncio.to_thread(kafka.read_committed, target)
    assert Counter(record.json() for record in copied) == Counter(range(messages))
    assert all(int(record.key.removeprefix("k")) == record.json() % 50 for record in copied if record.key)
    for partition in range(partitions):
        in_order: dict[str | None, list[int]] = {}
        for record in copied:
            if record.partition == partition:
                in_order.setdefault(record.key, []).append(record.json())
        assert all(numbers == sorted(numbers) for numbers in in_order.values())
    for topic in (source, target):
        assert all(stable == high for stable, high in (await asyncio.to_thread(kafka.offsets, topic)).values())


@pytest.mark.slow
async def test_copies_are_exactly_once_when_clients_are_killed(kafka: Broker, tmp_path: Path) -> None:
    """K12, scaled down: 5,000 messages, a hard and a clean bounce."""
    await _soak(kafka, tmp_path, messages=5_000, bounces=2, processes=2, partitions=2)


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 2])
async def test_copies_are_exactly_once_when_clients_and_broker_are_killed(tmp_path: Path, partitions: int) -> None:
    """K12 with Kafka's own figures: 100,000 messages, 750 in a transaction, hard and clean bounces of both."""
    broker = BrokerProcess(tmp_path / "kafka").start()
    try:
        await _soak(broker, tmp_path, messages=100_000, bounces=12, processes=2, partitions=partitions)
    finally:
        broker.kill()


@pytest.mark.slow
async def test_a_frozen_owner_is_fenced(kafka: Broker, tmp_path: Path) -> None:
    """K13: frozen past its session, its partitions go to another; thawed, its transaction is fenced off."""
    source, target, prefix = kafka.create_topic(partitions=2), kafka.create_topic(), fresh("b")
    folder = write_project(
        tmp_path / "project",
        kafka,
        temporal=NOWHERE,
        database=f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}",
        prefix=prefix,
        module=MODULE.format(source=source, target=target, pause=0.004),
    )
    group, total = f"{prefix}-bridge-copier", 4_000
    first, second = (TriggerProcess(f"bridge-{number}", folder) for number in range(2))
    try:
        first.start()
        await asyncio.to_thread(produce_keyed, kafka, source, [(f"k{number % 9}", number) for number in range(total)])
        await until_in_thread(lambda: len(kafka.read_committed(target)) > 0)
        first.freeze()
        before = len(await asyncio.to_thread(kafka.read_committed, target))
        second.start()
        await until_in_thread(lambda: fully_consumed(kafka, group, source))
        first.thaw()
        await asyncio.to_thread(produce_keyed, kafka, source, [("late", number) for number in range(total, total + 50)])
        await until_in_thread(lambda: fully_consumed(kafka, group, source))
    finally:
        first.kill()
        second.kill()
    assert before < total, "nothing was left to do when it was frozen"
    copied = await asyncio.to_thread(kafka.read_committed, target)
    assert Counter(record.json() for record in copied) == Counter(range(total + 50))
    assert all(stable == high for stable, high in (await asyncio.to_thread(kafka.offsets, target)).values())


def slow_copy(source: str, target: str, seconds: float) -> Any:
    """A bridge whose function takes so long for each record."""

    @bridge(source, to=target, name="slow")
    def copy(message: Message) -> object:
        time.sleep(seconds)
        return message.value

    return copy


async def test_a_slow_function_does_not_cost_the_membership(
    kafka: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All records together take longer than a group keeps a member that does not poll."""
    monkeypatch.setattr(bridge_reader, "BATCH_SECONDS", 1.0)
    source, target = kafka.create_topic(partitions=2), kafka.create_topic()

    settings = kafka.settings(client={"max.poll.interval.ms": "6000", "session.timeout.ms": "6000"})
    project = project_of(tmp_path, settings, NOWHERE, readers=[slow_copy(source, target, 0.05)])
    kafka.produce(source, *range(200))
    with caplog.at_level(logging.WARNING, logger="saga.trigger"):
        async with triggering(project):
            await until_in_thread(lambda: len(kafka.read_committed(target)) >= 200, limit=60)
    assert sorted(record.json() for record in kafka.read_committed(target)) == list(range(200))
    assert "bridge restarts" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_members_come_and_go_while_the_function_is_slow(
    kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Partitions move while a part of a batch is published and the rest is not."""
    monkeypatch.setattr(bridge_reader, "BATCH_SECONDS", 0.3)
    source, target = kafka.create_topic(partitions=4), kafka.create_topic()

    settings = kafka.settings(client={"partition.assignment.strategy": strategy})
    project = project_of(tmp_path, settings, NOWHERE, readers=[slow_copy(source, target, 0.02)])
    produce_keyed(kafka, source, [(str(number % 16), number) for number in range(1000)])
    async with triggering(project):
        for _ in range(4):
            async with triggering(project):
                await asyncio.sleep(4)
            await asyncio.sleep(1)
        await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-bridge-slow", source))
    numbers = [record.json() for record in kafka.read_committed(target)]
    assert sorted(numbers) == list(range(1000))
    for key in range(16):
        assert [number for number in numbers if number % 16 == key] == list(range(key, 1000, 16))


async def test_a_slow_function_does_not_delay_the_end(kafka: Broker, tmp_path: Path) -> None:
    """The process publishes what is done when it is told to end, and the next one does the rest."""
    source, target = kafka.create_topic(), kafka.create_topic()
    called: list[int] = []
    pause = [0.1]

    @bridge(source, to=target, name="slow")
    def copy(message: Message) -> object:
        time.sleep(pause[0])
        called.append(message.value)
        return message.value

    project = _run(tmp_path, kafka, copy)
    kafka.produce(source, *range(300))
    async with triggering(project, grace=30.0):
        await until_in_thread(lambda: len(called) >= 3)
    assert 3 <= len(called) < 150
    assert [record.json() for record in kafka.read_committed(target)] == called
    pause[0] = 0.0
    async with triggering(project):
        await until_in_thread(lambda: len(kafka.read_committed(target)) >= 300)
    assert called == list(range(300))
