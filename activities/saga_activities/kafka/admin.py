"""Inspects a Kafka cluster and creates topics. All calls block: call them from a thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from saga_activities.kafka.config import admin_config, consumer_config, producer_config
from saga_activities.kafka.errors import KafkaErrorInfo, classify_kafka_error, kafka_error_info
from sagas.errors import SagaError, UsageError
from sagas.settings import KafkaSettings

ADMIN_TIMEOUT = 15.0
"""Seconds until a cluster that does not respond counts as down."""

CleanupPolicy = Literal["delete", "compact"]
T = TypeVar("T")


class KafkaOperationError(SagaError):
    """Kafka cannot be used. ``error_info`` is the client's error, None if it is not known."""

    def __init__(self, message: str, *, help: str | None = None, error_info: KafkaErrorInfo | None = None) -> None:
        super().__init__(message, help=help)
        self.error_info = error_info


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """An existing topic. ``retention`` is in seconds, None: forever. Without the right to DESCRIBE_CONFIGS,
    ``cleanup_policy`` and ``retention`` are None."""

    name: str
    partitions: int
    replicas: int
    cleanup_policy: str | None = None
    retention: float | None = None


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """A topic as it is now. ``id`` is another one after it was deleted and created again, see ``topic_id``."""

    id: str
    partitions: int


TopicIdentities = tuple[dict[str, TopicIdentity], dict[str, str]]
"""The topics that can be used, and for each other one the reason."""


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """One partition: log start, last stable offset (below it all transactions are decided) and high watermark.

    ``epoch``: that of its leader; negative if the brokers do not tell it.
    """

    log_start: int
    last_stable: int
    high_watermark: int
    epoch: int = field(default=-1, compare=False)

    @property
    def undecided_records(self) -> int:
        """The number of offsets that an open transaction holds back."""
        return self.high_watermark - self.last_stable


_URL_SAFE = str.maketrans("+/", "-_")

_ID_PAUSES = (0.05, 0.2, 0.5)
"""Seconds before the brokers are asked again for the id of a topic that they have described without one."""


