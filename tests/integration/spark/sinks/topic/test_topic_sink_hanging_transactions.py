"""A restarted broker loses the abort of a file's transaction (KAFKA-20734): the next attempt at the file aborts it
first, or its own commit would make both visible."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_activities.kafka.transactional_producer import TransactionalProducer
from saga_spark.settings import SparkSettings
from saga_spark.sinks.kafka import topic_progress
from saga_spark.sinks.kafka.topic_sink import TopicSink, row_records
from saga_spark.sinks.sink import Publication
from tests.helpers.kafka_broker import BrokerProcess
from tests.helpers.lossy_broker import TIMEOUT, lose_transaction_end
from tests.integration.spark.staged_outputs import stage

pytestmark = pytest.mark.slow

ROWS = [{"id": number} for number in range(6)]


def test_a_lost_abort_is_repeated(tmp_path: Path, lossy_broker: BrokerProcess) -> None:
    topic = lossy_broker.create_topic()
    kafka = lossy_broker.settings(transaction_timeout=TIMEOUT)
    settings = SparkSettings(root=tmp_path, stage=(tmp_path / "stage").as_uri(), kafka=kafka)
    sink = TopicSink(settings)
    publication = stage(settings, {"topic": topic, "key": "id"}, ROWS, files=2)
    sink.prepare(publication)

    def fall_asleep() -> None:
        write_first_file(settings, publication)

    lose_transaction_end(lossy_broker, topic, fall_asleep)
    [published] = sink.publish([publication], None, together=False)
    assert (published.adopted, published.after) == (False, 2)
    ids = sorted(record.json()["id"] for record in lossy_broker.read_committed(topic))
    assert ids == [0, 1, 2, 3, 4, 5]
    assert lossy_broker.is_settled(topic, topic_progress.progress_topic(kafka))


def write_first_file(settings: SparkSettings, publication: Publication) -> None:
    """A publisher that freezes forever before it records its progress."""
    kafka = settings.kafka
    producer = TransactionalProducer(
        kafka, f"{topic_progress.progress_topic(kafka)}-{publication.tag.target.publish_key}"
    ).fence_and_open()
    producer.begin(60.0)
    for record in row_records(publication, 0, prefix=kafka.prefix, time=0.0):
        producer.produce(publication.output.destination, record.value, record.key, record.headers)
    producer.flush()
