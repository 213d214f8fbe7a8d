"""Long sagas move to new runs with everything they know (temporal.md §1.1 row 11), on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType

from sagas import Rejected, Step
from sagas.protocol.payloads import EVENT_MEMO
from sagas.workflow import history_drain
from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.engine.environment import (
    Environment,
    begin,
    gate,
    handle,
    open_environment,
    row,
    run_saga,
    wait_for_event,
)
from tests.replay.scenario import EARLY, Scenario, perform, playing
from tests.replay.scenarios import SCENARIOS


@pytest.fixture(scope="module")
def small_history_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    """A server that suggests a new run after some dozens of events."""
    server = TemporalServer(tmp_path_factory.mktemp("small-history"), extra=[EARLY]).start()
    yield server
    server.kill()


@pytest.fixture
async def env(small_history_server: TemporalServer, tmp_path: Path) -> AsyncIterator[Environment]:
    environment = await open_environment(tmp_path, small_history_server.address)
    yield environment
    await environment.engine.dispose()


async def runs(client, saga: str) -> int:
    """How many runs the saga has had."""
    described = await handle(client, saga).describe()
    first = described.raw_description.workflow_execution_info.first_run_id
    number, run_id = 1, first
    while run_id != described.run_id:
        history = await client.temporal.get_workflow_handle(saga, run_id=run_id).fetch_history()
        last = history.events[-1]
        assert last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
        run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
        number += 1
    return number


@pytest.mark.slow
async def test_a_pause_survives_continue_as_new(env: Environment) -> None:
    definition = """
        saga: paused
        steps:
          - {id: a, uses: book, compensate: unbook}
          - {id: b, uses: book, compensate: unbook}
    """
    move, begun, go = gate()
    env.plan["do a"] = [move]
    async with env.serving(definition) as client:
        saga = await begin(client, "paused")
        await wait_for_event(begun)
        await client.pause(saga, who="mia", reason="the shop is closed")
        go.set()

        async def moved() -> bool:
            await handle(client, saga).signal("unexpected", 1)
            return await runs(client, saga) > 2

        await until(moved)
        paused = (await client.view(saga)).paused
        assert paused is not None
        assert (paused.who, paused.reason, paused.held) == ("mia (unverified)", "the shop is closed", ("b",))
        assert env.log() == ["do a"]
        await client.resume(saga)
        assert (await finished(client, saga))["state"] == "COMPLETED"
    assert env.log() == ["do a", "do b"]


@pytest.mark.parametrize("parallel", [pytest.param(1, marks=pytest.mark.slow), 5])
async def test_the_compensation_stack_survives_continue_as_new(env: Environment, parallel: int) -> None:
    definition = f"""
        saga: stack
        labels: {{kind: long}}
        steps:
          - {{id: a, for_each: "${{{{ input.n }}}}", max_parallel: {parallel}, uses: book, compensate: unbook}}
          - {{id: b, uses: work, effect: none}}
        input: {{type: object, properties: {{n: {{type: array}}}}}}
    """
    env.plan["do b"] = [Rejected("no")]
    async with env.serving(definition) as client:
        story = await run_saga(client, "stack", {"n": list(range(40))})
        assert story["state"] == "COMPENSATED"
        assert await runs(client, story["id"]) > 2
        described = await handle(client, story["id"]).describe()
        assert ["kind=long"] in [pair.value for pair in described.typed_search_attributes]
    undone = [what for what in env.log() if what.startswith("undo")]
    assert undone == [f"undo a#{n}" for n in reversed(range(40))]
    assert await env.effects() == []


async def test_signals_timers_and_the_cancel_survive(env: Environment) -> None:
    definition = """
        saga: moving
        deadline: 1h
        steps:
          - {id: a, for_each: "${{ input.n }}", uses: book, compensate: unbook}
          - {id: early, uses: wait, with: {signal: early}}
          - {id: late, uses: wait, with: {signal: late, timeout: 1h}}
        input: {type: object, properties: {n: {type: array}}}
    """
    move, begun, go = gate()
    env.plan["do a#2"] = [move]
    async with env.serving(definition) as client:
        saga = await begin(client, "moving", {"n": list(range(30))})
        await wait_for_event(begun)
        await client.signal(saga, "early", 1)
        go.set()
        await until(lambda: _running(client, saga, "late"))
        assert await runs(client, saga) > 1
        story = await client.show(saga)
        assert row(story, "early")["result"]["data"] == 1
        assert story["deadline_at"] is not None
        await handle(client, saga).cancel()
        story = await finished(client, saga)
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "cancelled")
    assert await env.effects() == []


@pytest.mark.slow
async def test_a_cancel_in_one_run_applies_in_the_next(env: Environment) -> None:
    definition = """
        saga: cancelling
        steps:
          - {id: a, for_each: "${{ input.n }}", uses: book, compensate: unbook}
        input: {type: object, properties: {n: {type: array}}}
    """
    move, begun, go = gate()
    env.plan["do a#30"] = [move]
    async with env.serving(definition) as client:
        saga = await begin(client, "cancelling", {"n": list(range(40))})
        await wait_for_event(begun)
        await handle(client, saga).cancel()
        go.set()
        story = await finished(client, saga)
        status = (await handle(client, saga).describe()).status
    assert (story["state"], status.name if status else None) == ("COMPENSATED", "CANCELED")
    assert await env.effects() == []


CLOSING = """
    saga: closing
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: p, uses: book, pivot: true}
"""


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("way", ["natively", "by update", "by a second signal"])
async def test_what_arrives_in_the_task_that_continues_as_new_is_not_lost(env: Environment, way: str) -> None:
    """The worker is away while signals fill the history, and the cancel comes last: all are in one task."""
    async with env.serving(CLOSING) as client:
        saga = await begin(client, "closing")
        await until(lambda: _running(client, saga, "go"))
    cancelling: asyncio.Task[object] | None = None
    for number in range(45):
        await handle(client, saga).signal("other", number)
    match way:
        case "natively":
            await handle(client, saga).cancel()
        case "by update":
            cancelling = asyncio.create_task(handle(client, saga).execute_update("cancel"))
            await asyncio.sleep(1)
        case _:
            await handle(client, saga).signal("go", 1)
    async with env.again() as client:
        story = await finished(client, saga, "60s")
        described = await handle(client, saga).describe()
        assert described.status is not None
        assert described.status.name == {"natively": "CANCELED", "by update": "FAILED"}.get(way, "COMPLETED")
    if cancelling is not None:
        assert await cancelling == "accepted"
    if way == "by a second signal":
        assert (story["state"], env.log()) == ("COMPLETED", ["do a", "do p"])
    else:
        assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "cancelled")
        assert env.log() == ["do a", "undo a"]


@pytest.mark.slow
async def test_a_long_call_does_not_stop_the_other_branch(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run waits for the call only for a while, and continues as new once the call has ended."""
    monkeypatch.setattr(history_drain, "MAX_DRAIN", timedelta(milliseconds=200))
    definition = """
        saga: stalled
        steps:
          - {id: q, needs: [], uses: work, effect: none}
          - {id: a, needs: [], for_each: "${{ input.n }}", uses: book, compensate: unbook}
          - {id: b, needs: [q, a], for_each: "${{ input.n }}", uses: book, compensate: unbook}
        input: {type: object, properties: {n: {type: array}}}
    """
    move, begun, go = gate()
    env.plan["do q"] = [move]
    async with env.serving(definition) as client:
        starter = await client.starter("stalled")
        request = replace(starter.make_request({"n": list(range(30))}), event="the event that starts it")
        saga = (await starter.start(request)).id
        await wait_for_event(begun)
        await until(lambda: "do a#29" in env.log())
        assert await runs(client, saga) == 1
        monkeypatch.undo()
        go.set()
        assert (await finished(client, saga))["state"] == "COMPLETED"
        assert await runs(client, saga) > 1
        assert (await (await handle(client, saga).describe()).memo())[EVENT_MEMO] == "the event that starts it"
    assert sorted(env.log()) == sorted(["do q", *(f"do {step}#{n}" for step in "ab" for n in range(30))])


