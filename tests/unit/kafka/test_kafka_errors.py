"""The decision table about errors of Kafka, row by row."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from saga_activities.kafka.errors import Failure, classify

TABLE = [
    # the coordinator is busy with what came before, or moves: the same call again
    (Failure("CONCURRENT_TRANSACTIONS"), "retry", None),
    (Failure("COORDINATOR_LOAD_IN_PROGRESS"), "retry", None),
    (Failure("NOT_COORDINATOR"), "retry", None),
    (Failure("UNKNOWN", retriable=True), "retry", None),
    # the transaction cannot go on, its producer can
    (Failure("UNKNOWN", requires_abort=True), "abort", None),
    (Failure("TRANSACTION_ABORTABLE"), "abort", None),
    (Failure("_INVALID_DIFFERENT_RECORD"), "abort", None),
    # nobody knows what came of it: even where the library would let us ask again
    (Failure("_TIMED_OUT", retriable=True), "rebuild", None),
    (Failure("_MSG_TIMED_OUT", requires_abort=True), "rebuild", None),
    (Failure("REQUEST_TIMED_OUT", retriable=True), "rebuild", None),
    (Failure("_TRANSPORT"), "rebuild", None),
    (Failure("_ALL_BROKERS_DOWN"), "rebuild", None),
    (Failure("INVALID_TXN_STATE", requires_abort=True), "rebuild", None),
    # the id has expired, or the log is not what it was
    (Failure("INVALID_PRODUCER_ID_MAPPING", requires_abort=True), "rebuild", None),
    (Failure("UNKNOWN_PRODUCER_ID"), "rebuild", None),
    (Failure("OUT_OF_ORDER_SEQUENCE_NUMBER", requires_abort=True), "rebuild", None),
    # the library says that the producer is done for, or says something new
    (Failure("_FATAL", fatal=True), "rebuild", None),
    (Failure("UNKNOWN", retriable=True, fatal=True), "rebuild", None),
    (Failure("SOMETHING_NEW"), "rebuild", None),
    # it will be the same for ever
    (Failure("MSG_SIZE_TOO_LARGE"), "refused", "event"),
    (Failure("INVALID_RECORD"), "refused", "event"),
    (Failure("UNKNOWN_TOPIC_OR_PART", retriable=True), "refused", "topic"),
    (Failure("_UNKNOWN_TOPIC", requires_abort=True), "refused", "topic"),
    (Failure("TOPIC_AUTHORIZATION_FAILED", requires_abort=True), "refused", "topic"),
    (Failure("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", fatal=True), "refused", "client"),
    (Failure("INVALID_TRANSACTION_TIMEOUT", fatal=True), "refused", "setting"),
    (Failure("_AUTHENTICATION"), "refused", "client"),
    (Failure("_SSL"), "refused", "client"),
]


@pytest.mark.parametrize(("failure", "action", "scope"), TABLE, ids=lambda one: getattr(one, "name", None))
def test_decision(failure: Failure, action: str, scope: str | None) -> None:
    verdict = classify(failure)
    assert (verdict.action, verdict.scope, verdict.fenced) == (action, scope, False)
    assert verdict.reason
    assert "\n" not in verdict.reason


@pytest.mark.parametrize("name", ["_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"])
def test_an_older_producer_is_told_that_it_is_one(name: str) -> None:
    verdict = classify(Failure(name, fatal=True, requires_abort=True))
    assert (verdict.action, verdict.fenced) == ("rebuild", True)


def test_every_name_is_one_of_the_library() -> None:
    known = {KafkaError(code).name() for code in range(-199, 140) if code}
    named = {failure.name for failure, _, _ in TABLE} - {"SOMETHING_NEW"}
    from saga_activities.kafka import errors

    tables = errors._FENCED | errors._UNKNOWN_OUTCOME | errors._PASSING | errors._NEEDS_ABORT | set(errors._REFUSED)
    assert (tables | named) <= known
    # a name in two tables would be decided by the order of the code
    assert len(tables) == sum(
        map(len, (errors._FENCED, errors._UNKNOWN_OUTCOME, errors._PASSING, errors._NEEDS_ABORT, errors._REFUSED))
    )


def test_errors_and_exceptions_of_the_library() -> None:
    error = KafkaError(KafkaError._FENCED, "fenced by a newer one", fatal=True)
    assert classify(error) == classify(KafkaException(error))
    assert classify(error).fenced
    assert classify(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))).scope == "topic"
    abortable = KafkaError(KafkaError.UNKNOWN, "x", txn_requires_abort=True)
    assert classify(abortable).action == "abort"
