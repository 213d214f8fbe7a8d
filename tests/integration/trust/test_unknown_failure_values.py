"""A failure of a stranger whose numbers Temporal's SDK does not know: the saga goes on, and is listed."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.api.failure.v1 import ActivityFailureInfo, ApplicationFailureInfo, Failure, TimeoutFailureInfo
from temporalio.api.workflowservice.v1 import RespondActivityTaskFailedByIdRequest

from saga_workers.client import Client
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views.saga_list import SagaFilter
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.trust.test_forged_answers import ORDER, has_error, has_left, slow_payment

UNKNOWN: int = 99


def failed(*, final: bool) -> Failure:
    info = ApplicationFailureInfo(type="X", non_retryable=final, category=UNKNOWN)  # pyright: ignore[reportArgumentType]
    return Failure(message="no", application_failure_info=info)


FINAL = {
    "category": failed(final=True),
    "timeout": Failure(timeout_failure_info=TimeoutFailureInfo(timeout_type=UNKNOWN)),  # pyright: ignore[reportArgumentType]
    "cause": Failure(
        application_failure_info=ApplicationFailureInfo(type="X", non_retryable=True),
        cause=Failure(activity_failure_info=ActivityFailureInfo(retry_state=UNKNOWN)),  # pyright: ignore[reportArgumentType]
    ),
}


async def fail_step(client: Client, id: str, failure: Failure) -> None:
    """Fail the attempt of the step by its id, as any client of Temporal can."""
    await client.temporal.workflow_service.respond_activity_task_failed_by_id(
        RespondActivityTaskFailedByIdRequest(
            namespace=client.temporal.namespace,
            workflow_id=id,
            activity_id="pay",
            failure=failure,
            identity="stranger",
        )
    )


@pytest.mark.parametrize("name", FINAL)
async def test_the_step_is_undone(
    tmp_path: Path, temporal: TemporalServer, postgres_server: DatabaseServer, name: str
) -> None:
    async with slow_payment(tmp_path, temporal, postgres_server) as (client, payment):
        id = await payment.begin(client)
        await fail_step(client, id, FINAL[name])
        await until(lambda: has_left(client, id, "RUNNING"))
        view = await payment.end(client, id)
        balance = payment.balance
    assert (view["state"], view["reason"]["kind"]) == ("COMPENSATED", "unknown")
    assert balance == 0


@pytest.mark.slow
async def test_a_step_that_waits_for_its_next_attempt_is_listed(
    tmp_path: Path, temporal: TemporalServer, postgres_server: DatabaseServer
) -> None:
    twice = ORDER.replace("max_attempts: 1", "max_attempts: 2, initial_interval: 3s")
    async with slow_payment(tmp_path, temporal, postgres_server, twice) as (client, payment):
        id = await payment.begin(client)
        await fail_step(client, id, failed(final=False))
        await until(lambda: has_error(client, id, "X"))
        async for row in list_stuck(client.locator, SagaFilter(saga="order"), limit=9):
            assert row.id
        view = await payment.end(client, id)
        balance = payment.balance
    assert view["state"] == "COMPLETED"
    assert balance == 10
