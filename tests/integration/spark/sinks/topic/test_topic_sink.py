"""A topic as a sink, at a real broker. Killed publishers are in test_topic_sink_crashes.py."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from saga_activities.kafka.record_codec import EncodedRecord, encode
from saga_activities.kafka.transactional_producer import PartitionRecord, TransactionalProducer
from saga_spark.inputs import kafka_input
from saga_spark.inputs.kafka_input import freeze_topic
from saga_spark.job_errors import JobFailed
from saga_spark.reconcile.extracts import OUTBOX_SCHEMA, ParquetRowWriter, ReconciliationScope
from saga_spark.reconcile.topic_extract import RECORDS_FILE, read_topics
from saga_spark.settings import SparkSettings
from saga_spark.sinks.kafka import topic_progress
from saga_spark.sinks.kafka.topic_sink import TopicSink
from saga_spark.sinks.sink import CommitConflict, Publication, UndoConflict
from sagas.errors import InfrastructureError
from tests.helpers.kafka_broker import Broker, BrokerProcess
from tests.helpers.restored_partition import keep_partition
from tests.integration.spark.staged_outputs import stage

ROWS = [{"id": at, "amount": Decimal("1.50"), "day": date(2026, 1, 1)} for at in range(6)]


class Killed(BaseException):
    """Simulates a kill: nothing of the publisher runs after it."""


class Environment:
    def __init__(self, folder: Path, kafka: Broker) -> None:
        self.kafka, self.topic = kafka, kafka.create_topic(partitions=2)
        self.settings = SparkSettings(root=folder, stage=(folder / "stage").as_uri(), kafka=kafka.settings())
        self.sink = TopicSink(self.settings)

    def stage(self, rows: Any = ROWS, **more: Any) -> Publication:
        output = {"topic": self.topic, "key": "id", **more.pop("output", {})}
        publication = stage(self.settings, output, rows, files=more.pop("files", 3), **more)
        self.sink.validate(publication.output)
        assert self.sink.check(publication) == []
        self.sink.prepare(publication)
        return publication

    def publish(self, publication: Publication) -> Any:
        return self.sink.publish([publication], self.sink.read_state([publication]), together=False)[0]

    def ids(self) -> list[int]:
        return sorted(record.json()["id"] for record in self.kafka.read_committed(self.topic))


@pytest.fixture
def env(tmp_path: Path, kafka: Broker) -> Environment:
    return Environment(tmp_path, kafka)


def test_each_row_is_published_once(env: Environment) -> None:
    publication = env.stage()
    assert env.sink.find(publication.output, publication.tag.target) is None
    first, again = env.publish(publication), env.publish(publication)
    assert (first.adopted, again.adopted) == (False, True)
    records = env.kafka.read_committed(env.topic)
    assert sorted(record.json()["id"] for record in records) == [0, 1, 2, 3, 4, 5]
    third = next(record for record in records if record.key == "3")
    assert third.value == b'{"id":3,"amount":1.50,"day":"2026-01-01"}'
    assert third.headers["ce_id"] == f"{publication.tag.target.name}-1-1"
    assert third.headers["sagaid"] == "s1"
    assert len({record.headers["ce_id"] for record in records}) == 6
    assert [publication.mark for publication in topic_progress.visible_publications(env.settings.kafka, env.topic)] == [
        publication.tag.properties()
    ]


def test_published_rows_stay_and_unpublished_ones_are_fenced(env: Environment) -> None:
    published, waiting = env.stage(), env.stage(saga="s2")
    env.publish(published)
    with pytest.raises(CommitConflict, match="cannot be cleaned up"):
        env.sink.clean_up(published)
    for _ in range(2):
        with pytest.raises(UndoConflict, match="cannot be reverted") as reported:
            env.sink.revert([published], together=False)
        assert reported.value.report["files"] == 3
    env.sink.clean_up(waiting)
    env.sink.revert([waiting], together=False)
    with pytest.raises(CommitConflict, match="was reverted"):  # it froze before the undo and resumes after it
        env.publish(waiting)
    assert env.ids() == [0, 1, 2, 3, 4, 5]
    later = env.stage(saga="s2", generation=2)
    env.publish(later)
    assert len(env.ids()) == 12


def test_unpublishable_rows_are_found_before_publishing(env: Environment) -> None:
    def problems(rows: list[dict[str, Any]], **output: Any) -> list[str]:
        given = {"topic": env.topic, **output}
        return env.sink.check(stage(env.settings, given, rows, saga=f"bad-{len(output)}-{rows[0]}"[:60]))

    assert "no column nix" in problems([{"id": 1}], key="nix")[0]
    assert "JSON has no such number" in problems([{"id": float("nan")}])[0]
    assert "bytes as an event" in problems([{"id": "x" * 1_100_000}])[0]
    assert "is not an event" in problems([{"text": "no json"}], value="text")[0]
    assert "cannot be used" in problems([{"id": 1}], topic="nowhere")[0]


def test_a_column_is_the_value_and_an_empty_output_is_published(env: Environment) -> None:
    rows = [{"id": 1, "body": '{"id": 7}'}]
    env.publish(env.stage(rows, files=1, output={"value": "body"}))
    assert env.ids() == [7]
    empty = stage(env.settings, {"topic": env.topic}, [], saga="empty", files=0)
    assert not env.publish(empty).adopted
    assert env.publish(empty).adopted
    env.sink.revert([empty], together=False)


def test_a_topic_is_read_between_fixed_offsets(env: Environment, tmp_path: Path) -> None:
    env.publish(env.stage())
    producer = TransactionalProducer(env.settings.kafka, f"other-{env.topic}").fence_and_open()
    with pytest.raises(Killed):
        producer.write(aborted(env.topic))
    producer.close()
    uri = (tmp_path / "inputs" / "events.parquet").as_uri()
    frozen_topic = freeze_topic(env.settings, "events", {"topic": env.topic}, uri, lambda _: None)
    env.kafka.produce(env.topic, {"id": 99}, key="late")
    rows = pq.read_table(tmp_path / "inputs" / "events.parquet").to_pylist()
    assert frozen_topic["rows"] == 6
    assert sorted(json.loads(row["value"])["id"] for row in rows) == [0, 1, 2, 3, 4, 5]
    assert dict(rows[0]["headers"])["sagaid"] == "s1"
    offsets = frozen_topic["fingerprint"]["offsets"]
    assert all(row["offset"] < offsets[str(row["partition"])][1] for row in rows)
    later = {"topic": env.topic, "since": "2999-01-01T00:00:00Z"}
    assert freeze_topic(env.settings, "events", later, uri, lambda _: None)["rows"] == 0
    with pytest.raises(JobFailed, match="cannot be read"):
        freeze_topic(env.settings, "events", {"topic": "nowhere"}, uri, lambda _: None)


@pytest.mark.slow
def test_a_topic_is_not_read_to_an_open_transaction(env: Environment, tmp_path: Path) -> None:
    hurried = env.settings.kafka.model_copy(update={"transaction_timeout": 1.0})
    settings = env.settings.model_copy(update={"kafka": hurried})
    uri = (tmp_path / "inputs" / "events.parquet").as_uri()
    with env.kafka.open_transaction(env.topic):
        env.kafka.produce(env.topic, {"id": 1})
        with pytest.raises(InfrastructureError, match="cannot be read yet, behind an open transaction in"):
            freeze_topic(settings, "events", {"topic": env.topic}, uri, lambda _: None)
    assert freeze_topic(settings, "events", {"topic": env.topic}, uri, lambda _: None)["rows"] == 1


def test_a_topic_that_is_created_again_while_it_is_read_is_not_an_input(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets of the range are those of another topic, which has records there, too."""
    honest = kafka_input.read_ranges
    env.kafka.produce(env.topic, {"id": 1}, key="a")

    def read_another(*args: Any) -> Iterator[Any]:
        env.kafka.delete_topic(env.topic)
        env.kafka.create_topic(env.topic, partitions=2)
        env.kafka.produce(env.topic, {"id": 2}, key="a")
        yield from honest(*args)

    uri = (tmp_path / "inputs" / "events.parquet").as_uri()
    with monkeypatch.context() as patch:
        patch.setattr(kafka_input, "read_ranges", read_another)
        with pytest.raises(InfrastructureError, match="was deleted and created again while it was read"):
            freeze_topic(env.settings, "events", {"topic": env.topic}, uri, lambda _: None)
    assert freeze_topic(env.settings, "events", {"topic": env.topic}, uri, lambda _: None)["rows"] == 1
    assert pq.read_table(tmp_path / "inputs/events.parquet")["value"].to_pylist() == ['{"id":2}']