class KafkaAdmin:
    """An admin client for one cluster; cheap to create, connected on first use.

    Every method raises :class:`KafkaOperationError` if the cluster is unreachable or refuses.
    """

    def __init__(self, settings: KafkaSettings, *, timeout: float = ADMIN_TIMEOUT) -> None:
        properties = admin_config(settings)
        from confluent_kafka import KafkaException, admin

        self.settings = settings
        self._library: Any = admin
        self._timeout = timeout
        self._client_errors: list[KafkaErrorInfo] = []
        self._gives_ids = False
        try:
            self._admin: Any = self._library.AdminClient({**properties, "error_cb": self._on_error, "log_level": 0})
        except KafkaException as error:
            raise UsageError(f"kafka.client: {kafka_error_info(error).text}") from None

    def _on_error(self, error: Any) -> None:
        """The reason for a failed connection is only reported here; the waiting call just times out.

        It becomes part of the KafkaOperationError; the library's log, a line for each attempt, is switched off.
        """
        failure = kafka_error_info(error)
        if failure.name == "_TRANSPORT" and "SSL handshake" in failure.text:
            failure = replace(failure, name="_SSL")
        self._client_errors.append(failure)

    # ── queries ─────────────────────────────────────────────────────────────────────────────────────────

    def topics(self) -> dict[str, int]:
        """The visible topics, with their number of partitions."""
        topics = self._metadata().topics
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}

    def broker_count(self) -> int:
        return len(self._metadata().brokers)

    def unusable_topics(self, names: Collection[str]) -> dict[str, str]:
        """Return those of ``names`` that cannot be used, with the reason."""
        lost: dict[str, str] = {}
        for name in names:
            # One by one: a request for all topics does not distinguish hidden topics from missing ones.
            error = self._metadata(name).topics[name].error
            if error is not None:
                lost[name] = classify_kafka_error(error).reason
        return lost

    def describe(self, name: str) -> TopicDescription:
        """A topic with its configuration."""
        topic = self._metadata(name).topics[name]
        if topic.error is not None:
            raise _operation_error(f"topic {name}", kafka_error_info(topic.error))
        partitions = topic.partitions
        replicas = len(partitions[0].replicas) if partitions else 0
        resource = self._library.ConfigResource("topic", name)
        try:
            config = self._result(f"topic {name}", lambda: self._admin.describe_configs([resource])[resource])
        except KafkaOperationError as problem:
            if problem.error_info is None or not problem.error_info.name.endswith("AUTHORIZATION_FAILED"):
                raise
            return TopicDescription(name, len(partitions), replicas)
        retention_ms = int(config["retention.ms"].value)
        return TopicDescription(
            name,
            len(partitions),
            replicas,
            config["cleanup.policy"].value,
            None if retention_ms < 0 else retention_ms / 1000,
        )

    def offsets(self, name: str) -> dict[int, PartitionOffsets]:
        """The offsets of every partition."""
        from confluent_kafka import IsolationLevel, TopicPartition

        committed, everything = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
        partitions = list(self._metadata(name).topics[name].partitions)
        listings: list[dict[int, Any]] = []
        for spec, level in (
            (self._library.OffsetSpec.earliest(), everything),
            (self._library.OffsetSpec.latest(), committed),
            (self._library.OffsetSpec.latest(), everything),
        ):
            specs = {TopicPartition(name, partition): spec for partition in partitions}
            listings.append(
                self._call(f"topic {name}", lambda specs=specs, level=level: self._list_offsets(specs, level))
            )
        return {
            partition: PartitionOffsets(
                *(listing[partition].offset for listing in listings), epoch=_epoch(listings[-1][partition])
            )
            for partition in partitions
        }

    def _list_offsets(self, specs: Any, level: Any) -> dict[int, Any]:
        futures = self._admin.list_offsets(specs, isolation_level=level, request_timeout=self._timeout)
        return {key.partition: future.result(self._timeout) for key, future in futures.items()}

    def authorized_operations(self, name: str) -> set[str]:
        """The operations that this client is authorized for: READ, WRITE, DESCRIBE …"""
        description = self._describe(name, include_authorized_operations=True)
        return {authorized_operation.name for authorized_operation in description.authorized_operations or []}

    def topic_id(self, name: str) -> str:
        """The id of a topic, which is another one after it was deleted and created again; empty if brokers before 2.8
        have none. As Kafka's own tools write it: base64 with ``-`` and ``_``, where the client library has ``+`` and
        ``/``, which would end the id in the header of a bridge.

        Raises KafkaOperationError also if brokers that have ids do not tell this one.
        """
        # The library asks a broker in an old way, without ids, until it knows what the broker understands.
        for pause in (0.0, *_ID_PAUSES):
            time.sleep(pause)
            if topic_id := _topic_id(self._describe(name)):
                self._gives_ids = True
                return topic_id
        if self._gives_ids:
            raise KafkaOperationError(f"topic {name}: the brokers have not told its id")
        return ""

    def identify(self, names: Collection[str], timeout: float) -> TopicIdentities:
        """Identify topics in one request; second, those that cannot be used, with the reason."""
        return self.begin_identify(names, timeout)()

    def begin_identify(self, names: Collection[str], timeout: float) -> Callable[[], TopicIdentities]:
        """Send the request of :meth:`identify`; the function that is returned waits for the answer."""
        sent = [self._request_descriptions(names, timeout)]

        def answer() -> TopicIdentities:
            return _identities(sent.pop() if sent else self._request_descriptions(names, timeout), timeout)

        return lambda: self._call("topics", answer)

    def _request_descriptions(self, names: Collection[str], timeout: float) -> Mapping[str, Future[Any]]:
        from confluent_kafka import TopicCollection

        return self._admin.describe_topics(TopicCollection([*names]), request_timeout=timeout)

    def _describe(self, name: str, **options: Any) -> Any:
        from confluent_kafka import TopicCollection

        return self._result(
            f"topic {name}",
            lambda: self._admin.describe_topics(TopicCollection([name]), request_timeout=self._timeout, **options)[
                name
            ],
        )

    def check_transactions(self, id: str | None = None) -> None:
        """Initialize a transactional producer under an otherwise unused id: checks ACLs and transaction timeout."""
        from confluent_kafka import KafkaException, Producer

        producer = Producer(producer_config(self.settings, transactional_id=id or f"{self.settings.prefix}-doctor"))
        try:
            producer.init_transactions(self._timeout)
        except KafkaException as error:
            raise _operation_error("transactions", kafka_error_info(error), self.settings) from None

    def committed_offsets(self, group: str, topic: str) -> dict[int, int]:
        """The committed offsets of a consumer group: partition → the next offset; absent: none committed."""
        return {partition: offset for partition, (offset, _) in self.committed_positions(group, topic).items()}

    def committed_positions(self, group: str, topic: str) -> dict[int, tuple[int, str]]:
        """The committed offsets with their metadata."""
        from confluent_kafka import Consumer, TopicPartition

        partitions = [TopicPartition(topic, partition) for partition in self._metadata(topic).topics[topic].partitions]
        # Uses a consumer that does not join the group: because of a bug of the library, the admin client's own call
        # crashes the process when the coordinator does not respond at once.
        consumer = Consumer({**consumer_config(self.settings, group), "log_level": 0})
        try:
            committed = self._call(f"group {group}", lambda: consumer.committed(partitions, self._timeout))
        except KafkaOperationError:
            self._described_group(group)  # without a right to the group, the library waits for its coordinator
            raise
        finally:
            consumer.close()
        return {
            position.partition: (position.offset, position.metadata or "")
            for position in committed
            if position.offset >= 0
        }

    def _described_group(self, group: str) -> Any:
        return self._result(
            f"group {group}",
            lambda: self._admin.describe_consumer_groups([group], request_timeout=self._timeout)[group],
        )

    def groups(self, prefix: str) -> list[str]:
        """The consumer groups whose names begin with ``prefix``, as far as this client may see them."""
        return sorted(group.group_id for group in self._groups() if group.group_id.startswith(prefix))

    def has_members(self, group: str) -> bool:
        """Return whether a process is a member of the consumer group now."""
        from confluent_kafka import ConsumerGroupState

        without = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
        return any(listed.group_id == group and listed.state not in without for listed in self._groups())

    def is_read_by(self, group: str, topic: str) -> bool:
        """Return whether a member of the consumer group has a partition of the topic, or the group is assigning now."""
        from confluent_kafka import ConsumerGroupState

        described = self._described_group(group)
        return described.state != ConsumerGroupState.STABLE or any(
            place.topic == topic for member in described.members for place in member.assignment.topic_partitions
        )

    def _groups(self) -> Any:
        listed = self._result(
            "consumer groups", lambda: self._admin.list_consumer_groups(request_timeout=self._timeout)
        )
        return listed.valid

    # ── changes ─────────────────────────────────────────────────────────────────────────────────────────

    def ensure_topic(
        self, name: str, partitions: int | None = None, *, cleanup_policy: CleanupPolicy = "delete"
    ) -> bool:
        """Create a topic unless it exists; returns whether it was created. An existing topic is not changed.

        Without ``partitions`` the broker's default applies (``num.partitions``); the replication factor is always the
        default. A topic of events is never compacted: a later event of the same key would replace an earlier one.
        """
        if name in self.topics():
            return False
        topic = self._library.NewTopic(name, partitions or -1, -1, config=self.topic_config(cleanup_policy))
        try:
            self._result(
                f"topic {name}", lambda: self._admin.create_topics([topic], request_timeout=self._timeout)[name]
            )
        except KafkaOperationError as problem:
            if problem.error_info is not None and problem.error_info.name == "TOPIC_ALREADY_EXISTS":
                return False
            raise
        self._await_leaders(name)
        return True

    def topic_config(self, cleanup_policy: CleanupPolicy) -> dict[str, str]:
        """The configuration of a topic that is created here."""
        if cleanup_policy == "compact":
            return {"cleanup.policy": "compact"}
        return {"cleanup.policy": "delete", "retention.ms": str(round(self.settings.retention * 1000))}

    def _await_leaders(self, name: str) -> None:
        end = time.monotonic() + self._timeout
        while time.monotonic() < end:
            topic = self._metadata(name).topics[name]
            if topic.partitions and all(partition.leader >= 0 for partition in topic.partitions.values()):
                return
            time.sleep(0.05)
        raise KafkaOperationError(f"Kafka: the topic {name} was created, but has no leader yet; try again")

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────────

    def _metadata(self, topic: str | None = None) -> Any:
        """The cluster's metadata. Short calls are repeated, so that a refusal is noticed before the timeout."""
        step = min(2.0, self._timeout)
        return self._call("the cluster", lambda: self._admin.list_topics(topic, timeout=step), repeat=_NO_RESPONSE)

    def _result(self, what: str, call: Callable[[], Any]) -> Any:
        """The result of a call that returns a future."""
        return self._call(what, lambda: call().result(self._timeout))

    def _call(self, what: str, call: Callable[[], T], *, repeat: tuple[str, ...] = ()) -> T:
        from confluent_kafka import KafkaException

        end = time.monotonic() + self._timeout
        self._client_errors.clear()
        while True:
            try:
                return call()
            except KafkaException as error:
                failure = kafka_error_info(error)
            except TimeoutError:
                failure = KafkaErrorInfo("_TIMED_OUT", "Timed out")
            self._admin.poll(0)
            if failure.name in _NO_RESPONSE:
                failure = next(
                    (client_error for client_error in self._client_errors if client_error.name in _REFUSALS),
                    (self._client_errors or [failure])[-1],
                )
            # A coordinator that has just moved or started still loads its state.
            retriable = classify_kafka_error(failure).action == "retry" or failure.name in repeat
            if not retriable or time.monotonic() > end:
                raise _operation_error(what, failure, self.settings)
            time.sleep(0.1)


