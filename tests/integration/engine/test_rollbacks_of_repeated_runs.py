"""A run that repeats a deleted one goes backward before it has come to where that one was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from saga_activities.guard.tables import request_table
from saga_workers.client import Client
from saga_workers.stuck.resumption import start_again
from sagas import Step
from sagas.errors import RefusedError
from sagas.settings import HttpService
from tests.helpers import run_changes
from tests.helpers.local_worker import finished
from tests.helpers.payment_server import PaymentServer
from tests.helpers.run_changes import delete_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import (
    Environment,
    begin,
    handle,
    send_signed,
    states,
)
from tests.integration.engine.repeated_runs import waits_at

LINE = """
    saga: line
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: b, uses: book, compensate: unbook}
      - {id: go2, uses: wait, with: {signal: go2}}
"""
PIVOT = """
    saga: pivoted
    deadline: 1h
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: b, uses: book, pivot: true}
      - {id: go2, uses: wait, with: {signal: go2}}
      - {id: tail, uses: book}
"""
UNGUARDED_PIVOT = """
    saga: unguarded
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: b, uses: work, pivot: true}
      - {id: tail, uses: book}
      - {id: go2, uses: wait, with: {signal: go2}}
"""
REQUIRED = """
    saga: required
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: look, uses: work, effect: none}
      - {id: allowed, uses: require, with: {that: "steps.look.result.allowed", message: not any more}}
      - {id: b, uses: book, compensate: unbook}
      - {id: go2, uses: wait, with: {signal: go2}}
"""
CHARGE = """
    saga: charged
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
      - id: charge
        uses: http
        with: {connection: crm, method: POST, path: /charges, json: {account: h-1, amount: "12.50"}}
        compensate: {uses: http, with: {connection: crm, method: POST, path: /refunds, json: {}}}
      - {id: each, uses: book, for_each: "${{ input.list }}", with: {value: "${{ item }}"}, compensate: unbook}
      - {id: go2, uses: wait, with: {signal: go2}}
