"""A partition that was truncated and has grown beyond the position of its readers again, on a real broker.

Its offsets look as if nothing had happened. The records that took the place of others are read, and those before them
are not read again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.dead_letter_headers import OFFSET_HEADER
from saga_workers.doctor.reader_checks import check_positions
from saga_workers.trigger.project_readers import project_readers
from sagas import Message, bridge, consumer
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import BrokerProcess
from tests.helpers.restored_partition import keep_partition
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import fully_consumed, open_shop, project_of, triggering

NOWHERE = "127.0.0.1:1"
OF_ONE_OFFSET = (9, 105)
"""Records without `ce_id`, which have the same id therefore."""
UNREADABLE = b"{"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "kafka") as broker:
        yield broker


class Readers:
    """A consumer and a bridge of one topic, which has records 0 to 3 that a copy of its partition has, too."""

    def __init__(self, folder: Path, broker: BrokerProcess, url: str) -> None:
        self.broker = broker
        settings = broker.settings(outbox="shop")
        self.source, self.target = source, target = broker.create_topic(), broker.create_topic()
        self.groups = [f"{settings.prefix}-consumer-note", f"{settings.prefix}-bridge-copier"]

        @consumer(source, connection="shop", name="note")
        async def note(message: Message) -> None:
            insert = "insert into effect (what, number) values (:what, :number)"
            await message.sql.execute(insert, what=message.id, number=message.value)

        @bridge(source, to=target, name="copier")
        def copy(message: Message) -> object:
            return message.value

        self.project = project_of(folder, settings, NOWHERE, readers=[note, copy], connections={"shop": url})
        self.produce(*range(4))
        self.restore = keep_partition(broker, folder / "kafka", source)

    def produce(self, *values: int | bytes) -> None:
        for value in values:
            headers = {"ce_id": str(value), "ce_source": "/shop"}
            self.broker.produce(self.source, value, headers=None if value in OF_ONE_OFFSET else headers)

    def are_done(self) -> bool:
        return all(fully_consumed(self.broker, group, self.source) for group in self.groups)

    def have_reached_the_end(self) -> bool:
        """A bridge commits the end behind control records when it stops."""
        return fully_consumed(self.broker, self.groups[0], self.source) and len(self.copied()) == 5

    def copied(self) -> list[int]:
        return [record.json() for record in self.broker.read_committed(self.target)]

    async def run(self, are_done: Callable[[], bool] | None = None) -> None:
        async with triggering(self.project):
            await until_in_thread(are_done or self.are_done)


async def test_what_took_the_place_of_other_records_is_read(
    broker: BrokerProcess, tmp_path: Path, postgres_server: DatabaseServer, caplog: pytest.LogCaptureFixture
) -> None:
    shop = await open_shop(postgres_server)
    readers = Readers(tmp_path, broker, shop.url)
    readers.produce(*range(4, 10), UNREADABLE)
    await readers.run()
    readers.restore()
    readers.produce(*range(100, 106), UNREADABLE, *range(106, 112))
    checked = [each for each in project_readers(readers.project) if each.group in readers.groups]
    with pytest.raises(Exception, match=r"at most 13 events of .* wait .* was truncated before the position 11, at 4"):
        check_positions(KafkaAdmin(readers.project.settings.kafka), checked)
    with caplog.at_level(logging.WARNING, logger="saga.trigger"):
        await readers.run()
    effects, copied = [*range(10), *range(100, 105), *range(106, 112)], [*range(10), *range(100, 112)]
    assert sorted(number for _, number in shop.effects()) == effects
    assert readers.copied() == copied
    assert "moved to the dead letter topic: its id" in caplog.text
    letters = [record.headers[OFFSET_HEADER] for record in broker.read_committed(f"{readers.source}.dlq")]
    assert sorted(letters) == [*4 * ["10"], "9"]
    named = "the partition was truncated: the records from 4 on are not those that were read; reading goes on there"
    assert [record.getMessage() for record in caplog.records].count(named) == 2
    caplog.clear()
    broker.stop()
    broker.start()
    readers.produce(112)
    await readers.run()
    assert "truncated" not in caplog.text
    assert sorted(number for _, number in shop.effects()) == [*effects, 112]
    assert readers.copied() == [*copied, 112]


@pytest.mark.slow
async def test_while_it_is_read(
    broker: BrokerProcess, tmp_path: Path, postgres_server: DatabaseServer, caplog: pytest.LogCaptureFixture
) -> None:
    shop = await open_shop(postgres_server)
    readers = Readers(tmp_path, broker, shop.url)
    readers.produce(*range(4, 10))
    with caplog.at_level(logging.WARNING, logger="saga.trigger"):
        async with triggering(readers.project):
            await until_in_thread(readers.are_done)
            readers.restore()
            readers.produce(*range(100, 112))
            await until_in_thread(readers.are_done)
    assert sorted(number for _, number in shop.effects()) == [*range(10), *range(100, 105), *range(106, 112)]
    assert readers.copied() == [*range(10), *range(100, 112)]
    assert "the partition was truncated: the records from 4 on" in caplog.text


async def test_control_records_of_a_later_epoch_are_no_truncation(
    broker: BrokerProcess, tmp_path: Path, postgres_server: DatabaseServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The newest record is of an older epoch than the position, behind the end of its transaction."""
    shop = await open_shop(postgres_server)
    readers = Readers(tmp_path, broker, shop.url)
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "others", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(readers.source, b"4")
    assert producer.flush(30) == 0
    broker.stop()
    broker.start()
    producer.commit_transaction(30)
    for _ in range(3):
        with caplog.at_level(logging.WARNING, logger="saga.trigger"):
            await readers.run(readers.have_reached_the_end)
        assert readers.are_done()
        broker.stop()
        broker.start()
    assert "truncated" not in caplog.text
    assert sorted(number for _, number in shop.effects()) == [*range(5)]
    assert readers.copied() == [*range(5)]
