"""Check-back: the saga is queried about events held for too long; only it, or an operator, may drop them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.common import WorkflowIDConflictPolicy

from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.guard import Guard
from saga_workers.doctor.checks import run_checks
from saga_workers.relay.check_back import CheckBack
from saga_workers.relay.entry_status import entry_status
from saga_workers.relay.event_decisions import decide_in_any_outbox
from saga_workers.relay.relay_process import run_relay
from saga_workers.relay.undecided_events import MAX_UNANSWERED, EventDecision, decide_event, list_undecided
from saga_workers.stuck.resumption import start_again
from sagas import Rejected, Step, action
from sagas.actions.events import Event
from sagas.errors import RefusedError
from sagas.protocol.doubtful_outcomes import UNVERIFIED, UNVERIFIED_ANSWER
from sagas.protocol.messages import GuardSpec
from sagas.protocol.payloads import Invocation
from sagas.protocol.saga_view import SagaView
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.forked_commands import run_command
from tests.helpers.free_ports import free_port
from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.messaging.relay.events_environment import (
    EventsEnvironment,
    begin,
    open_environment,
    run_saga,
)
from tests.integration.trust.test_forged_outcomes import close_as_stranger
from tests.integration.trust.test_forged_views import open_stranger

WAITING = """
saga: waiting
steps:
  - {id: tell, uses: kafka.publish, with: {topic: told, value: 1, hold: true}}
  - {id: approve, uses: wait, with: {signal: approved}}
