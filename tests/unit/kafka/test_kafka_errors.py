"""The decision table about errors of Kafka, row by row."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from saga_activities.kafka.errors import KafkaErrorInfo, classify_kafka_error

TABLE = [
    # the coordinator is busy with what came before, or moves: the same call again
    (KafkaErrorInfo("CONCURRENT_TRANSACTIONS"), "retry", None),
    (KafkaErrorInfo("COORDINATOR_LOAD_IN_PROGRESS"), "retry", None),
    (KafkaErrorInfo("NOT_COORDINATOR"), "retry", None),
    (KafkaErrorInfo("UNKNOWN", retriable=True), "retry", None),
    # the transaction cannot go on, its producer can
    (KafkaErrorInfo("UNKNOWN", requires_abort=True), "abort", None),
    (KafkaErrorInfo("TRANSACTION_ABORTABLE"), "abort", None),
    (KafkaErrorInfo("_INVALID_DIFFERENT_RECORD"), "abort", None),
    # the outcome is unknown, even where the library allows a retry
    (KafkaErrorInfo("_TIMED_OUT", retriable=True), "rebuild", None),
    (KafkaErrorInfo("_MSG_TIMED_OUT", requires_abort=True), "rebuild", None),
    (KafkaErrorInfo("REQUEST_TIMED_OUT", retriable=True), "rebuild", None),
    (KafkaErrorInfo("_TRANSPORT"), "rebuild", None),
    (KafkaErrorInfo("_ALL_BROKERS_DOWN"), "rebuild", None),
    (KafkaErrorInfo("INVALID_TXN_STATE", requires_abort=True), "rebuild", None),
    # the id has expired, or the log is not what it was
    (KafkaErrorInfo("INVALID_PRODUCER_ID_MAPPING", requires_abort=True), "rebuild", None),
    (KafkaErrorInfo("UNKNOWN_PRODUCER_ID"), "rebuild", None),
    (KafkaErrorInfo("OUT_OF_ORDER_SEQUENCE_NUMBER", requires_abort=True), "rebuild", None),
    # the library reports a fatal or an unknown error
    (KafkaErrorInfo("_FATAL", fatal=True), "rebuild", None),
    (KafkaErrorInfo("UNKNOWN", retriable=True, fatal=True), "rebuild", None),
    (KafkaErrorInfo("SOMETHING_NEW"), "rebuild", None),
    # permanent
    (KafkaErrorInfo("MSG_SIZE_TOO_LARGE"), "refused", "event"),
    (KafkaErrorInfo("INVALID_RECORD"), "refused", "event"),
    (KafkaErrorInfo("UNKNOWN_TOPIC_OR_PART", retriable=True), "refused", "topic"),
    (KafkaErrorInfo("_UNKNOWN_TOPIC", requires_abort=True), "refused", "topic"),
    (KafkaErrorInfo("TOPIC_AUTHORIZATION_FAILED", requires_abort=True), "refused", "topic"),
    (KafkaErrorInfo("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", fatal=True), "refused", "client"),
    (KafkaErrorInfo("INVALID_TRANSACTION_TIMEOUT", fatal=True), "refused", "setting"),
    (KafkaErrorInfo("_AUTHENTICATION"), "refused", "client"),
    (KafkaErrorInfo("_SSL"), "refused", "client"),
]


@pytest.mark.parametrize(("failure", "action", "scope"), TABLE, ids=lambda failure: getattr(failure, "name", None))
def test_decision(failure: KafkaErrorInfo, action: str, scope: str | None) -> None:
    verdict = classify_kafka_error(failure)
    assert (verdict.action, verdict.scope, verdict.fenced) == (action, scope, False)
    assert verdict.reason
    assert "\n" not in verdict.reason


@pytest.mark.parametrize("name", ["_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"])
def test_a_fenced_producer_is_reported_as_fenced(name: str) -> None:
    verdict = classify_kafka_error(KafkaErrorInfo(name, fatal=True, requires_abort=True))
    assert (verdict.action, verdict.fenced) == ("rebuild", True)


def test_every_error_name_exists_in_the_library() -> None:
    library_names = {KafkaError(code).name() for code in range(-199, 140) if code}
    named = {failure.name for failure, _, _ in TABLE} - {"SOMETHING_NEW"}
    from saga_activities.kafka import errors

    tables = errors._FENCED | errors._UNKNOWN_OUTCOME | errors._RETRIABLE | errors._NEEDS_ABORT | set(errors._REFUSED)
    assert (tables | named) <= library_names
    # a name in two tables would be decided by the order of the code
    assert len(tables) == sum(
        map(len, (errors._FENCED, errors._UNKNOWN_OUTCOME, errors._RETRIABLE, errors._NEEDS_ABORT, errors._REFUSED))
    )


def test_errors_and_exceptions_of_the_library() -> None:
    error = KafkaError(KafkaError._FENCED, "fenced by a newer one", fatal=True)
    assert classify_kafka_error(error) == classify_kafka_error(KafkaException(error))
    assert classify_kafka_error(error).fenced
    assert classify_kafka_error(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))).scope == "topic"
    abortable = KafkaError(KafkaError.UNKNOWN, "x", txn_requires_abort=True)
    assert classify_kafka_error(abortable).action == "abort"
