"""Replies after an operator has vouched that a command was not done, and replies that are refused."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from temporalio.client import WorkflowFailureError

from saga_cli import main
from saga_spark.reconcile.extracts import ReconciliationScope
from saga_workers.doctor.saga_checks import check_late_replies
from saga_workers.location.locator import using_locator
from saga_workers.reconcile.reconciliation import reconcile
from saga_workers.stuck.database_traces import read_database_traces
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.stuck.stuck_view import read_view_with_stuck
from saga_workers.views.saga_list import SagaFilter
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.processes import TemporalServer
from tests.helpers.run_changes import reset_run
from tests.helpers.waiting import until
from tests.integration.messaging.request.request_environment import Environment, open_environment, resolve

TRIP = """
saga: trip
input: {type: object, properties: {undo: {type: string}}}
steps:
  - id: reserve
    uses: kafka.request
    with: {topic: PREFIX-commands, value: {do: done, undo: "${{ input.undo }}"}}
    compensate: kafka.request
  - id: pay
    uses: kafka.request
    with: {topic: PREFIX-commands, value: {do: silent}}
    pivot: true
    timeout: 2s
    retry: {max_attempts: 2, initial_interval: 100ms, max_interval: 1s}
"""


ORDER = """
saga: order
steps:
  - id: reserve
    uses: kafka.request
    with: {topic: PREFIX-commands, value: {do: done, undo: done}}
    compensate: kafka.request
  - id: book
    uses: kafka.request
    with: {topic: PREFIX-commands, value: {do: done}}
    compensate: {uses: shop.unbook, with: {}}
  - id: approval
    uses: wait
    with: {signal: approved}
"""

ACTIONS = """
from sagas import action


@action("shop.unbook")
async def unbook() -> None:
    pass
"""


@pytest.fixture(scope="module")
async def env(
    tmp_path_factory: pytest.TempPathFactory, temporal: TemporalServer, kafka: Broker, postgres_server: DatabaseServer
) -> AsyncIterator[Environment]:
    folder = tmp_path_factory.mktemp("late-replies") / "project"
    async with open_environment(folder, temporal, kafka, postgres_server, TRIP, ORDER, actions=ACTIONS) as environment:
        yield environment


async def given_up(env: Environment, undo: str) -> str:
    """A saga whose pivot has no reply, and which an operator leads back."""
    saga_id = await env.begin("trip", undo=undo)
    assert (await env.ended(saga_id))["state"] == "PARKED"
    await resolve(env, saga_id, "pay", "compensate", evidence="the bank says no")
    await until(lambda: env.seen(saga_id) == ["do", "do", "undo"])
    return saga_id


async def says_done(env: Environment, saga_id: str) -> None:
    """The participant replies to the pivot's command, and the reply is recorded."""
    await env.answer(f"{saga_id}/pay", "done", {"paid": 1})

    async def recorded() -> bool:
        row = await env.row(f"{saga_id}/pay")
        return row is not None and row["outcome"] == "done"

    await until(recorded)


async def test_a_reply_while_the_saga_goes_back_is_a_residue(env: Environment) -> None:
    saga_id = await given_up(env, "held")
    await says_done(env, saga_id)
    env.let_go(saga_id)
    story = await env.ended(saga_id)
    assert (story["state"], story["reason"]["kind"]) == ("RESIDUE", "operator")
    assert [(row["step"], row["kind"], row["key"]) for row in story["residue"]] == [
        ("pay", "effect_stays", f"{saga_id}/pay")
    ]
    assert env.effects(saga_id) == []


async def test_a_reply_after_the_end_is_found(env: Environment) -> None:
    saga_id = await given_up(env, "done")
    assert (await env.ended(saga_id))["state"] == "COMPENSATED"
    settings, ended = env.project.settings, time.time()
    scopes = [ReconciliationScope(saga_id=saga_id), ReconciliationScope(), ReconciliationScope(since=ended)]

    async def late_replies(scope: ReconciliationScope) -> list[tuple[str, str, str]]:
        async with using_locator(env.client.temporal, settings) as locator:
            findings = (await reconcile(locator, settings, scope))["findings"]
        return [
            (finding["saga_id"], finding["step"], finding["command"])
            for finding in findings
            if finding["class"] == "late_reply"
        ]

    assert [await late_replies(scope) for scope in scopes] == [[], [], []]
    assert (await check_late_replies(env.client.temporal, settings)).ok
    await says_done(env, saga_id)
    finding = (saga_id, "pay", f"saga show {saga_id}")
    assert [await late_replies(scope) for scope in scopes] == [[finding]] * 3
    told = await check_late_replies(env.client.temporal, settings)
    assert (told.ok, told.help) == (False, f"saga reconcile {saga_id}")
    assert told.message == f"{saga_id} is COMPENSATED without pay, and its participant has replied that it is done"


