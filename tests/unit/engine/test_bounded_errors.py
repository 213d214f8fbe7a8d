"""The failure of an activity fits into what Temporal keeps of an attempt that it repeats."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.common import RetryPolicy
from temporalio.converter import DefaultFailureConverter, DefaultPayloadConverter

from saga_activities.temporal.attempt_errors import to_application_error
from saga_activities.temporal.bounded_errors import bounded_error
from sagas.errors import SagaError
from sagas.protocol.outcomes import Failure as StepFailure
from sagas.protocol.outcomes import Outcome

KEPT = 4 * 1024
LONG = StepFailure("ConnectionError", "x" * 8_000, {"body": "y" * 8_000})


def sent(error: Exception, attempt: int, most: int = 3) -> Failure:
    info: Any = SimpleNamespace(attempt=attempt, retry_policy=RetryPolicy(maximum_attempts=most))
    failure = Failure()
    try:
        try:
            raise error
        except Exception as caught:  # noqa: BLE001
            raise bounded_error(caught, info) from None
    except Exception as raised:  # noqa: BLE001
        DefaultFailureConverter().to_failure(raised, DefaultPayloadConverter(), failure)
    return failure


def test_an_attempt_that_is_repeated_fits() -> None:
    failure = sent(to_application_error(Outcome("unknown", failure=LONG), 1), 1)
    assert failure.ByteSize() < KEPT
    assert failure.application_failure_info.type == "ConnectionError"
    assert b'"outcome":"unknown"' in failure.application_failure_info.details.payloads[0].data


@pytest.mark.parametrize("outcome", [Outcome("unknown", failure=LONG), Outcome("rejected", failure=LONG)])
def test_the_last_attempt_is_whole(outcome: Outcome) -> None:
    failure = sent(to_application_error(outcome, 3), 3)
    assert b"y" * 8_000 in failure.application_failure_info.details.payloads[0].data


def test_another_error_is_its_sentence() -> None:
    error = SagaError("the guard of the connection shop cannot be read")
    error.__cause__ = ValueError("z" * 8_000)
    failure = sent(error, 1, 0)
    assert (failure.message, failure.application_failure_info.type) == (error.message, "SagaError")
    assert (failure.stack_trace, failure.HasField("cause")) == ("", False)