def _identities(descriptions: Mapping[str, Future[Any]], timeout: float) -> TopicIdentities:
    from confluent_kafka import KafkaException

    identities: dict[str, TopicIdentity] = {}
    unusable: dict[str, str] = {}
    for name, future in descriptions.items():
        try:
            description = future.result(timeout)
        except KafkaException as error:
            failure = kafka_error_info(error)
            if failure.name.startswith("_"):  # not a word of the brokers about this topic
                raise
            unusable[name] = classify_kafka_error(failure).reason
        else:
            identities[name] = TopicIdentity(_topic_id(description), len(description.partitions))
    return identities, unusable


def _epoch(end: Any) -> int:
    return -1 if end.leader_epoch is None else end.leader_epoch


def _topic_id(description: Any) -> str:
    topic_id = description.topic_id
    if topic_id is None or not topic_id.get_most_significant_bits():
        return ""
    return str(topic_id).translate(_URL_SAFE)


_NO_RESPONSE = ("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN")
_REFUSALS = ("_AUTHENTICATION", "_SSL", "_RESOLVE")


def _operation_error(
    what: str, error_info: KafkaErrorInfo, settings: KafkaSettings | None = None
) -> KafkaOperationError:
    verdict = classify_kafka_error(error_info)
    if settings is not None and error_info.name in (*_NO_RESPONSE, *_REFUSALS):
        help = (
            "check [kafka.client] in saga.toml"
            if verdict.action == "refused"
            else "run saga dev up, or check bootstrap_servers"
        )
        return KafkaOperationError(
            f"Kafka at {settings.servers} cannot be used: {verdict.reason}", help=help, error_info=error_info
        )
    return KafkaOperationError(f"Kafka, {what}: {verdict.reason}", error_info=error_info)