def test_a_topic_that_is_truncated_while_it_is_read_is_not_an_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition has grown again, so the offsets of the range are those of other records."""
    honest = kafka_input.read_ranges
    with BrokerProcess(tmp_path / "kafka") as broker:
        topic = broker.create_topic()
        broker.produce(topic, 1)
        restore = keep_partition(broker, tmp_path / "kafka", topic)
        broker.produce(topic, 2)

        def read_others(*args: Any) -> Iterator[Any]:
            restore()
            broker.produce(topic, 3, 4)
            yield from honest(*args)

        settings = SparkSettings(root=tmp_path, stage=(tmp_path / "stage").as_uri(), kafka=broker.settings())
        uri = (tmp_path / "inputs" / "events.parquet").as_uri()
        with monkeypatch.context() as patch:
            patch.setattr(kafka_input, "read_ranges", read_others)
            with pytest.raises(InfrastructureError, match="was truncated while it was read"):
                freeze_topic(settings, "events", {"topic": topic}, uri, lambda _: None)
        assert freeze_topic(settings, "events", {"topic": topic}, uri, lambda _: None)["rows"] == 3


def test_a_dead_letter_that_is_sent_again_is_no_input_and_no_event_of_the_outbox(
    env: Environment, tmp_path: Path
) -> None:
    kafka, now = env.settings.kafka, time.time()
    with ParquetRowWriter(tmp_path / "outbox" / "shop.parquet", OUTBOX_SCHEMA) as rows:
        rows.add("shop", "s1", "a", 1, "e1", env.topic, "PUBLISHED", now, now, False)
    headers = {"ce_id": "e1", "ce_source": f"/{kafka.prefix}/shop", "sagaid": "s1", "sagastep": "a"}
    resent = {**headers, "ce_id": "resent", "sagadlqtopic": env.topic, "sagadlqgroup": "saga-consumer-mended"}
    env.kafka.produce(env.topic, {"id": 1}, headers=headers)
    env.kafka.produce(env.topic, {"id": 2}, headers=resent)
    env.kafka.produce(env.topic, {"id": 3}, headers={**resent, "sagadlqtopic": "another"})
    read_topics(kafka, tmp_path, ReconciliationScope(), now, {"shop": "shop"})
    assert sorted(pq.read_table(tmp_path / RECORDS_FILE)["event_id"].to_pylist()) == ["e1", "resent"]
    uri = (tmp_path / "inputs" / "events.parquet").as_uri()
    assert freeze_topic(env.settings, "events", {"topic": env.topic}, uri, lambda _: None)["rows"] == 2
    assert sorted(pq.read_table(tmp_path / "inputs/events.parquet")["value"].to_pylist()) == ['{"id":1}', '{"id":3}']


def aborted(topic: str) -> Iterator[PartitionRecord]:
    yield topic, 0, EncodedRecord(b'{"id": -1}')
    raise Killed


@pytest.mark.slow
def test_reconciliation_reads_committed_rows(env: Environment, tmp_path: Path) -> None:
    kafka, now = env.settings.kafka, time.time()
    with ParquetRowWriter(tmp_path / "outbox" / "shop.parquet", OUTBOX_SCHEMA) as rows:
        for topic in (env.topic, "not-there"):
            rows.add("shop", "s1", "a", 1, f"e-{topic}", topic, "PUBLISHED", now, now, False)
    producer = TransactionalProducer(kafka, f"relay-{env.topic}").fence_and_open()
    for source in (f"/{kafka.prefix}/shop", "/others/shop"):
        event = encode("1", id="e1", type="t", source=source, time=now, saga_id="s1", step="a")
        producer.write([(env.topic, -1, event)])
    producer.close()
    topics = read_topics(kafka, tmp_path, ReconciliationScope(), now, {"shop": "shop"})
    assert topics is not None
    assert (topics.rows, topics.floors) == (1, {env.topic: 0.0})
    [record] = pq.read_table(tmp_path / RECORDS_FILE).to_pylist()
    assert (record["connection"], record["event_id"], record["topic"]) == ("shop", "e1", env.topic)
    with env.kafka.open_transaction(env.topic):
        again = TransactionalProducer(kafka, f"relay-{env.topic}").fence_and_open()
        event = encode("1", id="e2", type="t", source=f"/{kafka.prefix}/shop", time=now, saga_id="s1", step="a")
        again.write([(env.topic, 0, event)])
        again.close()
        hurried = kafka.model_copy(update={"transaction_timeout": 1.0})
        topic_rows = read_topics(hurried, tmp_path, ReconciliationScope(), now, {"shop": "shop"})
        records = pq.read_table(tmp_path / RECORDS_FILE).to_pylist()
        assert {(record["event_id"], record["is_hidden"]) for record in records} == {("e1", False), ("e2", True)}
        assert topic_rows is not None
        assert topic_rows.compared == 1
    other = read_topics(kafka, tmp_path, ReconciliationScope(saga_id="s2"), now, {"shop": "shop"})
    assert other is not None
    assert other.rows == 0
