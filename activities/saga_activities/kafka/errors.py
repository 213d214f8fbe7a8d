"""Classifies errors of Kafka, so that every producer and consumer reacts alike.

| error | verdict |
|---|---|
| the coordinator moves, loads, or still completes an earlier transaction | retry: repeat the same call |
| the broker or the client says that the transaction cannot continue | abort: abort it, then repeat its work |
| a newer producer has the transactional id | rebuild, ``fenced``: another process may own the shard now |
| the outcome is unknown: timeouts, lost connections, a state unknown to the broker | rebuild |
| too large, not authorized, does not exist, wrong credentials | refused: only an operator can change that |

After *rebuild* the producer is never used again: with librdkafka's protocol version, a commit in flight could end a
later transaction. A new producer's ``init_transactions`` first ends the old one's transaction; its outcome is then
read, not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException

ErrorReaction = Literal["retry", "abort", "rebuild", "refused"]
RefusalScope = Literal["event", "topic", "client", "setting"]


@dataclass(frozen=True, slots=True)
class KafkaErrorInfo:
    """A KafkaError as a value. ``name`` is librdkafka's; a leading ``_`` marks errors of the client itself."""

    name: str
    text: str = ""
    retriable: bool = False
    requires_abort: bool = False
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class ErrorVerdict:
    """The reaction to an error. ``scope`` says what is refused: one event, one topic, or (``client``) everything.

    ``setting``: everything, until this process is restarted; other refusals may be fixed while it runs.
    """

    action: ErrorReaction
    reason: str
    scope: RefusalScope | None = None
    fenced: bool = False


_CLIENT_PREFIX = re.compile(r"^(Broker: |Local: )|^\S+/\S+: | \(after \d+ms in state \w+.*\)$")
"""The part that librdkafka adds to a reason: the origin, the connection, and the elapsed time."""

_FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "FENCED_INSTANCE_ID"}

_UNKNOWN_OUTCOME = {
    "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_MSG_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_FAIL", "_RESOLVE",
    "REQUEST_TIMED_OUT", "NETWORK_EXCEPTION", "INVALID_TXN_STATE", "INVALID_PRODUCER_ID_MAPPING",
    "UNKNOWN_PRODUCER_ID", "OUT_OF_ORDER_SEQUENCE_NUMBER", "TRANSACTION_COORDINATOR_FENCED",
}  # fmt: skip

_RETRIABLE = {
    "CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR",
    "LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "UNKNOWN_LEADER_EPOCH", "FENCED_LEADER_EPOCH",
    "THROTTLING_QUOTA_EXCEEDED", "UNSTABLE_OFFSET_COMMIT",
    "_QUEUE_FULL", "_WAIT_COORD", "_RETRY",
}  # fmt: skip

_NEEDS_ABORT = {"TRANSACTION_ABORTABLE", "_INVALID_DIFFERENT_RECORD", "_PURGE_QUEUE", "_PURGE_INFLIGHT"}

_REFUSED: Mapping[str, tuple[RefusalScope, str]] = {
    "MSG_SIZE_TOO_LARGE": ("event", "the event is larger than the topic accepts (max.message.bytes)"),
    "RECORD_LIST_TOO_LARGE": ("event", "the event is larger than the topic accepts (max.message.bytes)"),
    "INVALID_MSG_SIZE": ("event", "the event is larger than the topic accepts (max.message.bytes)"),
    "INVALID_RECORD": ("event", "the topic does not accept this record (a compacted topic needs a key)"),
    "POLICY_VIOLATION": ("event", "a policy of the broker forbids it"),
    "INVALID_TIMESTAMP": ("event", "the topic does not accept the timestamp of the event"),
    "UNKNOWN_TOPIC_OR_PART": ("topic", "the topic does not exist"),
    "_UNKNOWN_TOPIC": ("topic", "the topic does not exist"),
    "_UNKNOWN_PARTITION": ("topic", "the topic has no such partition"),
    "TOPIC_EXCEPTION": ("topic", "the topic name is invalid"),
    "TOPIC_AUTHORIZATION_FAILED": ("topic", "this user is not authorized for the topic: an ACL is missing"),
    "GROUP_AUTHORIZATION_FAILED": ("client", "this user is not authorized for the consumer group: an ACL is missing "
    "(READ)"),
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": (
        "client", "this user is not authorized for the transactional id: an ACL is missing (WRITE and DESCRIBE)",
    ),
    "CLUSTER_AUTHORIZATION_FAILED": ("client", "this user is not authorized on the cluster: an ACL is missing"),
    "INVALID_TRANSACTION_TIMEOUT": (
        "setting", "kafka.transaction_timeout is above the broker's maximum (transaction.max.timeout.ms)",
    ),
    "_AUTHENTICATION": ("client", "the broker does not accept the credentials"),
    "SASL_AUTHENTICATION_FAILED": ("client", "the broker does not accept the credentials"),
    "UNSUPPORTED_SASL_MECHANISM": ("client", "the broker does not support this sasl.mechanism"),
    "ILLEGAL_SASL_STATE": ("client", "the broker does not accept the credentials"),
    "_SSL": ("client", "the TLS connection failed"),
    "UNSUPPORTED_VERSION": ("client", "the broker is too old"),
    "_UNSUPPORTED_FEATURE": ("client", "the broker is too old"),
    "_INVALID_ARG": ("client", "the client does not accept a setting"),
}  # fmt: skip


def classify_kafka_error(error: KafkaError | KafkaException | KafkaErrorInfo) -> ErrorVerdict:
    """The reaction to an error of a producer, a consumer or the admin client."""
    failure = error if isinstance(error, KafkaErrorInfo) else kafka_error_info(error)
    message = _error_message(failure)
    if failure.name in _REFUSED:
        return ErrorVerdict("refused", message, scope=_REFUSED[failure.name][0])
    if failure.name in _FENCED:
        return ErrorVerdict("rebuild", message, fenced=True)
    if failure.fatal or failure.name in _UNKNOWN_OUTCOME:
        return ErrorVerdict("rebuild", message)
    if failure.requires_abort or failure.name in _NEEDS_ABORT:
        return ErrorVerdict("abort", message)
    if failure.retriable or failure.name in _RETRIABLE:
        return ErrorVerdict("retry", message)
    return ErrorVerdict("rebuild", message)


def kafka_error_info(error: KafkaError | KafkaException) -> KafkaErrorInfo:
    """The error as a value; a KafkaException contains a KafkaError."""
    inner: Any = error.args[0] if isinstance(error, Exception) and error.args else error
    if not hasattr(inner, "txn_requires_abort"):
        return KafkaErrorInfo("_FAIL", str(inner))
    return KafkaErrorInfo(
        name=inner.name(),
        text=inner.str(),
        retriable=inner.retriable(),
        requires_abort=inner.txn_requires_abort(),
        fatal=inner.fatal(),
    )


def _error_message(info: KafkaErrorInfo) -> str:
    text = info.text.strip().rstrip(".")
    text = _CLIENT_PREFIX.sub("", text)
    if info.name in _REFUSED:
        meaning = _REFUSED[info.name][1]
        return f"{meaning} ({text})" if text else meaning
    return f"{text} ({info.name})" if text else info.name