"""


@pytest.fixture
def payments() -> Iterator[PaymentServer]:
    with PaymentServer() as running:
        yield running


@pytest.fixture
def env(postgres_env: Environment) -> Environment:
    return postgres_env


async def begun_and_deleted(client: Client, saga: str, input: Any = None) -> str:
    """A saga that has come to its second wait, without a run."""
    id = await begin(client, saga, input)
    if saga != "required":
        await waits_at(client, id, "go")
        await handle(client, id).signal("go")
    await waits_at(client, id, "go2")
    await delete_run(client.temporal, id)
    return id


async def resume(client: Client, id: str) -> None:
    await start_again(client, await client.locator.locate(id), not_ended=True, who="anna", reason="lost")


async def test_a_cancel_undoes_the_steps_to_which_the_new_run_has_not_come(env: Environment) -> None:
    async with env.serving(LINE) as client:
        id = await begun_and_deleted(client, "line")
        assert await env.effects() == ["a", "b"]
        await resume(client, id)
        await waits_at(client, id, "go")
        await client.cancel(id)
        story = await finished(client, id)
        assert (story["state"], states(story)["b"]) == ("COMPENSATED", "COMPENSATED")
        assert await env.effects() == []
        assert [call for call in env.log() if call.startswith("undo")] == ["undo b", "undo a"]


async def test_neither_a_cancel_nor_the_deadline_undoes_what_precedes_a_pivot_that_is_done(env: Environment) -> None:
    async with env.serving(PIVOT) as client:
        id = await begun_and_deleted(client, "pivoted")
        await resume(client, id)
        await waits_at(client, id, "go")
        with pytest.raises(RefusedError, match="past the point of no return"):
            await client.cancel(id)
        events = [event async for event in handle(client, id).fetch_history_events()]
        assert not any(event.HasField("timer_started_event_attributes") for event in events)  # no deadline
        for signal in ("go", "go2"):
            await handle(client, id).signal(signal)
        assert (await finished(client, id))["state"] == "COMPLETED"
        assert await env.effects() == ["a", "b", "tail"]


async def test_a_requirement_that_is_not_met_any_more_undoes_what_followed_it(env: Environment) -> None:
    env.plan["do look"] = [{"allowed": True}, {"allowed": False}]
    async with env.serving(REQUIRED) as client:
        id = await begun_and_deleted(client, "required")
        assert await env.effects() == ["a", "b"]
        await resume(client, id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert await env.effects() == []


@pytest.mark.parametrize("told_by", [None, "a later step", "a recorded reply"])
async def test_a_pivot_without_a_guard_parks_unless_something_tells_of_it(
    env: Environment, told_by: str | None
) -> None:
    definition = UNGUARDED_PIVOT
    if told_by != "a later step":
        definition = definition.replace("      - {id: tail, uses: book}\n", "")
    async with env.serving(definition) as client:
        id = await begun_and_deleted(client, "unguarded")
        if told_by == "a recorded reply":
            row = {"step_key": f"{id}/b", "saga_id": id, "step": "b", "generation": 1, "op": "do", "outcome": "done"}
            async with env.engine.begin() as connection:
                await connection.execute(request_table.insert(), {**row, "created_at": 1.0})
        await resume(client, id)
        await waits_at(client, id, "go")
        if told_by is not None:
            with pytest.raises(RefusedError, match="past the point of no return"):
                await client.cancel(id)
        else:
            assert await client.cancel(id) == "recorded"
            story = await finished(client, id)
            assert (story["state"], [parked["step"] for parked in story["parked"]]) == ("PARKED", ["b"])
            decision = {"step": "b", "decision": "done", "reason": "it has it", "who": "ada", "evidence": "its list"}
            await send_signed(client, id, decision)
        for signal in ("go", "go2"):
            await handle(client, id).signal(signal)
        assert (await finished(client, id))["state"] == "COMPLETED"
        assert "undo a" not in env.log()


async def test_a_pivot_without_a_guard_that_was_in_flight_before_a_reset_parks(env: Environment) -> None:
    async with env.serving(UNGUARDED_PIVOT) as client:
        id = await begin(client, "unguarded")

        async def reset(step: Step) -> None:
            await run_changes.reset_run(client.temporal, id, keeps_signals=False)

        env.plan["do b"] = [reset, None]
        await waits_at(client, id, "go")
        await handle(client, id).signal("go")

        async def called() -> bool:
            return "do b" in env.log()

        await until(called)
        await waits_at(client, id, "go")
        assert await client.cancel(id) == "recorded"
        story = await finished(client, id)
        assert (story["state"], [parked["step"] for parked in story["parked"]]) == ("PARKED", ["b"])
        decision = {"step": "b", "decision": "compensate", "reason": "no", "who": "ada", "evidence": "its list"}
        await send_signed(client, id, decision)
        assert ((await finished(client, id))["state"], await env.effects()) == ("COMPENSATED", [])


async def test_a_reply_to_an_earlier_saga_of_the_id_tells_nothing(env: Environment) -> None:
    async with env.serving(UNGUARDED_PIVOT) as client:
        id = await begin(client, "unguarded")
        await waits_at(client, id, "go")
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        reply = {"step_key": f"{id}/b", "saga_id": id, "step": "b", "generation": 1, "op": "do", "outcome": "done"}
        async with env.engine.begin() as connection:
            await connection.execute(request_table.insert(), {**reply, "created_at": 1.0})
        await begin(client, "unguarded", id=id, again=True)
        await waits_at(client, id, "go")
        await run_changes.reset_run(client.temporal, id)
        await waits_at(client, id, "go")
        assert await client.cancel(id) == "accepted"
        assert ((await finished(client, id))["state"], await env.effects()) == ("COMPENSATED", [])


async def test_calls_and_items_ahead_are_undone(env: Environment, payments: PaymentServer) -> None:
    env.connections["crm"] = HttpService(name="crm", root=env.folder, url_setting=payments.url)
    async with env.serving(CHARGE) as client:
        id = await begun_and_deleted(client, "charged", {"list": [1, 2]})
        assert (await env.effects(), payments.ledger()["balance"]) == (["a", "each#0", "each#1"], "12.50")
        await resume(client, id)
        await waits_at(client, id, "go")
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert (await env.effects(), payments.ledger()["balance"]) == ([], "0.00")
        assert payments.ledger()["undone"] == [f"{id}/charge"]
        undone = [(call.what, call.value) for call in env.asked if call.what.startswith("undo each")]
        assert undone == [("undo each#1", 2), ("undo each#0", 1)]


async def test_a_reset_whose_former_run_is_deleted_undoes_what_that_had_done(env: Environment) -> None:
    async with env.serving(LINE) as client:
        id = await begin(client, "line")
        await waits_at(client, id, "go")
        await handle(client, id).signal("go")
        await waits_at(client, id, "go2")
        former = (await handle(client, id).describe()).run_id
    await run_changes.reset_run(client.temporal, id, keeps_signals=False)
    await run_changes.delete_run(client.temporal, id, former)
    async with env.again() as client:
        await waits_at(client, id, "go")
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert await env.effects() == []


PARENT = """
    saga: outer
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: child, uses: saga, with: {name: inner}}
      - {id: go2, uses: wait, with: {signal: go2}}
"""
CHILD = """
    saga: inner
    steps:
      - {id: b, uses: book, compensate: unbook}
"""


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("started", [True, False])
async def test_a_nested_saga_ahead_is_undone_if_it_was_started(env: Environment, started: bool) -> None:
    async with env.serving(PARENT, CHILD) as client:
        if started:
            id = await begun_and_deleted(client, "outer")
        else:
            id = await begin(client, "outer")
            await waits_at(client, id, "go")
            await delete_run(client.temporal, id)
        await resume(client, id)
        await waits_at(client, id, "go")
        await client.cancel(id)
        assert ((await finished(client, id))["state"], await env.effects()) == ("COMPENSATED", [])
        assert ("undo b" in env.log()) == started