async def test_what_a_run_before_a_reset_has_undone_is_no_finding(env: Environment) -> None:
    """One step is undone by a command, the other by a function, of which only the run itself tells."""
    saga_id = await env.begin("order")
    await until(lambda: len(env.effects(saga_id)) == 2)
    await env.client.cancel(saga_id, reason="not wanted")
    ended = await env.ended(saga_id)
    states = {step["id"]: step["state"] for step in ended["steps"]}
    assert (ended["state"], states["reserve"], states["book"]) == ("COMPENSATED", "COMPENSATED", "COMPENSATED")
    before = time.time()
    run_id = await reset_run(env.client.temporal, saga_id)
    handle = env.client.temporal.get_workflow_handle(saga_id, run_id=run_id)
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    after = await env.ended(saga_id)
    assert (after["state"], after["steps"][0]["state"]) == ("COMPENSATED", "COMPENSATED")

    async def is_visible() -> bool:
        closed = await env.client.temporal.count_workflows(f"WorkflowId = '{saga_id}' AND ExecutionStatus = 'Failed'")
        return closed.count == 2

    await until(is_visible)
    settings = env.project.settings
    for scope in (ReconciliationScope(saga_id=saga_id), ReconciliationScope(), ReconciliationScope(since=before)):
        async with using_locator(env.client.temporal, settings) as locator:
            findings = (await reconcile(locator, settings, scope))["findings"]
        assert [finding["class"] for finding in findings if finding["saga_id"] == saga_id] == []
    assert saga_id not in (await check_late_replies(env.client.temporal, settings)).message


async def test_a_refused_reply_is_named_until_the_right_one_comes(
    env: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    id = await env.begin("trip", undo="done")
    await env.waits(id, "pay")
    await env.answer(f"{id}/pay", token="guessed")

    async def stuck() -> str:
        return "\n".join((await read_view_with_stuck(env.client.locator, id)).stuck or ())

    async def listed() -> str:
        locator = env.client.locator
        traces = await read_database_traces(locator, env.project, lambda what, error: None)
        views = [view async for view in list_stuck(locator, SagaFilter(saga="trip"), limit=100, databases=traces)]
        return "\n".join(reason for view in views if view.id == id for reason in view.stuck or ())

    refused = "a reply to the command of pay was refused at "
    why = ", and is a dead letter: the header sagatoken is not that of the command"
    await until(lambda: _holds(stuck, refused, why))
    await until(lambda: _holds(listed, refused, why))
    assert (await env.ended(id))["state"] == "PARKED"
    await env.answer(f"{id}/pay", "maybe")
    await until(lambda: _holds(stuck, refused, "the header sagaoutcome is 'maybe'"))
    config = str(env.folder / "saga.toml")
    capsys.readouterr()
    assert await asyncio.to_thread(main.run, ["--config", config, "--json", "parked", "--saga", "trip"]) == 0
    [group] = json.loads(capsys.readouterr().out)
    assert group["refused_reply"] in await stuck()
    await env.answer(f"{id}/pay")
    await until(lambda: _holds_no(stuck, refused))
    assert refused not in await listed()
    story = await env.ended(id)
    if story["state"] == "PARKED":  # its last attempt was over before the reply came
        await resolve(env, id, "pay", "retry")
        story = await env.ended(id)
    assert story["state"] == "COMPLETED"


async def _holds(read: Callable[[], Awaitable[str]], *texts: str) -> bool:
    shown = await read()
    return all(text in shown for text in texts)


async def _holds_no(read: Callable[[], Awaitable[str]], text: str) -> bool:
    return text not in await read()
