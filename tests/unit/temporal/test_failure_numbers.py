"""Failures of other clients have any numbers, which fail no workflow task and no view."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.failure.v1 import (
    ActivityFailureInfo,
    ApplicationFailureInfo,
    ChildWorkflowExecutionFailureInfo,
    Failure,
    NexusHandlerFailureInfo,
    TimeoutFailureInfo,
)
from temporalio.converter import DefaultPayloadConverter
from temporalio.exceptions import ActivityError, ApplicationError, ApplicationErrorCategory, FailureError, RetryState

from saga_workers.temporal.data_converter import EXACT_CONVERTER, WorkflowFailureConverter
from saga_workers.temporal.foreign_payloads import read_foreign_failure

UNKNOWN: int = 99
DETAILS = Payloads(payloads=[Payload(metadata={"encoding": b"json/plain"}, data=b"{}")])

FOREIGN = {
    "category": Failure(application_failure_info=ApplicationFailureInfo(category=UNKNOWN)),  # pyright: ignore[reportArgumentType]
    "timeout": Failure(timeout_failure_info=TimeoutFailureInfo(timeout_type=UNKNOWN)),  # pyright: ignore[reportArgumentType]
    "activity": Failure(activity_failure_info=ActivityFailureInfo(retry_state=UNKNOWN)),  # pyright: ignore[reportArgumentType]
    "child": Failure(
        child_workflow_execution_failure_info=ChildWorkflowExecutionFailureInfo(retry_state=UNKNOWN)  # pyright: ignore[reportArgumentType]
    ),
    "nexus": Failure(nexus_handler_failure_info=NexusHandlerFailureInfo(type="?", retry_behavior=UNKNOWN)),  # pyright: ignore[reportArgumentType]
    "delay": Failure(application_failure_info=ApplicationFailureInfo(next_retry_delay=Duration(seconds=2**62))),
    "fraction": Failure(application_failure_info=ApplicationFailureInfo(next_retry_delay=Duration(nanos=-(2**31)))),
}


def read(failure: Failure) -> BaseException:
    return WorkflowFailureConverter().from_failure(failure, DefaultPayloadConverter())


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("depth", [0, 1, 50])
async def test_an_unknown_number_raises_nothing_at_any_depth(name: str, depth: int) -> None:
    failure = FOREIGN[name]
    for _ in range(depth):
        failure = Failure(message="outer", application_failure_info=ApplicationFailureInfo(type="Outer"), cause=failure)
    nexus = Failure(nexus_handler_failure_info=NexusHandlerFailureInfo(type="INTERNAL"), cause=failure)
    for each in (failure, nexus):
        assert isinstance(read(each), Exception)
        assert isinstance(await read_foreign_failure(each, EXACT_CONVERTER), Exception)
        assert isinstance(await EXACT_CONVERTER.decode_failure(each), Exception), "as a client reads an end"


def test_all_else_of_the_failure_is_read() -> None:
    info = ApplicationFailureInfo(type="Rejected", non_retryable=True, details=DETAILS, category=UNKNOWN)  # pyright: ignore[reportArgumentType]
    error = read(Failure(message="no", application_failure_info=info, cause=Failure(message="inner")))
    assert isinstance(error, ApplicationError)
    assert (error.message, error.type, error.non_retryable, error.details) == ("no", "Rejected", True, ({},))
    assert error.category is ApplicationErrorCategory.UNSPECIFIED
    assert isinstance(error.cause, FailureError)
    assert error.cause.message == "inner"
    assert info.category == UNKNOWN, "the event itself stays as it is"


def test_what_the_server_says_around_it_is_read() -> None:
    state = RetryState.NON_RETRYABLE_FAILURE
    info = ActivityFailureInfo(activity_id="pay", retry_state=int(state))  # pyright: ignore[reportArgumentType]
    error = read(Failure(activity_failure_info=info, cause=FOREIGN["category"]))
    assert isinstance(error, ActivityError)
    assert (error.activity_id, error.retry_state) == ("pay", state)
    assert isinstance(error.cause, ApplicationError)
