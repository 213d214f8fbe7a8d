"""Consumers with an inbox: each effect once, in order per key, despite kills, duplicates and reordering."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from saga_workers.relay.relay_process import run_relay
from sagas import AttemptOver, Message, Rejected, action, bridge, consumer
from tests.docs.test_python_listings import listings
from tests.helpers.database_servers import DatabaseServer, postgres
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer, TriggerProcess
from tests.helpers.waiting import LIMIT, until_in_thread
from tests.integration.messaging.trigger.trigger_environment import (
    Shop,
    committed,
    count,
    ended,
    fresh,
    fully_consumed,
    open_shop,
    produce_keyed,
    project_of,
    triggering,
    write_project,
)

NOWHERE = "127.0.0.1:1"
"""A Temporal address that is never used: consumers do not need Temporal."""


@pytest.fixture
async def shop(postgres_server: DatabaseServer) -> Shop:
    return await open_shop(postgres_server)


def _project(folder: Path, kafka: Broker, shop: Shop, *readers: Any) -> Any:
    settings = kafka.settings(outbox="shop")
    return project_of(folder, settings, NOWHERE, readers=readers, connections={"shop": shop.url})


def _group(project: Any, name: str) -> str:
    return f"{project.settings.kafka.prefix}-consumer-{name}"


INSERT = "insert into effect (what, number) values (:what, :number)"


async def test_order_per_key_parallel_across_keys_and_duplicates_once(
    kafka: Broker, shop: Shop, tmp_path: Path
) -> None:
    """O7; and a producer that sends the same event twice makes one effect."""
    topic, at_once = kafka.create_topic(partitions=2), [0, 0]

    @consumer(topic, connection="shop", name="note")
    async def note(message: Message) -> None:
        at_once[0] += 1
        at_once[1] = max(at_once)
        await message.sql.execute(INSERT, what=message.key, number=message.value)
        await asyncio.sleep(0.005)
        at_once[0] -= 1

    project = _project(tmp_path, kafka, shop, note)
    produce_keyed(kafka, topic, [(f"k{number % 9}", number) for number in range(180)])
    for _ in range(3):
        kafka.produce(topic, 1_000, key="k0", headers={"ce_id": "twice", "ce_source": "/a"})
    async with triggering(project) as metrics:
        await until_in_thread(lambda: fully_consumed(kafka, _group(project, "note"), topic))
        assert count(metrics, "saga_dead_letters_total") == 0
    effects = shop.effects()
    assert Counter(number for _, number in effects) == Counter([*range(180), 1_000])
    for key in {what for what, _ in effects}:
        numbers = [number for what, number in effects if what == key]
        assert numbers == sorted(numbers)
    assert at_once[1] > 3


async def test_a_plain_function_runs_in_a_thread_with_the_same_transaction(
    kafka: Broker, shop: Shop, tmp_path: Path
) -> None:
    topic = kafka.create_topic()

    @consumer(topic, connection="shop", name="plain")
    def plain(message: Message) -> None:
        if message.newer("order", message.value):
            message.sql.execute(INSERT, what=message.key, number=message.value)
            message.emit("noted", key=message.key, value={"n": message.value})

    project = _project(tmp_path, kafka, shop, plain)
    kafka.produce(topic, 2, 1, 3, key="a")
    async with triggering(project):
        await until_in_thread(lambda: fully_consumed(kafka, _group(project, "plain"), topic))
    assert shop.effects() == [("a", 2), ("a", 3)]
    assert [(key, value) for key, _, value in shop.outbox("noted")] == [("a", {"n": 2}), ("a", {"n": 3})]


async def test_a_cancel_that_arrives_before_its_create_wins(kafka: Broker, shop: Shop, tmp_path: Path) -> None:
    """Fault row 19: the two come through different partitions, in any order; the version file decides."""
    topic = kafka.create_topic()

    @consumer(topic, connection="shop", name="orders")
    async def orders(message: Message) -> None:
        order = message.value
        if not await message.newer(order["id"], order["version"]):
            return
        if order["state"] == "created":
            await message.sql.execute(INSERT, what=order["id"], number=order["version"])
        else:
            await message.sql.execute("delete from effect where what = :what", what=order["id"])

    project = _project(tmp_path, kafka, shop, orders)
    create = {"version": 1, "state": "created"}
    cancel = {"version": 2, "state": "cancelled"}
    for id, first, second in (("early", cancel, create), ("usual", create, cancel), ("kept", create, create)):
        kafka.produce(topic, {"id": id, **first}, {"id": id, **second})
    async with triggering(project):
        await until_in_thread(lambda: fully_consumed(kafka, _group(project, "orders"), topic))
    assert shop.effects() == [("kept", 1)]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_a_call_without_await_is_a_dead_letter_that_names_it(kafka: Broker, shop: Shop, tmp_path: Path) -> None:
    """A coroutine counts as true, so nothing would be skipped, and a message might be rejected wrongly."""
    topic = kafka.create_topic()

    @consumer(topic, connection="shop", name="forgetful")
    async def forgetful(message: Message) -> None:
        if not message.newer("order", message.value):
            return
        if message.value == 1:
            raise Rejected("version 1 is not for sale")
        await message.sql.execute(INSERT, what=message.key, number=message.value)

    project = _project(tmp_path, kafka, shop, forgetful)
    kafka.produce(topic, 2, 1, key="a")
    async with triggering(project) as metrics:
        await until_in_thread(lambda: fully_consumed(kafka, _group(project, "forgetful"), topic))
        assert count(metrics, "saga_dead_letters_total") == 2
    assert shop.effects() == []
    for letter in kafka.read_committed(f"{topic}.dlq"):
        assert "`message.newer` was called without `await`" in letter.headers["sagadlqreason"]
        assert "write `await message.newer(…)`" in letter.headers["sagadlqreason"]


async def test_a_poison_message_is_dead_lettered_and_answered(kafka: Broker, shop: Shop, tmp_path: Path) -> None:
    """Fault row 20: n attempts, a dead letter with the reason, a reply; later messages are processed."""
    topic, tries = kafka.create_topic(), []

    @consumer(topic, connection="shop", name="picky", max_attempts=3)
    async def picky(message: Message) -> None:
        await message.sql.execute(INSERT, what="tried", number=message.value["n"])
        tries.append((message.value["n"], message.attempt))
        if message.value["n"] == 1:
            raise KeyError("price")

    project = _project(tmp_path, kafka, shop, picky)
    asks = {"sagareplyto": "answers", "sagaid": "s-1", "sagakey": "s-1/ask"}
    kafka.produce(topic, {"n": 1}, key="a", headers=asks)
    kafka.produce(topic, b"{", key="a", headers=asks)
    kafka.produce(topic, {"n": 2}, key="a")
    async with triggering(project) as metrics:
        await until_in_thread(lambda: fully_consumed(kafka, _group(project, "picky"), topic))
        assert count(metrics, "saga_dead_letters_total") == 2
    assert tries == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert shop.effects() == [("tried", 2)]
    assert shop.inbox() == {"DEAD": 2, "DONE": 1}
    reasons = [record.headers["sagadlqreason"] for record in kafka.read_committed(f"{topic}.dlq")]
    assert "KeyError" in reasons[0]
    assert "not JSON" in reasons[1]
    answers = shop.outbox("answers")
    assert [headers for _, headers, _ in answers] == [
        {"sagakey": "s-1/ask", "sagaid": "s-1", "sagaoutcome": "rejected"}
    ] * 2
    assert "price" in answers[0][2]["reason"]


async def test_a_dead_letter_that_is_sent_again_has_one_more_effect(
    kafka: Broker, shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sent twice with the program of docs/how-to/trigger-sagas-from-kafka.md: only its reader handles it, and once."""
    topic, target, mended = kafka.create_topic(), kafka.create_topic(), asyncio.Event()

    @consumer(topic, connection="shop", name="mended", max_attempts=1)
    async def handle(message: Message) -> None:
        if not mended.is_set():
            raise KeyError("price")
        await message.sql.execute(INSERT, what="mended", number=message.value["n"])

    @consumer(topic, connection="shop", name="greeter")
    async def greet(message: Message) -> None:
        await message.sql.execute(INSERT, what="greeted", number=message.value["n"])

    @consumer(f"{topic}.dlq", connection="shop", name="clerk")
    async def file(message: Message) -> None:
        await message.sql.execute(INSERT, what="filed", number=message.value["n"])

    @bridge(topic, to=target, name="copier")
    def copy(message: Message) -> object:
        return message.value

    kafka.create_topic(f"{topic}.dlq")
    project = _project(tmp_path, kafka, shop, handle, greet, file, copy)
    groups = [_group(project, "mended"), _group(project, "greeter"), f"{project.settings.kafka.prefix}-bridge-copier"]
    program = tmp_path / "dead_letters.py"
    program.write_text(next(text for _, text in listings() if "dead_letters.py BROKERS" in text), encoding="utf-8")

    def send_again() -> str:
        command = [sys.executable, str(program), kafka.address, topic, "0/0"]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT).stdout

    caplog.set_level("DEBUG", "saga.trigger")
    kafka.produce(topic, {"n": 1}, key="a", headers={"ce_id": "m-1", "ce_source": "/till", "sagareplyto": "answers"})
    async with triggering(project):
        await until_in_thread(lambda: fully_consumed(kafka, groups[0], topic))
        mended.set()
        printed = [await asyncio.to_thread(send_again) for _ in range(2)]
        await until_in_thread(lambda: all(fully_consumed(kafka, group, topic) for group in groups))
        await until_in_thread(lambda: fully_consumed(kafka, _group(project, "clerk"), f"{topic}.dlq"))
    assert "KeyError" in printed[0]
    assert sorted(shop.effects()) == [("filed", 1), ("greeted", 1), ("mended", 1)]
    assert [record.headers["ce_id"] for record in kafka.read_committed(target)] == ["m-1"]
    assert len(kafka.read_committed(topic)) == 3
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count(f"a dead letter that was sent again is for {groups[0]}") == 4
    assert sorted(headers["sagaoutcome"] for _, headers, _ in shop.outbox("answers")) == ["done", "done", "rejected"]