"""

DAY = 86_400.0


@pytest.fixture
async def env(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> AsyncIterator[EventsEnvironment]:
    environment = await open_environment(tmp_path, temporal.address, postgres_server)
    yield environment
    await environment.databases.close()


async def held(env: EventsEnvironment, saga_id: str) -> None:
    async def there() -> bool:
        return await env.statuses(saga_id) == ["HELD"]

    await until(there)


async def asked(env: EventsEnvironment, back: CheckBack, times: int = 1) -> None:
    """Let time pass and the relay check back, so many times."""
    for _ in range(times):
        await env.query("update saga_outbox set next_check_at = 0 where status = 'HELD'")
        assert await back.check(Guard("shop", env.shop)) >= 1


@pytest.mark.slow  # test_the_relay_checks_back
async def test_a_seven_day_approval_keeps_its_events_held(env: EventsEnvironment) -> None:
    async with env.serving(WAITING) as client:
        saga_id = await begin(client, "waiting")
        await held(env, saga_id)
        await env.query("update saga_outbox set created_at = created_at - :week", week=7 * DAY)
        await asked(env, env.check_back(), MAX_UNANSWERED + 5)
        (row,) = await env.rows(saga_id)
        assert (row.status, row.checks, row.note) == ("HELD", 0, None), "an open saga is asked again, and never counted"
        assert row.next_check_at - time.time() > 3000, "and less often the longer it takes"
        assert await list_undecided(env.shop) == []
        await client.signal(saga_id, "approved")
        assert (await finished(client, saga_id))["state"] == "COMPLETED"
    assert await env.statuses(saga_id) == ["NEW"]


async def test_a_saga_is_not_checked_too_early(env: EventsEnvironment) -> None:
    async with env.serving(WAITING) as client:
        saga_id = await begin(client, "waiting")
        await held(env, saga_id)
        back = env.check_back(first=60.0)
        assert await back.check(Guard("shop", env.shop)) == 0
        await env.query("update saga_outbox set created_at = created_at - 61")
        assert await back.check(Guard("shop", env.shop)) == 1
        assert await back.check(Guard("shop", env.shop)) == 0, "the next turn comes later, also for another relay"
        await client.signal(saga_id, "approved")
        await finished(client, saga_id)


async def test_held_events_of_a_terminated_saga_need_an_operator(env: EventsEnvironment) -> None:
    async with env.serving(WAITING) as client:
        ids = [await begin(client, "waiting") for _ in range(2)]
        for saga_id in ids:
            await held(env, saga_id)
            await client.temporal.get_workflow_handle(saga_id).terminate("a mistake")
        back = env.check_back()
        await asked(env, back, MAX_UNANSWERED - 1)
        assert await list_undecided(env.shop) == [], "not before it was asked often enough"
        await asked(env, back)
    shown = {event.saga_id: event for event in await list_undecided(env.shop)}
    assert set(shown) == set(ids)
    assert shown[ids[0]].reason == "the run was closed by Temporal (TERMINATED)"
    assert await env.statuses(ids[0]) == ["HELD"], "it is never dropped because time has passed"
    first, second = shown[ids[0]].event_id, shown[ids[1]].event_id
    output = await decide_event(env.shop, first, "release", reason="the order was shipped", who="ada")
    assert output == f"the event {first} of {ids[0]}/tell for told will be published"
    await decide_event(env.shop, second, "drop", reason="it was not", who="ada")
    assert [await env.statuses(id) for id in ids] == [["NEW"], ["DROPPED"]]
    (row,) = await env.rows(ids[1])
    assert row.note == "drop: ada: it was not"
    with pytest.raises(RefusedError, match="is DROPPED; only HELD and REFUSED events can be released or dropped"):
        await decide_event(env.shop, second, "release", reason="on second thoughts", who="ada")
    assert await decide_event(env.shop, "no-such-event", "drop", reason="x", who="ada") is None


@pytest.mark.parametrize("signal", ["approved", "cancel"])
async def test_nobody_decides_about_an_event_before_its_saga(env: EventsEnvironment, signal: str) -> None:
    async with env.serving(WAITING) as client:
        saga_id = await begin(client, "waiting")
        await held(env, saga_id)
        [(event,)] = await env.query("select event_id from saga_outbox where saga_id = :id", id=saga_id)

        async def decide(decision: EventDecision) -> str:
            settings = load_settings(env.folder)
            return await decide_in_any_outbox(settings, None, event, decision, reason="hurry", who="ada")

        for decision in ("release", "drop"):
            with pytest.raises(RefusedError, match=f"the saga {saga_id} is open: its held event is published at"):
                await decide(decision)
        assert await env.statuses(saga_id) == ["HELD"]
        await (client.signal(saga_id, "approved") if signal == "approved" else client.cancel(saga_id))
        await finished(client, saga_id)
        await env.query("update saga_outbox set status = 'HELD' where saga_id = :id", id=saga_id)
        if signal == "approved":
            with pytest.raises(RefusedError, match="has reached its commit point: its held event is published"):
                await decide("drop")
            assert await decide("release")
        else:
            with pytest.raises(RefusedError, match="has ended without reaching it: its held event is dropped"):
                await decide("release")
            assert await decide("drop")


@pytest.mark.slow
async def test_an_operator_decides_with_the_command(env: EventsEnvironment) -> None:
    env.write()
    await run_unrecorded_step(env, EntryKey("gone-1", "tell"))
    await asked(env, env.check_back(), MAX_UNANSWERED)
    [event] = await list_undecided(env.shop)
    status, shown = await saga_relay(env, "--status", "-o", "json")
    assert status == 1, "Kafka cannot be asked here"
    [outbox] = [outbox for outbox in json.loads(shown)["outboxes"] if outbox["connection"] == "shop"]
    assert outbox["needs_operator"] == [event.to_json()]
    assert event.reason == "Temporal has no run of this saga"
    findings = {check.check: check for check in await run_checks(load_settings(env.folder))}
    assert findings["events of shop"].message == (
        "1 need an operator; one for told is HELD: Temporal has no run of this saga"
    )
    assert "relay of shop" not in findings, "nothing that is new is late"
    assert "events of bank" not in findings
    assert (await saga_relay(env, "--drop", event.event_id))[0] == 2, "a reason is needed"
    assert (await saga_relay(env, "--drop", "no-such-event", "--reason", "x"))[0] == 2
    status, output = await saga_relay(env, "--drop", event.event_id, "--reason", "it was never sent", "--as", "ada")
    assert (status, output) == (0, f"the event {event.event_id} of gone-1/tell for told will never be published\n")
    (row,) = await env.rows("gone-1")
    assert (row.status, row.note) == ("DROPPED", "drop: ada: it was never sent")
    assert (await saga_relay(env, "--release", event.event_id, "--reason", "x"))[0] == 9


async def saga_relay(env: EventsEnvironment, *options: str) -> tuple[int, str]:
    """The command, as a process: its exit code and what it prints."""
    done = await asyncio.to_thread(run_command, ["relay", *options], env.folder)
    return done.returncode, done.stdout


async def test_the_check_is_repeated_while_temporal_is_down(env: EventsEnvironment) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    async with env.serving(WAITING) as client:
        saga_id = await begin(client, "waiting")
        await held(env, saga_id)
        await asked(env, env.check_back(nobody), 2)
        (row,) = await env.rows(saga_id)
        assert (row.status, row.checks) == ("HELD", 2)
        assert row.note.startswith("Temporal does not answer")
        await asked(env, env.check_back())
        (row,) = await env.rows(saga_id)
        assert (row.status, row.checks, row.note) == ("HELD", 0, None), "an answer ends the count"
        await client.signal(saga_id, "approved")
        await finished(client, saga_id)
    assert await env.statuses(saga_id) == ["NEW"]


@pytest.mark.parametrize("forged", ["closed", "open", None])
async def test_the_relay_checks_back(env: EventsEnvironment, forged: str | None) -> None:
    """The check-back does not need Kafka, which is down here; what a stranger's run says is no answer."""
    async with env.serving(WAITING) as client, contextlib.AsyncExitStack() as stack:
        saga_id = await begin(client, "waiting")
        await held(env, saga_id)
        view = {**await client.show(saga_id), "state": "COMPLETED", "phase": "committed"}
        await client.temporal.get_workflow_handle(saga_id).terminate("a mistake")
        if forged == "closed":
            await close_as_stranger(client, saga_id, view, saga="waiting")
        elif forged == "open":
            await stack.enter_async_context(open_stranger(client, saga_id, view, saga="waiting"))
        await env.query("update saga_outbox set created_at = created_at - 120")
        stop = asyncio.Event()
        relay = asyncio.create_task(run_relay(load_settings(env.folder), connection="shop", stop=stop))

        async def was_asked() -> bool:
            return [(row.status, row.checks) for row in await env.rows(saga_id)] == [("HELD", 1)]

        try:
            await until(was_asked)
        finally:
            stop.set()
            await relay
        [row] = await env.rows(saga_id)
        notes = {
            "closed": f"COMPLETED {UNVERIFIED}",
            "open": f"RUNNING {UNVERIFIED_ANSWER}",
            None: "the run was closed by Temporal (TERMINATED)",
        }
        assert row.note == notes[forged]


