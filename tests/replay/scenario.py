"""One saga whose history is kept: its definition, what operators do to it, and how it is played."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text

from saga_activities.connections import DatabaseConnections
from saga_activities.locks.tables import create_tables as create_lock_tables
from saga_activities.messaging import kafka_request
from saga_activities.messaging.kafka_request import Reply
from saga_workers.client import Client
from saga_workers.trigger.replies import complete_attempt
from sagas.errors import SagaError, UsageError
from sagas.settings import HttpService, SqlConnection
from tests.helpers.local_worker import finished
from tests.helpers.payment_server import PaymentServer
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, handle, resolve

After = Callable[[Client, str], Awaitable[Any]]


@dataclass(frozen=True)
class Scenario:
    """One saga, how its actions behave, operator actions, and how it must end."""

    name: str
    definitions: tuple[str, ...]
    state: str
    plan: Mapping[str, list[Any]] = field(default_factory=dict)
    input: Mapping[str, Any] = field(default_factory=dict)
    before: After | None = None
    after: After | None = None
    plain: bool = False
    """Started by a client that knows only Temporal."""
    long: bool = False
    """Played on a server that suggests a new run early: it moves through several."""
    http: tuple[Mapping[str, Any], ...] | None = None
    """What happens to the requests to the payment service `crm`, in their order; None: there is none."""


EARLY = "limit.historyCount.suggestContinueAsNew=30"
"""How the server of the long ones is configured."""


def saga(name: str, *steps: str, top: str = "") -> str:
    lines = [f"saga: {name}", *([top] if top else []), "steps:", *(f"  - {{{step}}}" for step in steps)]
    return "\n".join(lines) + "\n"


async def native_cancel(client: Client, id: str) -> None:
    await until(lambda: _is(client, id, "w", "RUNNING"))
    await handle(client, id).cancel()


async def cancel(client: Client, id: str) -> None:
    await until(lambda: _is(client, id, "w", "RUNNING"))
    await handle(client, id).execute_update("cancel", {"who": "ada"})


async def cancel_parent(client: Client, id: str) -> None:
    """Cancel the saga when its nested saga waits."""
    await until(lambda: _child_waits(client, id))
    await handle(client, id).execute_update("cancel", {"who": "ada"})


async def _child_waits(client: Client, id: str) -> bool:
    try:
        return await _is(client, f"{id}/c", "w", "RUNNING")
    except SagaError:
        return False  # it has not started yet


async def signal(client: Client, id: str) -> None:
    await until(lambda: _is(client, id, "w", "RUNNING"))
    await client.signal(id, "go", 1, who="ada")


async def refuse(client: Client, id: str) -> None:
    await client.signal(id, "go", who="ada", reject="too late")


async def pause_and_resume(client: Client, id: str) -> None:
    """Pause it while it waits for `go`, cancel nothing, and resume it when its next step is held back."""
    await until(lambda: _is(client, id, "w", "RUNNING"))
    await client.pause(id, reason="a pause", who="ada")
    await client.signal(id, "go")

    async def is_held() -> bool:
        paused = (await client.view(id)).paused
        return paused is not None and paused.held == ("b",)

    await until(is_held)
    await client.resume(id)


def decide(step: str, decision: str, **more: Any) -> After:
    async def after(client: Client, id: str) -> None:
        await finished(client, id)
        await resolve(client, id, step, decision, evidence="looked", **more)

    return after


def decide_in_child(step: str, decision: str) -> After:
    async def after(client: Client, id: str) -> None:
        await until(lambda: _child_is_parked(client, id))
        await client.resolve(f"{id}/c", {"step": step, "decision": decision, "reason": "because", "who": "ada"})

    return after


async def _child_is_parked(client: Client, id: str) -> bool:
    try:
        return (await client.show(f"{id}/c"))["state"] == "PARKED"
    except UsageError:
        return False  # it has not been started yet


def reply(*replies: tuple[str, str, Any]) -> After:
    """Reply to commands of the step `ask`, each when an attempt waits for it: the suffix of its key, outcome, value."""

    async def after(client: Client, id: str) -> None:
        url = client.project.settings.connection("shop").url
        databases = DatabaseConnections([SqlConnection(name="shop", url_setting=url)])
        engine = databases.engine("shop")

        async def waits(key: str) -> Any:
            question = text(
                "select reply_topic, reply_token from saga_request where step_key = :key and token is not null"
            )
            async with engine.connect() as connection:
                return (await connection.execute(question, {"key": key})).first()

        for ending, outcome, value in replies:
            key = f"{id}/ask{ending}"
            row = await until(lambda key=key: waits(key))
            given = Reply(key, outcome, json.dumps(value), row.reply_topic, row.reply_token)
            _, request = await kafka_request.record_reply(engine, given)
            assert request is not None
            await complete_attempt(client.temporal, request, key)
        await databases.close()

    return after


async def hold(client: Client, id: str) -> None:
    """Another saga takes the locks that this one needs."""
    await client.start("holder", {}, id=f"holder-of-{id}")
    await until(lambda: _is(client, f"holder-of-{id}", "w", "RUNNING"))


async def free(client: Client, id: str) -> None:
    """The saga waits for its locks; then the other one ends."""
    await until(lambda: _waits_for_locks(client, id))
    await client.signal(f"holder-of-{id}", "go")


async def cancel_waiting(client: Client, id: str) -> None:
    await until(lambda: _waits_for_locks(client, id))
    await handle(client, id).execute_update("cancel", {"who": "ada"})


async def _waits_for_locks(client: Client, id: str) -> bool:
    locks = (await client.show(id)).get("locks")
    return bool(locks and locks.get("waits_for"))


async def undo(client: Client, id: str) -> None:
    await finished(client, id)
    await handle(client, id).result()  # its view is then in its memo, and no busy worker has to tell it
    await client.undo(id, reason="returned", who="ada")
    await handle(client, f"{id}~undo").result()


@contextlib.asynccontextmanager
async def playing(env: Environment, scenario: Scenario, **options: Any) -> AsyncIterator[Client]:
    """A worker for one scenario, and the service it needs; ``options`` are the worker's."""
    env.plan = {what: list(moves) for what, moves in scenario.plan.items()}
    if scenario.name.startswith("locks-"):
        await create_lock_tables(env.engine)
    with contextlib.ExitStack() as services:
        if scenario.http is not None:
            service = services.enter_context(PaymentServer())
            service.faults(*(dict(fault) for fault in scenario.http))
            env.connections["crm"] = HttpService(name="crm", root=env.folder, url_setting=service.url)
        async with env.serving(*scenario.definitions, **options) as client:
            yield client


async def perform(client: Client, scenario: Scenario) -> tuple[str, dict[str, Any]]:
    """Play one scenario to its end; gives the saga's id and its story."""
    name = scenario.definitions[0].split()[1]
    id = f"{name}-{uuid.uuid4()}"
    if scenario.before is not None:
        await scenario.before(client, id)
    if scenario.plain:
        queue = client.project.settings.temporal.task_queue
        await client.temporal.start_workflow(name, dict(scenario.input), id=id, task_queue=queue)
    else:
        await client.start(name, dict(scenario.input), id=id)
    if scenario.after is not None:
        await scenario.after(client, id)
    story = await finished(client, id)
    assert story["state"] == scenario.state, (scenario.name, story["state"], story["reason"], story["parked"])
    return id, story


async def _is(client: Client, id: str, step: str, state: str) -> bool:
    return any(row["id"] == step and row["state"] == state for row in (await client.show(id))["steps"])
