"""Queries and changes of the engine in a cluster, against a real broker."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError, PartitionOffsets
from saga_activities.kafka.config import consumer_config, producer_config
from saga_workers.trigger.bridge_output import BridgeSource
from sagas.errors import UsageError
from sagas.settings import KafkaSettings
from tests.helpers.free_ports import free_port
from tests.helpers.kafka_broker import Broker


def name() -> str:
    return f"topic-{uuid.uuid4().hex[:8]}"


def test_an_event_topic_is_deleted_by_age_and_never_compacted(kafka: Broker) -> None:
    cluster, topic = KafkaAdmin(kafka.settings(retention=172_800.0)), name()
    assert cluster.ensure_topic(topic, 3)
    assert not cluster.ensure_topic(topic, 7)  # it is there, and stays as it is
    description = cluster.describe(topic)
    assert (description.partitions, description.replicas, description.cleanup_policy, description.retention) == (
        3,
        1,
        "delete",
        172_800.0,
    )
    assert cluster.topics()[topic] == 3
    assert cluster.broker_count() == 1


def test_the_number_of_partitions_may_be_the_broker_default(kafka: Broker) -> None:
    cluster, topic = KafkaAdmin(kafka.settings()), name()
    assert cluster.ensure_topic(topic)
    assert cluster.describe(topic).partitions == 4


def test_a_progress_topic_is_compacted(kafka: Broker) -> None:
    cluster, topic = KafkaAdmin(kafka.settings()), name()
    cluster.ensure_topic(topic, 4, cleanup_policy="compact")
    assert cluster.describe(topic).cleanup_policy == "compact"


def test_a_topic_id_is_the_one_that_kafka_prints_and_fits_into_a_bridge_header(kafka: Broker) -> None:
    """The client library writes an id in base64 with a slash in a third of all topics, Kafka's tools never."""
    admin, cluster = AdminClient({"bootstrap.servers": kafka.address}), KafkaAdmin(kafka.settings())
    for _ in range(100):
        topic = kafka.create_topic()
        written = str(admin.describe_topics(TopicCollection([topic]))[topic].result().topic_id)
        if "/" in written:
            break
    else:
        pytest.fail("no id of 100 topics has a slash")
    id = cluster.topic_id(topic)
    assert id == written.replace("/", "_").replace("+", "-")
    source = BridgeSource("a/group", topic, 3, 14, id)
    assert BridgeSource.parse(str(source)) == source


def test_missing_topics_are_reported_with_the_reason(kafka: Broker) -> None:
    cluster, here, absent = KafkaAdmin(kafka.settings()), kafka.create_topic(), name()
    [(lost, reason)] = cluster.unusable_topics([here, absent]).items()
    assert lost == absent
    assert reason.startswith("the topic does not exist")
    with pytest.raises(KafkaOperationError, match=f"topic {absent}: the topic does not exist"):
        cluster.describe(absent)


def test_an_open_transaction_holds_back_the_last_stable_offset(kafka: Broker) -> None:
    settings, topic = kafka.settings(), kafka.create_topic(partitions=2)
    cluster = KafkaAdmin(settings)
    producer = Producer(producer_config(settings, transactional_id=f"{settings.prefix}-x"))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"1", partition=1)
    producer.flush(30)
    assert cluster.offsets(topic) == {0: PartitionOffsets(0, 0, 0), 1: PartitionOffsets(0, 0, 1)}
    assert cluster.offsets(topic)[1].undecided_records == 1
    producer.commit_transaction(30)
    assert len(kafka.read_committed(topic)) == 1
    assert cluster.offsets(topic)[1].undecided_records == 0


def test_the_lag_of_a_group_is_read(kafka: Broker) -> None:
    settings, topic = kafka.settings(), kafka.create_topic()
    kafka.produce(topic, 1, 2, 3)
    group = f"{settings.prefix}-reader"
    assert KafkaAdmin(settings).committed_offsets(group, topic) == {}
    consumer = Consumer(consumer_config(settings, group))
    consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    consumer.close()
    assert KafkaAdmin(settings).committed_offsets(group, topic) == {0: 2}


def test_an_unreachable_broker_gives_a_one_line_error() -> None:
    port = free_port()
    cluster = KafkaAdmin(KafkaSettings(bootstrap_servers=f"127.0.0.1:{port}"), timeout=2.0)
    with pytest.raises(KafkaOperationError, match=f"Kafka at 127.0.0.1:{port} cannot be used: .*refused") as caught:
        cluster.topics()
    assert "\n" not in caught.value.message
    assert caught.value.help


def test_an_unknown_client_property_gives_a_one_line_error() -> None:
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1", client={"sasl.pasword": "x"})
    with pytest.raises(UsageError, match=r"kafka\.client: .*sasl\.pasword"):
        KafkaAdmin(settings)