async def test_an_unknown_saga_needs_an_operator(env: EventsEnvironment) -> None:
    """The guard did the step, and its run is beyond Temporal's retention (or in another namespace)."""
    address = EntryKey("gone-1", "tell")
    await run_unrecorded_step(env, address)
    await asked(env, env.check_back())
    (row,) = await env.rows("gone-1")
    assert (row.status, row.checks, row.note) == ("HELD", 1, "Temporal has no run of this saga")


async def test_a_saga_that_ended_before_its_commit_point_drops_its_events(env: EventsEnvironment) -> None:
    """A transaction of a step that was never reached: dropped, with a fence against a later confirm."""
    definition = """
      saga: refused
      steps:
        - {id: check, uses: require, with: {that: "1 > 2"}}
        - {id: tell, uses: kafka.publish, with: {topic: told, value: 1, hold: true}}
    """
    async with env.serving(definition) as client:
        story = await run_saga(client, "refused")
        assert story["state"] == "COMPENSATED"
        address = EntryKey(story["id"], "tell")
        await run_unrecorded_step(env, address)
        await asked(env, env.check_back())
    assert await env.statuses(story["id"]) == ["DROPPED"]
    late = await env.databases.guard("shop").confirm(address, None, scheduled_at=time.time(), deadline=time.time() + 10)
    assert late.kind == "late"
    assert await env.statuses(story["id"]) == ["DROPPED"]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("ends", ["COMPLETED", "COMPENSATED", "with another input"])
async def test_another_saga_with_the_id_decides_nothing(env: EventsEnvironment, ends: str) -> None:
    """Another saga has ended under the id, with a step of the same name, before the commit point of the first one."""
    other = """
      saga: later
      steps:
        - {id: tell, uses: require, with: {that: "2 > 1"}}
    """
    if ends == "COMPENSATED":
        other += """    - {id: check, uses: require, with: {that: "1 > 2"}}
    """
    async with env.serving(WAITING, other) as client:
        saga_id = await begin(client, "waiting")
        await held(env, saga_id)
        [first] = await env.rows(saga_id)
        await client.temporal.start_workflow(
            "waiting" if ends == "with another input" else "later",
            {"n": 2} if ends == "with another input" else {},
            id=saga_id,
            task_queue=client.project.settings.temporal.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,
        )
        story = await finished(client, saga_id)
        assert story["saga"] != "waiting" or story["state"] == "PARKED", story
        if story["state"] == "PARKED":
            request = {"step": "tell", "decision": "compensate", "reason": "a test", "who": "ada"}
            await client.temporal.get_workflow_handle(saga_id).execute_update("resolve", request)
            assert (await finished(client, saga_id))["state"] == "COMPENSATED"
        await asked(env, env.check_back())
        [event] = [row for row in await env.rows(saga_id) if row.id == first.id]
        assert (event.status, event.checks) == ("HELD", 1)
        assert event.note.startswith("another run has the id of the saga waiting that began at ")
        if ends != "COMPLETED":
            await start_again(client, await client.locator.locate(saga_id), not_ended=True)
            await client.signal(saga_id, "approved")
            assert (await finished(client, saga_id))["state"] == "COMPLETED"
            [event] = [row for row in await env.rows(saga_id) if row.id == first.id]
            assert event.status == "NEW"


