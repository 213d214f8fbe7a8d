"""Commands that another saga with the same id has sent, or that an action has undone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from temporalio.common import WorkflowIDConflictPolicy

from saga_workers.stuck.resumption import start_again
from tests.helpers import run_changes
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.messaging.request.request_environment import (
    Environment,
    open_environment,
    resolve,
    row_of,
)

WAITING = """
saga: waiting
input: {type: object, properties: {trip: {type: integer, default: 1}}}
steps:
  - id: reserve
    uses: kafka.request
    with: {topic: PREFIX-commands, value: {do: done, trip: "${{ input.trip }}"}}
    compensate: kafka.request
  - {id: go, uses: wait, with: {signal: go}}
"""
UNDONE_HERE = """
saga: undone-here
steps:
  - {id: gate, uses: sql, with: {connection: shop, run: "select 1"},
     compensate: {uses: sql, with: {connection: shop, run: "select 1 / 0"}}}
  - id: reserve
    uses: kafka.request
    with: {topic: PREFIX-commands, value: {do: done}}
    compensate: {uses: sql, with: {connection: shop, run: "select 1"}}
  - {id: go, uses: wait, with: {signal: go}}
"""


@pytest.fixture(scope="module")
async def env(
    tmp_path_factory: pytest.TempPathFactory, temporal: TemporalServer, kafka: Broker, postgres_server: DatabaseServer
) -> AsyncIterator[Environment]:
    folder = tmp_path_factory.mktemp("foreign-commands") / "project"
    async with open_environment(folder, temporal, kafka, postgres_server, WAITING, UNDONE_HERE) as environment:
        yield environment


async def waits(env: Environment, saga_id: str) -> None:
    async def is_waiting() -> bool:
        return row_of(await env.client.show(saga_id), "go")["state"] == "RUNNING"

    await until(is_waiting)


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("decision", ["compensate", "retry"])
async def test_the_command_of_a_run_with_another_input_is_not_its_own(env: Environment, decision: str) -> None:
    saga_id = await env.begin("waiting", trip=1)
    await waits(env, saga_id)
    queue, policy = env.project.settings.temporal.task_queue, WorkflowIDConflictPolicy.TERMINATE_EXISTING
    await env.client.temporal.start_workflow(
        "waiting", {"trip": 2}, id=saga_id, task_queue=queue, id_conflict_policy=policy
    )
    story = await env.ended(saga_id)
    assert (story["state"], story["parked"][0]["why"]) == ("PARKED", "key used with other arguments")
    await resolve(env, saga_id, "reserve", decision)
    if decision == "retry":
        await waits(env, saga_id)
        await env.client.cancel(saga_id)
    story = await env.ended(saga_id)
    assert (story["state"], env.effects(saga_id)) == ("COMPENSATED", [f"{saga_id}/reserve"])
    keys = [key for key, _ in env.received(saga_id)]
    again = [f"{saga_id}/reserve@2", f"{saga_id}/reserve@2/undo"] if decision == "retry" else []
    assert keys == [f"{saga_id}/reserve", *again]


async def test_a_command_that_an_action_has_undone_is_late(env: Environment) -> None:
    saga_id = await env.begin("undone-here")
    await waits(env, saga_id)
    await env.client.cancel(saga_id)
    story = await env.ended(saga_id)
    assert (story["state"], row_of(story, "reserve")["state"]) == ("PARKED", "COMPENSATED")
    await run_changes.delete_run(env.client.temporal, saga_id)
    await start_again(env.client, await env.client.locator.locate(saga_id), undone=["reserve"], not_ended=True)
    story = await env.ended(saga_id)
    assert (story["state"], story["reason"]["kind"], env.seen(saga_id)) == ("PARKED", "late", ["do"])
