"""Commands of a saga whose id is used by another one, or by a run with another input, while their effects are open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from saga_workers.stuck.resumption import start_again
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.processes import TemporalServer
from tests.helpers.run_changes import take_id
from tests.helpers.waiting import until
from tests.integration.messaging.request.request_environment import Environment, open_environment, resolve

SENT = """
saga: sent
steps:
  - id: reserve
    uses: kafka.request
    with: {topic: PREFIX-commands, value: {do: "${{ input.do }}", undo: "${{ input.undo }}", n: "${{ input.n }}"}}
    compensate: kafka.request
  - {id: go, uses: wait, with: {signal: go}}
"""
UNDONE = """
saga: undone
steps:
  - id: reserve
    uses: noted
    compensate: {uses: kafka.request, with: {topic: PREFIX-commands, value: {undo: "${{ input.undo }}"}}}
  - {id: go, uses: wait, with: {signal: go}}
"""
ACTIONS = """
from sagas import action

@action("noted")
async def noted(step) -> None:
    pass
"""


@pytest.fixture(scope="module")
async def env(
    tmp_path_factory: pytest.TempPathFactory, temporal: TemporalServer, kafka: Broker, postgres_server: DatabaseServer
) -> AsyncIterator[Environment]:
    folder = tmp_path_factory.mktemp("others") / "project"
    definitions = (SENT, SENT.replace("saga: sent", "saga: other"), UNDONE)
    async with open_environment(folder, temporal, kafka, postgres_server, *definitions, actions=ACTIONS) as environment:
        yield environment


def about(n: int, do: str = "done") -> dict[str, Any]:
    return {"n": n, "do": do, "undo": "done"}


async def take(env: Environment, saga_id: str, saga: str, n: int) -> None:
    queue = env.project.settings.temporal.task_queue
    await take_id(env.client.temporal, saga_id, saga, about(n), task_queue=queue)


async def waits_for_go(env: Environment, saga_id: str) -> None:
    async def waits() -> bool:
        steps = (await env.client.show(saga_id))["steps"]  # none while its run cannot be queried
        return any(row["id"] == "go" and row["state"] == "RUNNING" for row in steps)

    await until(waits)


@pytest.mark.sampled(keep=3)
@pytest.mark.parametrize("ends", ["completed", "cancelled"])
@pytest.mark.parametrize("decision", ["compensate", "retry", "done", "skip"])
@pytest.mark.parametrize("other", ["sent", "other"])
@pytest.mark.parametrize("do", ["done", "reject", "silent"])
async def test_a_command_of_another_saga_is_not_its_own(
    env: Environment, do: str, other: str, decision: str, ends: str
) -> None:
    """The command of the first one is done, refused or without a reply when the id is taken."""
    saga_id = await env.begin("sent", **about(1, do))
    key = f"{saga_id}/reserve"
    await env.waits(saga_id)
    if do == "done":
        await waits_for_go(env, saga_id)
    elif do == "reject":
        assert (await env.ended(saga_id))["state"] == "COMPENSATED"
    sent = [row["value"] for row in await env.sent(saga_id)]
    await take(env, saga_id, other, 2)
    story = await env.ended(saga_id)
    assert [(parked["step"], parked["why"]) for parked in story["parked"]] == [
        ("reserve", "key used with other arguments")
    ]
    assert [row["value"] for row in await env.sent(saga_id)] == sent
    more = {"result": {"id": "by hand"}} if decision == "done" else {}
    await resolve(env, saga_id, "reserve", decision, **more)
    effects = [key] if do == "done" else []
    if decision == "compensate":
        assert (await env.ended(saga_id))["state"] == "COMPENSATED"
    else:
        await waits_for_go(env, saga_id)
        if decision == "retry":
            assert env.effects(saga_id) == [*effects, f"{key}@2"]
        await env.client.cancel(saga_id)
        assert (await env.ended(saga_id))["state"] == "COMPENSATED"
    assert env.effects(saga_id) == effects
    assert [op for at, op in env.received(saga_id) if at.startswith(f"{key}/")] == []
    if do == "reject":
        return
    await start_again(env.client, await env.client.locator.locate(saga_id))
    if do == "silent":
        await env.answer(key)
    await waits_for_go(env, saga_id)
    if ends == "completed":
        await env.client.signal(saga_id, "go")
        assert ((await env.ended(saga_id))["state"], env.effects(saga_id)) == ("COMPLETED", effects)
    else:
        await env.client.cancel(saga_id)
        assert ((await env.ended(saga_id))["state"], env.effects(saga_id)) == ("COMPENSATED", [])
        assert [op for at, op in env.received(saga_id) if not at.startswith(f"{key}@")] == ["do", "undo"]


async def test_an_undo_command_of_another_saga_is_not_its_own(env: Environment) -> None:
    """The forward action has no guard, and the first saga has undone its effect under the same key."""
    saga_id = await env.begin("undone", **about(1))
    await waits_for_go(env, saga_id)
    await env.client.cancel(saga_id)
    assert (await env.ended(saga_id))["state"] == "COMPENSATED"
    await take(env, saga_id, "undone", 2)
    await waits_for_go(env, saga_id)
    await env.client.cancel(saga_id)
    story = await env.ended(saga_id)
    assert (story["state"], [parked["step"] for parked in story["parked"]]) == ("PARKED", ["reserve"])
    assert env.seen(saga_id) == ["undo"]
