"""The error with which an attempt ends can always be encoded."""

from __future__ import annotations

from temporalio.api.failure.v1 import Failure as FailureMessage
from temporalio.converter import DataConverter

from saga_activities.temporal.attempt_errors import to_application_error
from sagas.protocol.outcomes import Failure, Outcome


async def test_half_a_surrogate_pair_in_the_words_of_a_rejection() -> None:
    outcome = Outcome("rejected", failure=Failure("Rejected", "no \ud800", {"who": "\udfff", "\ud800": 1}))
    failure = FailureMessage()
    await DataConverter.default.encode_failure(to_application_error(outcome, 1), failure)
    assert failure.message == "no ?"
    assert b'"who":"?"' in failure.application_failure_info.details.payloads[0].data.replace(b" ", b"")
