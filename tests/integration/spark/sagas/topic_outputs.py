"""Projects whose Spark steps write to a topic of a real broker, and what readers of the topic see."""

from __future__ import annotations

import time
from collections.abc import Mapping

from tests.helpers.kafka_broker import Broker, Record
from tests.integration.spark.day_close_project import DayCloseProject

SETTLED = 30.0


def topic_outputs(broker: Broker, *, partitions: int = 2) -> dict[str, str]:
    """Facts go to a new topic, totals to files."""
    topic = broker.create_topic(partitions=partitions)
    return {"facts": f"{{topic: {topic}, key: order_id}}", "totals": "{parquet: out/totals}"}


def kafka_toml(broker: Broker) -> str:
    """The lines of saga.toml that name the broker."""
    settings = broker.settings()
    return f'''[kafka]\nbootstrap_servers = "{settings.servers}"\nprefix = "{settings.prefix}"\n'''


def named(outputs: Mapping[str, str]) -> str:
    """The topic of the facts."""
    return outputs["facts"].removeprefix("{topic: ").partition(",")[0]


def events_of(broker: Broker, topic: str, saga: str) -> list[Record]:
    """Events of a saga that read_committed consumers see. Afterwards nothing holds them back: each is there once, and
    no transaction is open."""
    records = [record for record in broker.read_committed(topic, settle=SETTLED) if record.headers["sagaid"] == saga]
    ids = [record.headers["ce_id"] for record in records]
    assert len(set(ids)) == len(ids), "an event is there twice"
    return records


def must_be_settled(broker: Broker, day_close: DayCloseProject, topic: str) -> None:
    """Last stable offset and high watermark are the same, in the topic and where its progress is kept."""
    progress = f"{day_close.project.settings.kafka.prefix}-spark"
    topics = [name for name in (topic, progress) if name in broker.topics()]
    end = time.monotonic() + SETTLED
    while not broker.is_settled(*topics):
        assert time.monotonic() < end, {topic: broker.offsets(topic) for topic in topics}
        time.sleep(0.1)


def never_written(broker: Broker, topic: str, saga: str) -> bool:
    """True when not even an aborted transaction has an event of the saga."""
    return not [record for record in broker.read_uncommitted(topic) if record.headers["sagaid"] == saga]