async def test_no_new_run_while_a_nested_saga_runs(env: Environment) -> None:
    parent = """
        saga: elder
        steps:
          - {id: child, needs: [], uses: saga, with: {name: younger}}
          - {id: a, needs: [], for_each: "${{ input.n }}", uses: book, compensate: unbook}
          - {id: b, uses: work, effect: none}
        input: {type: object, properties: {n: {type: array}}}
    """
    child = "        saga: younger\n        steps:\n          - {id: x, uses: wait, with: {signal: go}}\n"
    async with env.serving(parent, child) as client:
        saga = await begin(client, "elder", {"n": list(range(20))})
        await until(lambda: "do a#19" in env.log())
        assert await runs(client, saga) == 1, "the child reports to this run; the items went on"
        await client.signal(f"{saga}/child", "go")
        assert (await finished(client, saga))["state"] == "COMPLETED"


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize(
    "scenario", [scenario for scenario in SCENARIOS if scenario.long], ids=lambda scenario: scenario.name
)
async def test_every_task_replays_in_every_run(env: Environment, scenario: Scenario) -> None:
    async with playing(env, scenario, max_cached_workflows=0) as client:
        saga, _ = await perform(client, scenario)
        assert await runs(client, saga) > 1


@pytest.mark.slow
async def test_parallel_items_with_large_arguments(env: Environment) -> None:
    definition = """
        saga: large
        steps:
          - id: a
            for_each: "${{ input.n }}"
            max_parallel: 200
            uses: work
            with: {value: "${{ input.text }}"}
            effect: none
        input: {type: object, properties: {n: {type: array}, text: {type: string}}}
    """
    sizes: list[int] = []

    async def small(step: Step) -> None:
        sizes.append(1)

    env.plan |= {f"do a#{n}": [small] for n in range(60)}
    async with env.serving(definition) as client:
        story = await run_saga(client, "large", {"n": list(range(60)), "text": "x" * 100_000})
    assert story["state"] == "COMPLETED"
    assert len(sizes) == 60


@pytest.mark.slow
async def test_five_thousand_items(env: Environment, temporal: TemporalServer) -> None:
    """On a server with default settings, including its limit for a long history."""
    definition = """
        saga: thousands
        steps:
          - {id: a, for_each: "${{ input.n }}", max_parallel: 200, uses: work, compensate: unwork, execution: remote}
        output: "${{ size(steps.a.results) }}"
        input: {type: object, properties: {n: {type: array}}}
    """
    env.address = temporal.address
    async with env.serving(definition) as client:
        saga = await begin(client, "thousands", {"n": list(range(5000))})
        assert await asyncio.wait_for(handle(client, saga).result(), 300) == 5000
        assert await runs(client, saga) > 1
    assert len(env.asked) == 5000
    assert len({request.key for request in env.asked}) == 5000


async def _running(client, saga: str, step: str) -> bool:
    rows = (await client.show(saga))["steps"]  # none before the run has begun
    return any((row["id"], row["state"]) == (step, "RUNNING") for row in rows)
