"""An answer of a stranger about a step is not believed: it could hide an effect or invent one."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest
from temporalio.api.common.v1 import Payloads
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.api.workflowservice.v1 import (
    RespondActivityTaskCompletedByIdRequest,
    RespondActivityTaskFailedByIdRequest,
)

from saga_activities.guard.schema import create_tables
from saga_workers.client import Client
from saga_workers.runtime.databases import open_command_engine
from sagas import Step, action
from sagas.settings import SqlConnection
from tests.helpers import eager_start
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until

ORDER = """
saga: order
steps:
  - {id: pay, uses: pay, compensate: pay-back, retry: {max_attempts: 1}}
output: "${{ steps.pay }}"
"""


async def forge(client: Client, id: str, how: str) -> None:
    """End the attempt of `pay` by its id, as any client of Temporal can."""
    service = client.temporal.workflow_service
    address: dict[str, Any] = {"namespace": client.temporal.namespace, "workflow_id": id, "activity_id": "pay"}
    if how == "done":
        result = Payloads(payloads=[eager_start.json_payload({"result": "forged", "_saga": {"attempt": 1}})])
        await service.respond_activity_task_completed_by_id(
            RespondActivityTaskCompletedByIdRequest(**address, result=result, identity="stranger")
        )
        return
    details = Payloads(payloads=[eager_start.json_payload({"outcome": "failed", "attempt": 1, "details": {}})])
    info = ApplicationFailureInfo(type=how, non_retryable=True, details=details)
    await service.respond_activity_task_failed_by_id(
        RespondActivityTaskFailedByIdRequest(
            **address, failure=Failure(message="no", application_failure_info=info), identity="stranger"
        )
    )


@pytest.mark.parametrize("how", ["done", "Rejected", "ValueError"])
async def test_an_answer_without_a_signature_hides_no_effect(
    tmp_path: Path, temporal: TemporalServer, postgres_server: DatabaseServer, how: str
) -> None:
    url = new_database(postgres_server)
    owner = open_command_engine(SqlConnection(name="shop", root=tmp_path, url=url))
    await create_tables(owner)
    await owner.dispose()
    began, may_end = asyncio.Event(), asyncio.Event()

    @action("pay", connection="shop")
    async def pay(step: Step) -> str:
        await step.sql.execute("insert into payment values (10)")
        began.set()
        await may_end.wait()
        return "real"

    @action("pay-back", connection="shop")
    async def pay_back(step: Step) -> None:
        await step.sql.execute("insert into payment values (-10)")

    with psycopg.connect(url, autocommit=True) as database:
        database.execute("create table payment (amount int)")
        project = make_project(
            tmp_path / "project", {"order": ORDER}, [pay, pay_back], address=temporal.address, connections={"shop": url}
        )
        async with running_worker(project) as client:
            id = f"order-{uuid.uuid4()}"
            await client.start("order", {}, id=id)
            await began.wait()
            await forge(client, id, how)

            async def is_resolved() -> bool:
                return (await client.show(id))["state"] != "RUNNING"

            await until(is_resolved)
            may_end.set()
            view = await finished(client, id)
        [balance] = database.execute("select coalesce(sum(amount), 0) from payment").fetchone() or ()
    assert view["state"] == "COMPENSATED"
    assert view["reason"]["type"] == "UnsignedAnswer"
    assert "forged" not in str(view)
    assert balance == 0
