"""The attempts that the circuit breaker of a connection judges, and what an outcome tells about the connection."""

from __future__ import annotations

from dataclasses import replace

import pytest

from saga_activities.attempt_window import AttemptWindow
from saga_activities.connection_health import has_answered, last_failure
from saga_activities.guard.sqlstates import is_answer
from sagas.protocol.outcomes import Failure, Outcome

FAILED = Outcome("failed", failure=Failure("ValueError", "broken"))
UNKNOWN = replace(FAILED, kind="unknown")


def test_few_attempts_are_not_judged() -> None:
    window = AttemptWindow(30.0, 3, 100)
    for _ in range(2):
        window.add(0.0, failed=True)
        assert window.failing(50) is None
    window.add(0.0, failed=False)
    assert window.failing(50) == (2, 3)
    assert window.failing(67) is None
    window.clear()
    assert window.failing(1) is None


def test_old_attempts_count_only_while_there_are_few() -> None:
    window = AttemptWindow(30.0, 3, 100)
    for at in (0.0, 1000.0, 2000.0):  # a connection that is seldom needed
        window.add(at, failed=True)
    assert window.failing(100) == (3, 3)
    window.add(2001.0, failed=False)
    assert window.failing(50) == (2, 3)


def test_the_number_of_attempts_is_limited() -> None:
    window = AttemptWindow(30.0, 3, 5)
    for number in range(20):
        window.add(0.0, failed=number < 15)
    assert window.failing(1) is None


@pytest.mark.parametrize(
    ("outcome", "service", "database"),
    [
        (Outcome.done(), True, True),
        (replace(FAILED, kind="rejected", retryable=False), True, True),
        (FAILED, False, True),
        (UNKNOWN, False, None),
        (replace(UNKNOWN, infrastructure=True), False, False),
        (replace(FAILED, infrastructure=True), False, False),
        (replace(FAILED, failure=Failure("Timeout", "too late")), False, None),
        (replace(UNKNOWN, failure=Failure("Timeout", "too late")), False, False),
        (replace(FAILED, infrastructure=True, answered=True), False, True),
        (replace(FAILED, counted=False, answered=True), None, True),
        (replace(UNKNOWN, answered=False), False, False),
        (replace(FAILED, retryable=False), None, None),
        (replace(FAILED, counted=False), None, None),
        (replace(FAILED, not_started=True), None, None),
    ],
)
def test_what_an_outcome_tells(outcome: Outcome, service: bool | None, database: bool | None) -> None:
    assert has_answered(outcome, is_database=False) is service
    assert has_answered(outcome, is_database=True) is database


@pytest.mark.parametrize(
    ("sqlstate", "answers"),
    [
        ("40001", True), ("40P01", True), ("55P03", True), ("XA100", True),  # locks of others
        ("23505", True), ("42P01", True), ("42501", True), ("22012", True), ("54000", True), ("XX000", True),
        ("25P03", True),  # the action has left its transaction idle
        ("40003", False), ("08006", False), ("57P01", False), ("57P03", False), ("25006", False),
        ("53300", False), ("53100", False), ("57014", False), ("25P04", False), ("58030", False),
    ],
)  # fmt: skip
def test_what_an_error_of_a_database_tells(sqlstate: str, answers: bool) -> None:
    assert is_answer(sqlstate) is answers


def test_the_last_failure_has_no_word_of_the_participant() -> None:
    refused = replace(UNKNOWN, failure=Failure("HttpStatus", "crm responded: a secret", {"status": 503}))
    assert last_failure([FAILED, refused, None]) == "503 Service Unavailable"
    assert last_failure([replace(refused, failure=Failure("HttpStatus", "no", {"status": 599}))]) == "599"
    assert last_failure([FAILED]) == "ValueError"
    assert last_failure([None]) == "no answer"
