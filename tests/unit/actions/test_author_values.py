"""Odd values that an author's code gives to its exceptions."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from saga_activities.attempt_context import ObservedAttempt
from saga_activities.bodies.python_action import jsonable, run_python_action
from saga_activities.dispatcher import probe_outcome, run_unguarded
from saga_activities.guard.result_codec import encode as encode_result
from saga_activities.guard.script_transactions import outcome_of_error
from saga_activities.json_results import UnusableResult
from saga_activities.reported_failure import reported_failure
from saga_workers.runtime.logs import log_attempt
from sagas import Rejected, Step
from sagas.actions.registry import Absent, Action, Done, Unknown
from sagas.errors import DefiniteFailure, InfrastructureError, NeedsOperator
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import Invocation
from sagas.protocol.size_limits import MAX_MESSAGE_CHARACTERS
from sagas.text.exact_json import encode_json
from sagas.workflow.failures import SagaApplicationError
from tests.helpers.nested_lists import nested_list


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class OutOfStock(Rejected):
    def __init__(self, sku: str) -> None:
        self.sku = sku


@dataclass
class Line:
    sku: str
    at: datetime


CYCLE: list[Any] = []
CYCLE.extend([CYCLE, CYCLE])
TOO_DEEP = "(left out: it is nested deeper than 100 levels)"
TOO_LONG = "(an integer of more than 4,000 digits)"
MUTE = "(a Mute without a text: its __str__ raised ValueError)"


@pytest.mark.parametrize(
    ("error", "message", "details"),
    [
        (Rejected(12345), "12345", {}),  # pyright: ignore[reportArgumentType]
        (Rejected(10**5000), TOO_LONG, {}),  # pyright: ignore[reportArgumentType]
        (Rejected(Mute()), MUTE, {}),  # pyright: ignore[reportArgumentType]
        (Rejected("no", tree=nested_list(2000, 1), sku="A"), "no", {"tree": TOO_DEEP, "sku": "A"}),
        (Rejected("no", cycle=CYCLE), "no", {"cycle": TOO_DEEP}),
        (Rejected("no", number=10**5000, set={1}), "no", {"number": TOO_LONG, "set": [1]}),
        (
            Rejected("no", line=Line("A", datetime(2026, 1, 1, tzinfo=UTC)), mute=Mute(), raw=b"x"),
            "no",
            {"line": {"sku": "A", "at": "2026-01-01T00:00:00+00:00"}, "mute": MUTE, "raw": "b'x'"},
        ),
        (OutOfStock("A"), "A", {}),
    ],
)
async def test_a_rejection_counts_whatever_its_arguments_are(
    error: Rejected, message: str, details: dict[str, Any]
) -> None:
    async def rejecting(_: Any) -> Any:
        raise error

    for outcome in (outcome_of_error(error), await run_unguarded(rejecting, "do")):
        assert (outcome.kind, outcome.retryable) == ("rejected", False)
        failure = reported_failure(outcome)
        assert (failure.message, dict(failure.details)) == (message, details)
        encode_json(failure.to_json())


@pytest.mark.parametrize(
    "error",
    [
        DefiniteFailure("T", "no", tree=nested_list(2000, 1)),
        NeedsOperator("why", tree=nested_list(2000, 1)),
        InfrastructureError("down", details={"tree": nested_list(2000, 1)}),
    ],
)
def test_details_of_other_errors_are_safe(error: Exception) -> None:
    failure = reported_failure(outcome_of_error(error))
    assert failure.details == {"tree": TOO_DEEP}


@pytest.mark.parametrize("message", ["x" * 400_000, " " * 400_000, "y " + "x" * 400_000 + " z"])
def test_a_long_message_is_shown_with_its_ends(message: str) -> None:
    failure = reported_failure(Outcome("failed", failure=Failure("Failed", message)))
    shown = failure.message.replace(" ", "")
    assert shown.startswith(message.replace(" ", "")[:1])
    assert "…" in shown
    assert len(failure.message) <= MAX_MESSAGE_CHARACTERS


def test_a_guarded_result_of_too_many_values_is_refused_before_the_commit() -> None:
    with pytest.raises(UnusableResult, match="more than 100,000 values"):
        encode_result([1] * 100_001)
    assert encode_result("," * 200_000) is not None


def test_an_exception_without_a_text_has_an_outcome() -> None:
    outcome = outcome_of_error(Mute())
    assert outcome.failure is not None
    assert (outcome.kind, outcome.failure.message) == ("failed", MUTE)


@pytest.mark.parametrize(
    "value", [nested_list(150), nested_list(20000), CYCLE, {10**5000: 1}, [10**5000], {"a": Mute()}, Line]
)
def test_a_result_that_is_no_json_is_refused_in_words(value: Any) -> None:
    with pytest.raises(UnusableResult) as refused:
        jsonable(value)
    assert "recursion" not in str(refused.value)
    assert "Exceeds the limit" not in str(refused.value)


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration("next"), GeneratorExit()])
@pytest.mark.parametrize("asynchronous", [True, False])
async def test_an_action_cannot_end_its_worker(asynchronous: bool, error: BaseException) -> None:
    def ends() -> None:
        raise error

    async def ends_later() -> None:
        ends()

    made = Action("ends", ends_later if asynchronous else ends)
    step = Step("key", "id", "ends", "do", 1, 1, logging.getLogger(), lambda _: None)
    with ThreadPoolExecutor(1) as threads, pytest.raises(Exception, match=type(error).__name__) as raised:
        await asyncio.wait_for(run_python_action(made, step, {}, threads), 5)
    assert outcome_of_error(raised.value).kind == "failed"


@pytest.mark.parametrize(
    ("escaped", "words"),
    [
        (SagaApplicationError("x", type="NotFoundError"), "charge is not registered with this worker"),
        (Mute(), f"charge ended without an outcome: Mute: {MUTE}"),
    ],
)
def test_the_log_says_why_an_attempt_has_no_outcome(
    escaped: Exception, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    invocation = Invocation("charge", {}, "key", "id", "charge#0", "do", 1)
    with pytest.raises(type(escaped)), log_attempt(ObservedAttempt("order", invocation, 1)):
        raise escaped
    assert caplog.messages == [words]


@pytest.mark.parametrize(("answer", "expected"), [(Absent, Absent()), (Unknown, Unknown()), (Done, Done(None))])
def test_a_probe_may_return_the_class_of_its_answer(answer: type, expected: object) -> None:
    """A class is never taken for a result: no JSON has it."""
    assert jsonable(answer) == expected
    assert probe_outcome(jsonable(answer)) == probe_outcome(expected)
    with pytest.raises(UnusableResult):
        jsonable([answer])
