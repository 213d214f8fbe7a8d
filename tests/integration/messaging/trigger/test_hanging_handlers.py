"""Plain functions as handlers: their threads cannot be interrupted."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sagas import Message, consumer
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import (
    count,
    fully_consumed,
    open_shop,
    project_of,
    triggering,
)

NOWHERE = "127.0.0.1:1"
WAITING = "handler still runs after its timeout"


async def test_handlers_that_hang_leave_other_consumers_alone(
    kafka: Broker, postgres_server: DatabaseServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each message of the first consumer takes one thread; the messages of the second are processed meanwhile."""
    shop, slow, fast = await open_shop(postgres_server), kafka.create_topic(), kafka.create_topic()
    may_return, calls = threading.Event(), list[int]()

    @consumer(slow, connection="shop", name="slow", timeout=2, max_attempts=2)
    def hang(message: Message) -> None:
        calls.append(message.value)
        may_return.wait(120)

    @consumer(fast, connection="shop", name="fast")
    def book(message: Message) -> None:
        message.sql.execute("insert into effect (what, number) values ('x', :n)", n=message.value)

    settings = kafka.settings()
    project = project_of(tmp_path, settings, NOWHERE, readers=[hang, book], connections={"shop": shop.url})
    kafka.produce(slow, *range(16))
    async with triggering(project) as metrics:
        try:
            await until_in_thread(lambda: caplog.text.count(WAITING) == 16)
            kafka.produce(fast, *range(20))
            await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-consumer-fast", fast))
            assert sorted(calls) == list(range(16)), "no second attempt beside the first one"
        finally:
            may_return.set()
        await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-consumer-slow", slow))
        assert count(metrics, "saga_dead_letters_total") == 0
    assert shop.inbox() == {"DONE": 36}
    assert sorted(calls) == sorted([*range(16), *range(16)])
