"""A saga that waits for rows or locks of a parked one: its messages name that saga, and the command that goes on."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import text

from saga_activities.locks.tables import create_tables
from saga_workers.client import Client
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.stuck.stuck_view import read_view_with_stuck
from saga_workers.views.reported_reasons import unreported_reasons
from saga_workers.views.saga_list import SagaFilter
from sagas import Rejected
from sagas.machine.locking import row_locks
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import (
    Environment,
    begin,
    gate,
    resolve,
    row,
    run_saga,
    wait_for_event,
)

ORDER = """
    saga: order
    steps:
      - id: take
        uses: sql
        with: {connection: shop, run: "update stock set free = free - 1 where sku = 'A'"}
        compensate: auto
      - {id: pay, uses: work, compensate: unwork, on_failure: park}
"""

LOCKED = """
    saga: locked
    locks: {keys: [k], wait: 60s}
    steps:
      - {id: pay, uses: work, compensate: unwork, on_failure: park}
"""

IMPATIENT = LOCKED.replace("saga: locked", "saga: impatient").replace("60s", "fail")
PARENT = """
    saga: parent
    locks: {keys: [k], wait: 60s}
    steps:
      - {id: order, uses: saga, with: {name: inner, input: {}}}
"""

INNER = """
    saga: inner
    steps:
      - {id: pay, uses: work, compensate: unwork, on_failure: park}
"""


def hint(id: str) -> str:
    return f"that saga is parked and waits for an operator: saga show {id}"


async def stuck_reasons(client: Client, id: str) -> list[str]:
    """Reasons in `saga list --stuck` for a saga."""
    queue = client.project.settings.temporal.task_queue
    stuck = [view async for view in list_stuck(client.locator, SagaFilter(task_queue=queue), limit=100)]
    return [reason for view in stuck if view.id == id for reason in view.stuck or ()]


async def shown_reasons(client: Client, id: str) -> list[str]:
    """The reasons in `saga show`, and the messages of its steps and of its wait for locks."""
    view = await read_view_with_stuck(client.locator, id)
    errors = [
        operation.error
        for step in view.steps
        for operation in (step, step.compensation)
        if operation is not None and operation.error
    ]
    return [*unreported_reasons(view), view.lock_wait or "", *(error.message or "" for error in errors)]


async def said_once(client: Client, id: str, holder: str) -> None:
    for said in (shown_reasons, stuck_reasons):

        async def hints(said: Any = said) -> list[str]:
            return [reason for reason in await said(client, id) if hint(holder) in reason]

        assert len(await until(hints)) == 1


async def test_rows_of_a_parked_saga(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    async with env.engine.begin() as connection:
        await connection.execute(text("create table stock (sku text primary key, free integer not null)"))
        await connection.execute(text("insert into stock values ('A', 5)"))
    env.plan["do pay"] = [{"value": 1}, Rejected("no credit"), {"value": 2}]
    async with env.serving(ORDER) as client:
        done = await run_saga(client, "order")
        parked = await run_saga(client, "order")
        assert (done["state"], parked["state"]) == ("COMPLETED", "PARKED")
        waiting = await begin(client, "order")
        await said_once(client, waiting, parked["id"])
        with monkeypatch.context() as patch:
            patch.setattr(row_locks, "DEFAULT_WAIT", 0.0)
            refused = await run_saga(client, "order")
            assert (await finished(client, waiting))["state"] == "COMPENSATED"
        assert (refused["state"], refused["reason"]["type"]) == ("COMPENSATED", "RowLocked")
        row_and_holder = f"the row sku=A of stock is locked by the saga {parked['id']}"
        since = refused["reason"]["details"]["since"]
        assert re.fullmatch(r"20..-..-..T..:..:..(\.\d+)?Z", since)
        expected = f"still not free after 0 s: {row_and_holder} since {since}; {hint(parked['id'])}"
        assert refused["reason"]["message"] == expected
        await client.undo(done["id"], reason="returned", who="ada")
        await said_once(client, done["id"], parked["id"])
        assert (await resolve(client, parked["id"], "pay", "compensate"))["state"] == "COMPENSATED"
        assert row(await finished(client, done["id"]), "take")["state"] == "COMPENSATED"


async def test_locks_of_a_parked_saga(env: Environment) -> None:
    await create_tables(env.engine)
    env.plan["do pay"] = [Rejected("no credit"), {"value": 1}]
    async with env.serving(LOCKED, IMPATIENT) as client:
        parked = await run_saga(client, "locked")
        waiting = await begin(client, "locked")
        await said_once(client, waiting, parked["id"])
        refused = await run_saga(client, "impatient")
        assert (refused["state"], refused["reason"]["kind"]) == ("COMPENSATED", "locked")
        assert refused["reason"]["message"].startswith(f"k is held by {parked['id']} since ")
        assert refused["reason"]["message"].endswith(f"; {hint(parked['id'])}")
        assert (await resolve(client, parked["id"], "pay", "retry"))["state"] == "COMPLETED"
        assert (await finished(client, waiting))["state"] == "COMPLETED"


@pytest.mark.slow
@pytest.mark.parametrize("holder", ["locked", "parent"])
async def test_a_holder_that_parks_later_or_is_blocked_by_a_nested_saga(env: Environment, holder: str) -> None:
    await create_tables(env.engine)
    move, begun, go = gate()

    async def reject(step: Any) -> Any:
        await move(step)
        raise Rejected("no credit")

    env.plan["do pay"] = [reject, {"value": 1}]
    async with env.serving(LOCKED, IMPATIENT, PARENT, INNER) as client:
        first = await begin(client, holder)
        await wait_for_event(begun)
        waiting = await begin(client, "locked")

        async def waits() -> bool:
            return f"held by {first}" in ((await client.view(waiting)).lock_wait or "")

        await until(waits)
        assert not [reason for reason in await shown_reasons(client, waiting) if "parked" in reason]
        go.set()
        await said_once(client, waiting, first)
        refused = await run_saga(client, "impatient")
        assert refused["reason"]["message"].endswith(f"; {hint(first)}")
        inner = (await client.view(first)).parked[0].commands[0].split()[2]
        assert (await resolve(client, inner, "pay", "retry"))["state"] == "COMPLETED"
        assert (await finished(client, waiting))["state"] == "COMPLETED"
