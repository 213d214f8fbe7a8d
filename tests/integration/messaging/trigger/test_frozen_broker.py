"""A frozen broker does not block the shutdown of a process."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import BrokerProcess
from tests.helpers.processes import TemporalServer, TriggerProcess
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import (
    fresh,
    fully_consumed,
    open_shop,
    produce_keyed,
    write_project,
)

MODULE = """
from __future__ import annotations

import asyncio

from sagas import Message, consumer

@consumer("{topic}", connection="shop", name="note")
async def note(message: Message) -> None:
    await message.sql.execute(
        "insert into effect (what, number) values (:what, :number)", what=message.key, number=message.value
    )
    await asyncio.sleep(0.1)
"""


@pytest.mark.slow
async def test_sigterm_while_the_broker_is_frozen(postgres_server: DatabaseServer, tmp_path: Path) -> None:
    """A commit of offsets that is never answered would keep the client from closing for as long as that lasts."""
    (tmp_path / "kafka").mkdir()
    broker = BrokerProcess(tmp_path / "kafka")
    broker.start()
    shop, prefix, total = await open_shop(postgres_server), fresh("p"), 200
    topic = broker.create_topic()
    folder = write_project(
        tmp_path / "project",
        broker,
        temporal="127.0.0.1:1",
        database=shop.url,
        prefix=prefix,
        module=MODULE.format(topic=topic),
    )
    process = TriggerProcess("trigger", folder, "--grace", "1s")
    try:
        produce_keyed(broker, topic, [(f"k{number % 4}", number) for number in range(total)])
        process.start()
        await until_in_thread(lambda: len(shop.effects()) > 20)
        broker.freeze()
        await asyncio.sleep(1.5)  # offsets are committed every half second: one commit is under way
        assert await asyncio.to_thread(process.stop, 90) == 1
        assert "Kafka does not answer" in process.tail()
        broker.thaw()
        process.start()
        await until_in_thread(lambda: fully_consumed(broker, f"{prefix}-consumer-note", topic))
    finally:
        process.kill()
        broker.kill()
    assert Counter(number for _, number in shop.effects()) == Counter(range(total))


ASKING = """
saga: asking
steps:
  - {id: ask, uses: kafka.request, with: {topic: commands, value: 1}, pivot: true}
"""


@pytest.mark.slow
async def test_sigterm_of_a_reply_listener_while_the_broker_is_frozen(
    postgres_server: DatabaseServer, temporal: TemporalServer, tmp_path: Path
) -> None:
    """The listener commits its offsets before it ends, and would wait for that as long as the broker is frozen."""
    (tmp_path / "kafka").mkdir()
    broker = BrokerProcess(tmp_path / "kafka")
    broker.start()
    shop, prefix = await open_shop(postgres_server), fresh("p")
    folder = write_project(
        tmp_path / "project", broker, temporal=temporal.address, database=shop.url, prefix=prefix, module=""
    )
    (folder / "asking.saga.yaml").write_text(ASKING, encoding="utf-8")
    settings = folder / "saga.toml"
    settings.write_text(settings.read_text().replace("[kafka]", '[kafka]\noutbox = "shop"'))
    process = TriggerProcess("trigger", folder, "--grace", "1s")
    try:
        process.start()
        for number in range(50):
            broker.produce(f"{prefix}-replies", number, headers={"sagakey": f"s-{number}/ask", "sagaoutcome": "done"})
        await until_in_thread(lambda: "reply without a request ignored" in process.tail())
        broker.freeze()
        assert await asyncio.to_thread(process.stop, 90) in (0, 1)
        assert not process.running
    finally:
        process.kill()
        broker.kill()
