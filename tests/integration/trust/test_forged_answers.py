"""An answer of a stranger about a step is not believed: it could hide an effect or invent one."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
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


NO_EFFECT = {"outcome": "failed", "attempt": 2, "nothing_before": True, "retryable": False, "details": {}}
"""What a worker of the project says of a second attempt, as the first one without an effect."""

CHARGE = """
saga: charge
steps:
  - {id: pay, uses: charge, idempotent: false, compensate: refund}
"""


async def forge(client: Client, id: str, how: str, detail: dict[str, Any] | None = None, *, step: str = "pay") -> None:
    """End the attempt of a step by its id, as any client of Temporal can. ``detail``: of a failure."""
    service = client.temporal.workflow_service
    address: dict[str, Any] = {"namespace": client.temporal.namespace, "workflow_id": id, "activity_id": step}
    if how == "done":
        result = Payloads(payloads=[eager_start.json_payload({"result": "forged", "_saga": {"attempt": 1}})])
        await service.respond_activity_task_completed_by_id(
            RespondActivityTaskCompletedByIdRequest(**address, result=result, identity="stranger")
        )
        return
    details = Payloads(payloads=[] if detail is None else [eager_start.json_payload(detail)])
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
    async with slow_payment(tmp_path, temporal, postgres_server) as (client, payment):
        id = await payment.begin(client)
        await forge(client, id, how, {"outcome": "failed", "attempt": 1, "details": {}})
        await until(lambda: has_left(client, id, "RUNNING"))
        view = await payment.end(client, id)
        balance = payment.balance
    assert view["state"] == "COMPENSATED"
    assert view["reason"]["type"] == "UnsignedAnswer"
    assert "forged" not in str(view)
    assert balance == 0


@pytest.mark.sampled
@pytest.mark.parametrize("detail", [None, NO_EFFECT], ids=["bare", "with details"])
@pytest.mark.parametrize("how", ["NotFoundError", "UnsignedCall"])
async def test_a_forged_lack_of_the_action_hides_no_effect(
    tmp_path: Path, temporal: TemporalServer, postgres_server: DatabaseServer, how: str, detail: dict[str, Any] | None
) -> None:
    """No signature is expected of a worker that does not know the action: the guard decides what has happened."""
    async with slow_payment(tmp_path, temporal, postgres_server) as (client, payment):
        id = await payment.begin(client)
        await forge(client, id, how, detail)
        await until(lambda: has_error(client, id, how))
        await client.cancel(id)
        await until(lambda: has_left(client, id, "RUNNING"))
        view = await payment.end(client, id)
        [step] = view["steps"]
        balance = payment.balance
    assert (view["state"], view["reason"]["kind"]) == ("COMPENSATED", "cancelled")
    assert (step["outcome"], step["state"]) == ("done", "COMPENSATED")
    assert balance == 0


async def test_a_forged_lack_of_the_action_repeats_no_step_that_may_run_once(
    tmp_path: Path, temporal: TemporalServer
) -> None:
    effects, may_end = [], asyncio.Event()

    @action("charge")
    async def charge(step: Step) -> None:
        effects.append("charge")
        await may_end.wait()

    @action("refund")
    async def refund(step: Step) -> None:
        effects.append("refund")

    project = make_project(tmp_path / "project", {"charge": CHARGE}, [charge, refund], address=temporal.address)
    async with running_worker(project) as client:
        id = f"charge-{uuid.uuid4()}"
        await client.start("charge", {}, id=id)
        await until(lambda: bool(effects))
        await forge(client, id, "NotFoundError")
        view = await finished(client, id)
        may_end.set()
    assert (view["state"], view["reason"]["kind"]) == ("COMPENSATED", "unknown")
    assert effects == ["charge", "refund"]


async def test_the_failure_of_an_attempt_does_not_count_for_a_later_one(
    tmp_path: Path, temporal: TemporalServer, postgres_server: DatabaseServer
) -> None:
    """The first attempt has had no effect, and says so with a signature that everybody can read."""
    twice = ORDER.replace("max_attempts: 1", "max_attempts: 2, initial_interval: 100ms")
    async with slow_payment(tmp_path, temporal, postgres_server, twice, failures=1) as (client, payment):
        id = await payment.begin(client)
        described = await client.locator.locate(id)
        assert described.run is not None
        [attempt] = described.run.raw.pending_activities
        await client.temporal.workflow_service.respond_activity_task_failed_by_id(
            RespondActivityTaskFailedByIdRequest(
                namespace=client.temporal.namespace,
                workflow_id=id,
                activity_id="pay",
                failure=attempt.last_failure,
                identity="stranger",
            )
        )
        await until(lambda: has_left(client, id, "RUNNING"))
        view = await payment.end(client, id)
        balance = payment.balance
    assert (view["state"], view["reason"]["type"]) == ("COMPENSATED", "UnsignedAnswer")
    assert view["steps"][0]["outcome"] == "done"
    assert balance == 0


class Payment:
    """The payment of a saga `order`, whose transaction stays open until :meth:`end`."""

    def __init__(self, database: psycopg.Connection[Any]) -> None:
        self._database = database
        self.began, self.may_end = asyncio.Event(), asyncio.Event()

    async def begin(self, client: Client) -> str:
        id = f"order-{uuid.uuid4()}"
        await client.start("order", {}, id=id)
        await self.began.wait()
        return id

    async def end(self, client: Client, id: str) -> dict[str, Any]:
        self.may_end.set()
        return await finished(client, id)

    @property
    def balance(self) -> int:
        row = self._database.execute("select coalesce(sum(amount), 0) from payment").fetchone()
        assert row is not None
        return row[0]


@contextlib.asynccontextmanager
async def slow_payment(
    folder: Path, temporal: TemporalServer, server: DatabaseServer, text: str = ORDER, *, failures: int = 0
) -> AsyncIterator[tuple[Client, Payment]]:
    """A project with a payment whose first attempts fail, as many as ``failures``."""
    url = new_database(server)
    owner = open_command_engine(SqlConnection(name="shop", root=folder, url_setting=url))
    await create_tables(owner)
    await owner.dispose()
    with psycopg.connect(url, autocommit=True) as database:
        payment = Payment(database)

        @action("pay", connection="shop")
        async def pay(step: Step) -> str:
            if step.attempt <= failures:
                raise RuntimeError("try again")
            await step.sql.execute("insert into payment values (10)")
            payment.began.set()
            await payment.may_end.wait()
            return "real"

        @action("pay-back", connection="shop")
        async def pay_back(step: Step) -> None:
            await step.sql.execute("insert into payment values (-10)")

        database.execute("create table payment (amount int)")
        project = make_project(
            folder / "project", {"order": text}, [pay, pay_back], address=temporal.address, connections={"shop": url}
        )
        async with running_worker(project) as client:
            yield client, payment


async def has_left(client: Client, id: str, state: str) -> bool:
    return (await client.show(id))["state"] != state


async def has_error(client: Client, id: str, type: str) -> bool:
    [step] = (await client.show(id))["steps"]
    return (step["error"] or {}).get("type") == type