async def test_a_confirm_skipped_by_an_operator(env: EventsEnvironment) -> None:
    """The saga is committed and reports it: otherwise events not released by the confirm would stay held."""

    @action("shop.book", connection="shop", holds=True)
    async def book(step: Step) -> None:
        step.emit("booked", value=1, hold=True)

    @action("shop.fix", connection="shop")
    async def fix(step: Step) -> None:
        raise Rejected("no")

    @action("shop.unbook", connection="shop")
    async def unbook(step: Step) -> None: ...

    definition = """
      saga: skipped
      steps: [{id: book, uses: shop.book, confirm: shop.fix, compensate: shop.unbook}]
    """
    async with env.serving(definition, actions=[book, fix, unbook]) as client:
        story = await run_saga(client, "skipped")
        assert (story["state"], story["phase"]) == ("PARKED", "committed")
        assert await env.statuses(story["id"]) == ["HELD"]
        request = {"step": "book", "decision": "skip", "reason": "it is booked", "who": "ada"}
        await client.temporal.get_workflow_handle(story["id"]).execute_update("resolve", request)
        assert (await finished(client, story["id"]))["state"] == "RESIDUE"
        await asked(env, env.check_back())
    assert await env.statuses(story["id"]) == ["NEW"]


async def run_unrecorded_step(env: EventsEnvironment, address: EntryKey) -> None:
    """A step whose saga has no record of it."""
    from saga_activities.messaging.outbox import insert_events

    async def act(sql: Any) -> None:
        guard = GuardSpec("shop", holds=True)
        key = str(address)
        invocation = Invocation("tell", {}, key, address.saga_id, address.entry, "do", address.generation, guard=guard)
        await insert_events(sql, [Event("told", None, 1, hold=True)], invocation)

    now = time.time()
    outcome = await env.databases.guard("shop").do(address, None, act, scheduled_at=now, deadline=now + 10)
    assert outcome.kind == "done"


def story(state: str, phase: str | None, *, outcome: str = "done", generation: int = 1, **more: Any) -> SagaView:
    step = {"id": "a", "step": "a", "uses": "work", "state": "DONE", "outcome": outcome, "generation": generation}
    document = {"id": "s", "saga": "shop", "state": state, "phase": phase, "steps": [step], "generation": generation}
    return SagaView.from_json({**document, **more})


@pytest.mark.parametrize(
    ("view", "status"),
    [
        (None, "unknown"),
        (story("RUNNING", "forward"), "open"),
        (story("RUNNING", None, steps=[]), "open"),
        (story("COMPENSATING", "backward"), "open"),
        (story("PARKED", "forward"), "open"),
        (story("PARKED", "backward"), "open"),
        (story("PARKED", "committed"), "committed"),
        (story("COMMITTED", "committed"), "committed"),
        (story("COMPLETED", "committed"), "committed"),
        (story("COMPLETED", "committed", steps=[], steps_omitted={"a DONE": 1}), "committed"),
        (story("COMPLETED", "committed", steps=[]), "unknown"),
        (story("COMPLETED", "committed", outcome="rejected"), "unknown"),
        (story("COMPLETED", "committed", generation=2), "unknown"),
        (story("COMPENSATED", "backward", generation=0), "unknown"),
        (story("COMPENSATED", "backward"), "over"),
        (story("COMPENSATED", "backward", generation=2), "unknown"),
        (story("RESIDUE", "backward"), "over"),
        (story("RESIDUE", "committed"), "committed"),
        (story("TERMINATED", "committed"), "unknown"),
        (story("TERMINATED", "backward"), "unknown"),
        (story("FAILED", None, steps=[]), "unknown"),
    ],
)
def test_each_saga_state_decides_about_held_events(view: SagaView | None, status: str) -> None:
    assert entry_status(view, "a", 1).kind == status