async def test_messages_wait_while_the_database_is_down(kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.create_topic()

    @consumer(topic, connection="shop", name="note", max_attempts=1)
    async def note(message: Message) -> None:
        await message.sql.execute(INSERT, what="a", number=message.value)

    with postgres() as server:
        shop = await open_shop(server)
        project = _project(tmp_path, kafka, shop, note)
        async with triggering(project) as metrics:
            kafka.produce(topic, 0)
            await until_in_thread(lambda: fully_consumed(kafka, _group(project, "note"), topic))
            server.kill()
            kafka.produce(topic, *range(1, 10))
            await asyncio.sleep(3)
            server.start()
            await until_in_thread(lambda: fully_consumed(kafka, _group(project, "note"), topic))
            assert count(metrics, "saga_dead_letters_total") == 0
        assert sorted(number for _, number in shop.effects()) == list(range(10))


ASKING = """
    saga: {saga}
    triggers: {{kafka: {{topic: {replies}, id: "${{{{ trigger.headers.sagaid }}}}", signal: booked}}}}
    input: {{type: object, properties: {{amount: {{type: integer}}}}}}
    steps:
      - {{id: hold, uses: shop.hold, compensate: shop.free}}
      - id: ask
        uses: shop.ask
        with: {{amount: "${{{{ input.amount }}}}"}}
        compensate: shop.nothing
      - {{id: booked, uses: wait, with: {{signal: booked, timeout: 2m, on_timeout: reject}}}}
    output: "${{{{ steps.booked.result.data }}}}"
"""


async def test_a_consumer_rejection_compensates_the_saga_with_its_reason(
    kafka: Broker, temporal: TemporalServer, shop: Shop, tmp_path: Path
) -> None:
    """O9: saga → outbox → relay → consumer → outbox → relay → trigger → saga."""
    topic, replies, saga = kafka.create_topic(), kafka.create_topic(), fresh("ask")

    @action("shop.hold", connection="shop")
    async def hold(step: Any) -> None:
        await step.sql.execute(INSERT, what=step.saga_id, number=1)

    @action("shop.free", connection="shop")
    async def free(step: Any) -> None:
        await step.sql.execute("delete from effect where what = :what", what=step.saga_id)

    @action("shop.ask", connection="shop", rejects=False)
    async def ask(step: Any, amount: int) -> None:
        step.emit(topic, key=step.saga_id, value={"amount": amount}, headers={"sagareplyto": replies})

    @action("shop.nothing", connection="shop")
    async def nothing(step: Any, amount: int) -> None: ...

    @consumer(topic, connection="shop", name="finance")
    async def finance(message: Message) -> dict[str, Any]:
        await message.sql.execute(INSERT, what="booked", number=message.value["amount"])
        if message.value["amount"] > 100:
            raise Rejected("no budget left", limit=100)
        return {"booked": message.value["amount"]}

    project = project_of(
        tmp_path,
        kafka.settings(outbox="shop"),
        temporal.address,
        definitions={saga: ASKING.format(saga=saga, replies=replies)},
        actions=[hold, free, ask, nothing],
        readers=[finance],
        connections={"shop": shop.url},
    )
    stop = asyncio.Event()
    async with running_worker(project) as client:
        relay = asyncio.create_task(run_relay(project.settings, stop=stop))
        async with triggering(project) as metrics:
            await client.start(saga, {"amount": 50}, id=f"{saga}-ok")
            await client.start(saga, {"amount": 500}, id=f"{saga}-no")
            fine, refused = await ended(client, f"{saga}-ok"), await ended(client, f"{saga}-no")
            assert count(metrics, "saga_dead_letters_total") == 0
        stop.set()
        await relay
    assert (fine["state"], fine["output"]) == ("COMPLETED", {"booked": 50})
    assert refused["state"] == "COMPENSATED"
    assert (refused["reason"]["kind"], refused["reason"]["message"]) == ("rejected", "no budget left")
    assert sorted(shop.effects()) == sorted([(f"{saga}-ok", 1), ("booked", 50)])
    assert shop.inbox() == {"DONE": 1, "REJECTED": 1}


MODULE = """
from __future__ import annotations

import asyncio

from sagas import Message, consumer

@consumer("{topic}", connection="shop", name="note")
async def note(message: Message) -> None:
    await message.sql.execute(
        "insert into effect (what, number) values (:what, :number)", what=message.key, number=message.value
    )
    await asyncio.sleep({pause})
"""


@pytest.mark.slow
async def test_a_kill_between_inbox_and_offset_commit_has_one_effect(
    kafka: Broker, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    """O6, K14, fault row 18 at P13: the messages come again, and find their ids in the inbox."""
    shop, topic, prefix = await open_shop(postgres_server), kafka.create_topic(), fresh("p")
    folder = write_project(
        tmp_path / "project",
        kafka,
        temporal=NOWHERE,
        database=shop.url,
        prefix=prefix,
        module=MODULE.format(topic=topic, pause=0),
    )
    group = f"{prefix}-consumer-note"
    process = TriggerProcess("trigger", folder).start()
    deaths = 0
    try:
        for round in range(2):
            produce_keyed(kafka, topic, [(f"k{number % 4}", round * 40 + number) for number in range(40)])
            await until_in_thread(lambda wanted=round * 40 + 1: len(shop.effects()) >= wanted)
            process.kill()  # an offset is committed at most every half second, the effect is there at once
            done = {number for _, number in shop.effects()}
            offset = (await asyncio.to_thread(committed, kafka, group, topic)).get(0, 0)
            order = [record.json() for record in await asyncio.to_thread(kafka.read_committed, topic)]
            assert set(order[:offset]) <= done, "an offset was ahead of the effects"
            deaths += len(done) > offset
            process.start()
            await until_in_thread(lambda: fully_consumed(kafka, group, topic))
    finally:
        process.kill()
    assert deaths, "no kill hit the gap between the inbox and the offset"
    assert Counter(number for _, number in shop.effects()) == Counter(range(80))


@pytest.mark.slow  # test_bridge_rebalances.py moves partitions, too
async def test_a_rebalance_during_a_batch_has_one_effect(
    kafka: Broker, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    """Fault row 18: a second process joins while the first works, the first is stopped, a third is killed."""
    shop, topic, prefix = await open_shop(postgres_server), kafka.create_topic(partitions=4), fresh("p")
    folder = write_project(
        tmp_path / "project",
        kafka,
        temporal=NOWHERE,
        database=shop.url,
        prefix=prefix,
        module=MODULE.format(topic=topic, pause=0.02),
    )
    total = 900
    first, second, third = (TriggerProcess(f"trigger-{number}", folder) for number in range(3))
    try:
        first.start()
        produce_keyed(kafka, topic, [(f"k{number % 30}", number) for number in range(total)])
        await until_in_thread(lambda: len(shop.effects()) > 50)
        second.start()
        assert await asyncio.to_thread(first.stop) == 0
        third.start()
        await until_in_thread(lambda: len(shop.effects()) > 300)
        third.kill()
        await until_in_thread(lambda: fully_consumed(kafka, f"{prefix}-consumer-note", topic))
    finally:
        for process in (first, second, third):
            process.kill()
    effects = shop.effects()
    assert Counter(number for _, number in effects) == Counter(range(total))
    for key in {what for what, _ in effects}:
        numbers = [number for what, number in effects if what == key]
        assert numbers == sorted(numbers), key
    assert json.dumps(shop.inbox()) == json.dumps({"DONE": total})


async def test_a_task_that_a_handler_leaves_running_neither_writes_nor_emits(
    kafka: Broker, shop: Shop, tmp_path: Path
) -> None:
    topic, refused = kafka.create_topic(), []

    @consumer(topic, connection="shop", name="leaves")
    async def leaves(message: Message) -> None:
        await message.sql.execute(INSERT, what="before", number=message.value)

        async def later() -> None:
            await asyncio.sleep(0.5)
            for use in (lambda: message.emit("never", value=1), lambda: None):
                try:
                    use()
                    await message.sql.execute(INSERT, what="late", number=message.value)
                except AttemptOver as error:
                    refused.append(str(error))

        tasks.append(asyncio.create_task(later()))

    tasks: list[asyncio.Task[None]] = []
    project = _project(tmp_path, kafka, shop, leaves)
    kafka.produce(topic, 7)
    async with triggering(project):
        await until_in_thread(lambda: fully_consumed(kafka, _group(project, "leaves"), topic))
        await asyncio.gather(*tasks)
    assert (shop.effects(), len(refused)) == ([("before", 7)], 2)
