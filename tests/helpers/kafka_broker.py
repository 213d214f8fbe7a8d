"""A real Kafka broker for tests: in its own folder, on free ports, killed, frozen and started again by process id."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from saga_workers.devstack.kafka_server import KAFKA_JARS, KafkaServer, KafkaUnavailableError, create_class_archive
from sagas.settings import KafkaSettings
from sagas.text.exact_json import decode_json, encode_json
from tests.helpers.free_ports import free_ports
from tests.helpers.processes import Process
from tests.helpers.waiting import LIMIT


@dataclass(frozen=True, slots=True)
class Record:
    """One record as a consumer sees it. ``headers`` are strings."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes
    headers: Mapping[str, str]

    def json(self) -> Any:
        return decode_json(self.value)


class Broker:
    """A broker as tests use it: topics and records. ``client`` are the properties with which it connects."""

    def __init__(self, address: str, client: Mapping[str, str] | None = None) -> None:
        self.address = address
        self.client = dict(client or {})

    def settings(self, **more: Any) -> KafkaSettings:
        """Settings that name this broker, with a prefix of their own unless one is given."""
        own: dict[str, Any] = {"bootstrap_servers": self.address, "prefix": f"t{uuid.uuid4().hex[:8]}"}
        return KafkaSettings(configured=True, **{**own, **more})

    def create_topic(
        self, name: str | None = None, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Make a topic and wait until it can be used; returns its name (a new one unless given)."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        name = name or f"topic-{uuid.uuid4().hex[:8]}"
        admin = AdminClient(self._client())
        topic = NewTopic(name, partitions, 1, config=dict(config or {}))
        admin.create_topics([topic], operation_timeout=LIMIT)[name].result(LIMIT)
        end = time.monotonic() + LIMIT
        while not _has_leaders(admin, name, partitions):
            assert time.monotonic() < end, f"no leader for {name}"
            time.sleep(0.05)
        return name

    def produce(
        self, topic: str, *values: Any, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Write records outside any transaction: JSON, or bytes as they are."""
        from confluent_kafka import Producer

        producer = Producer({**self._client(), "enable.idempotence": True})
        failed: list[Any] = []
        for value in values:
            producer.produce(
                topic,
                value if isinstance(value, bytes) else encode_json(value),
                key,
                headers=dict(headers or {}),
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert producer.flush(LIMIT) == 0
        assert not failed, failed

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        """Delete records as the topic's retention does: the records before an offset are gone."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient

        admin: Any = AdminClient(self._client())
        for done in admin.delete_records([TopicPartition(topic, partition, before)]).values():
            done.result(LIMIT)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        from confluent_kafka.admin import AdminClient

        admin: Any = AdminClient(self._client())
        admin.delete_topics([topic], operation_timeout=LIMIT)[topic].result(LIMIT)
        end = time.monotonic() + LIMIT
        while topic in self.topics():
            assert time.monotonic() < end, f"{topic} is still there"
            time.sleep(0.05)

    def add_partitions(self, topic: str, total: int) -> None:
        """Give a topic more partitions, and wait until they can be used."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewPartitions

        admin: Any = AdminClient(self._client())
        admin.create_partitions([NewPartitions(topic, total)])[topic].result(LIMIT)
        end = time.monotonic() + LIMIT
        while not _has_leaders(admin, topic, total):
            assert time.monotonic() < end, f"{topic} does not have {total} partitions"
            time.sleep(0.05)

    @contextlib.contextmanager
    def open_transaction(self, topic: str, partitions: int = 1) -> Iterator[None]:
        """A transaction of another team with a record in each partition; it is aborted at the end."""
        from confluent_kafka import Producer

        own = {"transactional.id": f"others-{uuid.uuid4()}", "transaction.timeout.ms": 600_000}
        producer = Producer({**self._client(), **own})
        producer.init_transactions(LIMIT)
        producer.begin_transaction()
        for partition in range(partitions):
            producer.produce(topic, b'"of others"', partition=partition)
        assert producer.flush(LIMIT) == 0
        try:
            yield
        finally:
            producer.abort_transaction(LIMIT)

    def read_committed(self, *topics: str, settle: float = 10.0) -> list[Record]:
        """All that a read_committed consumer sees up to the last stable offset, in the order of each partition.

        A commit returns before its markers are written, so transactions get ``settle`` seconds to end first.
        """
        end = time.monotonic() + settle
        while not self.is_settled(*topics) and time.monotonic() < end:
            time.sleep(0.05)
        return self._read(topics, "read_committed")

    def is_settled(self, *topics: str) -> bool:
        """True when no transaction is open: last stable offset and high watermark are the same everywhere.

        A partition of a new topic has no leader for a moment.
        """
        from confluent_kafka import KafkaError, KafkaException

        try:
            return all(stable == high for topic in topics for stable, high in self.offsets(topic).values())
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            return False

    def read_uncommitted(self, *topics: str) -> list[Record]:
        """All records, with those of open and aborted transactions, up to the high watermark."""
        return self._read(topics, "read_uncommitted")

    def _client(self) -> dict[str, Any]:
        # The library writes to standard error otherwise, for as long as a broker is down.
        return {"bootstrap.servers": self.address, "log_level": 1, **self.client}

    def _read(self, topics: Sequence[str], isolation: str) -> list[Record]:
        from confluent_kafka import Consumer, TopicPartition

        last = {
            (topic, partition): high if isolation == "read_uncommitted" else stable
            for topic in topics
            for partition, (stable, high) in self.offsets(topic).items()
        }
        consumer = Consumer(
            {
                **self._client(),
                "group.id": f"reader-{uuid.uuid4()}",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        records: list[Record] = []
        try:
            # The position includes records of aborted transactions, which are skipped.
            consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in last])
            ended = {place for place, offset in last.items() if offset == 0}
            end = time.monotonic() + LIMIT
            while ended < set(last):
                assert time.monotonic() < end, f"not read to the end: {set(last) - ended}"
                message = consumer.poll(1.0)
                if message is None:
                    continue
                place = (message.topic() or "", message.partition() or 0)
                error = message.error()
                if error is not None:
                    assert error.name() == "_PARTITION_EOF", error
                    [position] = consumer.position([TopicPartition(*place)])
                    if max(position.offset, message.offset() or 0) >= last[place]:
                        ended.add(place)
                elif (message.offset() or 0) < last[place]:
                    records.append(_record(message))
        finally:
            consumer.close()
        return records

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Partition → (last stable offset, high watermark). They differ while a transaction is open."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.admin._listoffsets import OffsetSpec

        admin = AdminClient(self._client())
        partitions = list(admin.list_topics(topic, LIMIT).topics[topic].partitions)
        asked: Any = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in partitions}
        offsets: dict[int, list[int]] = {partition: [] for partition in partitions}
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            for place, answer in admin.list_offsets(asked, isolation_level=level, request_timeout=LIMIT).items():
                offsets[place.partition].append(answer.result(LIMIT).offset)
        return {partition: (stable, high) for partition, (stable, high) in offsets.items()}

    def topics(self) -> set[str]:
        from confluent_kafka.admin import AdminClient

        return set(AdminClient(self._client()).list_topics(timeout=LIMIT).topics)


class BrokerProcess(Broker, Process):
    """One broker that is its own controller; `kill` and `start` keep its data.

    ``advertised`` is the port announced to clients instead of the broker's own (a proxy's): they connect only there.
    ``more`` are overriding broker properties, in which `{port}` and `{controller}` stand for its own ports.
    """

    def __init__(
        self,
        folder: Path,
        *,
        advertised: int | None = None,
        more: Mapping[str, str] | None = None,
        client: Mapping[str, str] | None = None,
        name: str = "kafka",
    ) -> None:
        try:
            jars = KAFKA_JARS.fetch(print)
            create_class_archive(jars)
        except KafkaUnavailableError as error:
            pytest.skip(f"Kafka: {error.message}")
        ports = free_ports("port", "controller")
        own = {"group.min.session.timeout.ms": "1000"}
        if advertised is not None:
            own["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{advertised}"
        for key, value in (more or {}).items():
            own[key] = value.replace("{port}", str(ports["port"])).replace("{controller}", str(ports["controller"]))
        self.server = KafkaServer(folder, jars, ports["port"], ports["controller"], own)
        self.server.prepare()
        self.port = ports["port"]
        Broker.__init__(self, self.server.address, client)
        Process.__init__(self, name, self.server.argv(), folder, self.server.is_ready)


def _has_leaders(admin: Any, topic: str, partitions: int) -> bool:
    metadata = admin.list_topics(topic, LIMIT).topics[topic].partitions
    return len(metadata) == partitions and all(partition.leader >= 0 for partition in metadata.values())


def _record(message: Any) -> Record:
    key = None if message.key() is None else message.key().decode(errors="backslashreplace")
    headers = {name: value.decode(errors="backslashreplace") for name, value in message.headers() or []}
    return Record(message.topic(), message.partition(), message.offset(), key or None, message.value(), headers)
