"""Every feature of the language, from YAML through a real Temporal server to the actions and back."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta

import pytest

from saga_workers.temporal.temporal_runs import describe_run
from saga_workers.views.answering import Workers
from saga_workers.views.saga_view import view_of_run
from sagas import Rejected
from sagas.errors import RefusedError
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import (
    Environment,
    begin,
    gate,
    handle,
    row,
    run_saga,
    states,
    wait_for_event,
)

QUICK = "retry: {max_attempts: 2, initial_interval: 50ms, max_interval: 100ms}"
FOREVER = "retry: {initial_interval: 10ms, max_interval: 50ms}"


async def test_a_graph_runs_its_branches_at_once_and_is_undone_in_reverse(env: Environment) -> None:
    definition = """
        saga: graph
        steps:
          - {id: a, uses: book, compensate: unbook}
          - {id: b, uses: book, compensate: unbook, needs: [a]}
          - {id: c, uses: book, compensate: unbook, needs: [a]}
          - {id: d, uses: work, needs: [b, c], effect: none}
    """
    env.plan["do d"] = [Rejected("no")]
    async with env.serving(definition) as client:
        story = await run_saga(client, "graph")
    assert story["state"] == "COMPENSATED"
    log = env.log()
    assert log[0] == "do a"
    assert set(log[1:3]) == {"do b", "do c"}
    assert set(log[4:6]) == {"undo b", "undo c"}
    assert log[6:] == ["undo a"]
    assert await env.effects() == []


@pytest.mark.parametrize("parallel", [1, 3])
async def test_for_each_gives_results_in_order_and_is_undone_from_the_last_item(
    env: Environment, parallel: int
) -> None:
    definition = f"""
        saga: items
        input: {{type: object, properties: {{lines: {{type: array, items: {{type: integer}}}}}}}}
        steps:
          - id: reserve
            for_each: ${{{{ input.lines }}}}
            max_parallel: {parallel}
            uses: book
            with: {{value: "${{{{ item * 10 + index }}}}"}}
            compensate: unbook
          - {{id: check, uses: require, with: {{that: "${{{{ steps.reserve.results.size() < 3 }}}}"}}}}
        output: {{values: "${{{{ steps.reserve.results.map(r, r.value) }}}}"}}
    """
    async with env.serving(definition) as client:
        good = await run_saga(client, "items", {"lines": [3, 1]})
        assert (good["state"], good["output"]) == ("COMPLETED", {"values": [30, 11]})
        async with env.engine.begin() as connection:
            await connection.exec_driver_sql("delete from effects")
        env.asked.clear()
        bad = await run_saga(client, "items", {"lines": [1, 2, 3]})
    assert bad["state"] == "COMPENSATED"
    undone = [what for what in env.log() if what.startswith("undo")]
    assert undone == ["undo reserve#2", "undo reserve#1", "undo reserve#0"]
    undo = [request for request in env.asked if request.what == "undo reserve#1"]
    assert [row.value for row in undo] == [21], "the short form takes the forward arguments"
    assert await env.effects() == []


async def test_the_first_item_that_fails_stops_the_items_after_it(env: Environment) -> None:
    definition = """
        saga: stopped
        steps:
          - {id: a, for_each: [1, 2, 3], uses: book, compensate: unbook}
          - {id: b, uses: work, effect: none}
    """
    env.plan["do a#1"] = [Rejected("no")]
    async with env.serving(definition) as client:
        story = await run_saga(client, "stopped")
    assert states(story) == {"a#0": "COMPENSATED", "a#1": "REJECTED", "a#2": "PENDING", "b": "PENDING"}
    assert story["reason"]["step"] == "a#1"


async def test_an_empty_list_is_done_and_a_false_if_is_skipped(env: Environment) -> None:
    definition = """
        saga: empty
        steps:
          - {id: a, for_each: "${{ [] }}", uses: book, compensate: unbook}
          - {id: b, if: "${{ 1 > 2 }}", uses: book, compensate: unbook}
          - {id: c, uses: work, with: {value: "${{ steps.b.result == null }}"}, effect: none}
        output: {results: "${{ steps.a.results }}", state: "${{ steps.b.state }}"}
    """
    async with env.serving(definition) as client:
        story = await run_saga(client, "empty")
    assert story["state"] == "COMPLETED"
    assert story["output"] == {"results": [], "state": "SKIPPED"}
    assert env.asked[0].value is True


async def test_a_failed_require_rejects(env: Environment) -> None:
    definition = """
        saga: required
        steps:
          - {id: a, uses: book, compensate: unbook}
          - {id: b, uses: require, with: {that: "${{ false }}", message: "not on a Sunday"}}
    """
    async with env.serving(definition) as client:
        story = await run_saga(client, "required")
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "rejected")
    assert story["reason"]["message"] == "not on a Sunday"
    assert await env.effects() == []


async def test_wait_for_a_duration_and_until_a_timestamp(env: Environment) -> None:
    definition = """
        saga: waiting
        input: {type: object, properties: {moment: {type: string}}}
        steps:
          - {id: a, uses: wait, with: {for: 100ms}}
          - {id: b, uses: wait, with: {until: "${{ input.moment }}"}}
    """
    moment = datetime.now(UTC) + timedelta(seconds=1)
    async with env.serving(definition) as client:
        story = await run_saga(client, "waiting", {"moment": moment.isoformat()})
    assert story["state"] == "COMPLETED"
    assert datetime.fromisoformat(story["ended_at"]) >= moment - timedelta(milliseconds=2)


APPROVAL = """
    saga: approval
    steps:
      - {id: a, uses: book, compensate: unbook}
      - id: approve
        uses: wait
        with: {signal: approved, timeout: TIMEOUT, on_timeout: THEN}
      - {id: b, uses: work, with: {value: "${{ steps.approve.result }}"}, pivot: true}
"""


def approval(timeout: str = "1h", then: str = "reject") -> str:
    return APPROVAL.replace("TIMEOUT", timeout).replace("THEN", then)


@pytest.mark.parametrize("early", [True, False])
async def test_early_and_late_signals_count_and_only_the_first_is_used(env: Environment, early: bool) -> None:
    move, begun, go = gate()
    env.plan["do a"] = [move]
    async with env.serving(approval()) as client:
        saga = await begin(client, "approval")
        await wait_for_event(begun)
        if not early:
            go.set()
            await until(lambda: _state(client, saga, "approve", "RUNNING"))
        await client.signal(saga, "approved", {"by": "mail"}, who="ada")
        with nullcontext() if early else suppress(RefusedError):  # the first may have ended it by then
            await client.signal(saga, "approved", {"by": "phone"}, who="bob")
        go.set()
        story = await finished(client, saga)
    assert story["state"] == "COMPLETED"
    result = row(story, "approve")["result"]
    assert (result["data"], result["by"]) == ({"by": "mail"}, "ada")


async def test_a_signal_of_a_foreign_client_is_plain_data(env: Environment) -> None:
    async with env.serving(approval()) as client:
        saga = await begin(client, "approval")
        await handle(client, saga).signal("approved", {"ok": 1})
        story = await finished(client, saga)
    assert row(story, "approve")["result"]["data"] == {"ok": 1}


async def test_a_rejecting_signal_rejects_the_step(env: Environment) -> None:
    async with env.serving(approval()) as client:
        saga = await begin(client, "approval")
        await client.signal(saga, "approved", who="ada", reject="too expensive")
        story = await finished(client, saga)
    assert (story["state"], story["reason"]["message"]) == ("COMPENSATED", "too expensive")
    assert await env.effects() == []


@pytest.mark.parametrize(("then", "state"), [("reject", "COMPENSATED"), ("continue", "COMPLETED"), ("park", "PARKED")])
async def test_a_wait_without_a_signal_times_out(env: Environment, then: str, state: str) -> None:
    async with env.serving(approval("200ms", then)) as client:
        story = await run_saga(client, "approval")
        assert story["state"] == state
        if state == "PARKED":
            await handle(client, story["id"]).terminate()


async def test_sql_step_with_an_expected_row(env: Environment) -> None:
    definition = """
        saga: plainsql
        input: {type: object, properties: {what: {type: string}}}
        steps:
          - id: insert
            uses: sql
            with:
              connection: shop
              run: "insert into effects (what) values (:what) returning what"
              params: {what: "${{ input.what }}"}
            compensate:
              uses: sql
              with:
                connection: shop
                run: "delete from effects where what = :what"
                params: {what: "${{ input.what }}"}
          - id: check
            uses: sql
            with:
              connection: shop
              run: "update effects set what = what where what = 'x'"
              expect_rows: 1
              rejected: "only x will do"
            pivot: true
        output: "${{ steps.insert.result }}"
    """
    async with env.serving(definition) as client:
        bad = await run_saga(client, "plainsql", {"what": "y"})
        assert (bad["state"], bad["reason"]["kind"]) == ("COMPENSATED", "rejected")
        assert await env.effects() == []
        good = await run_saga(client, "plainsql", {"what": "x"})
        assert good["state"] == "COMPLETED", good["reason"]
    assert await env.effects() == ["x"]


async def test_try_confirm_cancel(env: Environment) -> None:
    definition = """
        saga: tcc
        input: {type: object, properties: {no: {type: boolean, default: false}}}
        steps:
          - {id: a, uses: book, confirm: fix, compensate: unbook}
          - {id: b, uses: require, with: {that: "${{ !input.no }}"}}
    """
    async with env.serving(definition) as client:
        good = await run_saga(client, "tcc")
        assert (good["state"], states(good)["a"]) == ("COMPLETED", "CONFIRMED")
        assert await env.effects() == ["a", "confirm a"]
        async with env.engine.begin() as connection:
            await connection.exec_driver_sql("delete from effects")
        bad = await run_saga(client, "tcc", {"no": True})
        assert (bad["state"], states(bad)["a"]) == ("COMPENSATED", "COMPENSATED")
    assert await env.effects() == []
    assert env.log() == ["do a", "confirm a", "do a", "undo a"]


async def test_a_confirm_is_retried_until_it_is_done(env: Environment) -> None:
    definition = f"""
        saga: confirms
        steps:
          - id: a
            uses: book
            confirm: {{uses: fix, {FOREVER}}}
            compensate: unbook
    """
    env.plan["confirm a"] = [*[ValueError("broken")] * 5, None]
    async with env.serving(definition) as client:
        story = await run_saga(client, "confirms")
    assert story["state"] == "COMPLETED"
    assert row(story, "a")["confirmation"]["attempts"] == 6
    assert await env.effects() == ["a", "confirm a"]


async def test_alternates_are_tried_in_their_order(env: Environment) -> None:
    definition = """
        saga: alternates
        steps:
          - id: a
            uses: work
            with: {value: 7}
            compensate: [unwork, {uses: settle, with: {value: "${{ saga.reason.kind }}"}}]
          - {id: b, uses: require, with: {that: "${{ false }}"}}
    """
    env.plan["undo a"] = [Rejected("not here"), "gone"]
    async with env.serving(definition) as client:
        story = await run_saga(client, "alternates")
    assert story["state"] == "COMPENSATED"
    undo = [request for request in env.asked if request.what == "undo a"]
    assert [(row.key.rsplit("/", 1)[1], row.value) for row in undo] == [("undo", 7), ("undo.1", "rejected")]
    assert row(story, "a")["compensation"]["alternate"] == 1


async def test_on_failure_park_and_continue(env: Environment) -> None:
    definition = f"""
        saga: failing
        steps:
          - {{id: a, uses: book, compensate: unbook}}
          - {{id: b, uses: book, compensate: unbook, on_failure: continue, {QUICK}}}
          - {{id: c, uses: book, compensate: unbook, on_failure: park, {QUICK}}}
        output: {{b: "${{{{ steps.b.result }}}}"}}
    """
    env.plan |= {"do b": [ValueError("never")], "do c": [Rejected("no")]}
    async with env.serving(definition) as client:
        story = await run_saga(client, "failing")
        assert story["state"] == "PARKED"
        assert states(story) == {"a": "DONE", "b": "FAILED", "c": "PARKED"}
        assert story["parked"][0]["decisions"] == ["retry", "done", "skip", "compensate"]
        assert await env.effects() == ["a"]
        await client.cancel(story["id"], reason="enough")
        story = await finished(client, story["id"])
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "cancelled")
    assert await env.effects() == []


async def test_recovery_forward_retries_and_refuses_cancel(env: Environment) -> None:
    definition = f"""
        saga: onward
        recovery: forward
        steps:
          - {{id: a, uses: book, {FOREVER}}}
          - {{id: b, uses: book, {FOREVER}}}
    """
    move, begun, go = gate()
    env.plan |= {"do a": [*[ValueError("broken")] * 4, move], "do b": [None]}
    async with env.serving(definition) as client:
        saga = await begin(client, "onward")
        await wait_for_event(begun)
        assert await handle(client, saga).execute_update("cancel", {}) == "past the point of no return"
        go.set()
        story = await finished(client, saga)
    assert (story["state"], story["phase"]) == ("COMPLETED", "committed")
    assert await env.effects() == ["a", "b"]


@pytest.mark.parametrize("pivot", ["", ", pivot: true"], ids=["wait", "wait as the pivot"])
async def test_a_deadline_leads_backward_and_warn_after_only_warns(env: Environment, pivot: str) -> None:
    definition = f"""
        saga: slow
        deadline: 400ms
        warn_after: 100ms
        steps:
          - {{id: a, uses: book, compensate: unbook}}
          - {{id: b, uses: wait, with: {{signal: never}}{pivot}}}
    """
    async with env.serving(definition) as client:
        saga = await begin(client, "slow")
        await until(lambda: _overdue(client, saga))
        story = await finished(client, saga)
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "deadline")
    assert story["overdue"] is True
    assert await env.effects() == []


async def test_priority_fairness_queue_labels_and_vars(env: Environment) -> None:
    definition = """
        saga: tenants
        id: "tenants-${{ input.tenant }}-${{ input.n }}"
        labels: {tenant: "${{ input.tenant }}"}
        input: {type: object, properties: {tenant: {type: string}, n: {type: string}}}
        steps:
          - id: a
            uses: work
            with: {value: "${{ vars.limit }}"}
            priority: 2
            fairness_key: "tenant-${{ input.tenant }}"
            effect: none
    """
    async with env.serving(definition, variables={"limit": "50.00"}) as client:
        n = str(datetime.now(UTC).timestamp())
        story = await run_saga(client, "tenants", {"tenant": "acme", "n": n}, id=None)
        assert (story["id"], story["labels"]) == (f"tenants-acme-{n}", {"tenant": "acme"})
        described = await handle(client, story["id"]).describe()
        assert [(p.key.name, p.value) for p in described.typed_search_attributes if p.key.name == "SagaLabels"] == [
            ("SagaLabels", ["tenant=acme"])
        ]
        history = await handle(client, story["id"]).fetch_history()
    scheduled = [e.activity_task_scheduled_event_attributes for e in history.events]
    [priority] = [event.priority for event in scheduled if event.activity_id == "a"]
    assert (priority.priority_key, priority.fairness_key) == (2, "tenant-acme")
    assert env.asked[0].value == "50.00"


async def test_an_invalid_fairness_key_fails_the_step_not_the_workflow_task(env: Environment) -> None:
    definition = """
        saga: unfair
        input: {type: object, properties: {tenant: {type: string}}}
        steps:
          - {id: a, uses: work, fairness_key: "${{ input.tenant }}", effect: none}
    """
    async with env.serving(definition) as client:
        story = await run_saga(client, "unfair", {"tenant": "x" * 65})
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "definition")
    assert "fairness key" in story["reason"]["message"]


async def test_local_execution_is_guarded_as_well(env: Environment) -> None:
    definition = """
        saga: near
        defaults: {execution: local, timeout: 2s}
        steps:
          - {id: a, uses: book, compensate: unbook}
          - {id: b, uses: book, compensate: unbook}
    """
    env.plan["do b"] = [ValueError("once"), "fine", Rejected("no")]
    async with env.serving(definition) as client:
        good = await run_saga(client, "near")
        assert good["state"] == "COMPLETED"
        history = await handle(client, good["id"]).fetch_history()
        assert not any(e.HasField("activity_task_scheduled_event_attributes") for e in history.events)
        async with env.engine.begin() as connection:
            await connection.exec_driver_sql("delete from effects")
        bad = await run_saga(client, "near")
    assert (bad["state"], bad["reason"]["kind"]) == ("COMPENSATED", "rejected")
    assert await env.effects() == []


async def test_intervals_are_the_waits_between_attempts(env: Environment) -> None:
    definition = """
        saga: steady
        steps:
          - {id: a, uses: work, retry: {intervals: [100ms, 400ms], max_attempts: 3}, effect: none}
    """
    moments: list[float] = []

    async def note(step: object) -> None:
        moments.append(asyncio.get_running_loop().time())
        raise ValueError("again")

    env.plan["do a"] = [note]
    async with env.serving(definition) as client:
        story = await run_saga(client, "steady")
    assert row(story, "a")["attempts"] == 3
    first, second = (later - earlier for earlier, later in itertools.pairwise(moments))
    assert first >= 0.09
    assert second >= 0.39


async def test_a_call_that_ends_while_its_saga_is_read_counts_its_attempts_once(env: Environment) -> None:
    definition = """
        saga: read
        steps:
          - {id: a, uses: work, retry: {intervals: [10ms], max_attempts: 9}, effect: none}
          - {id: b, uses: work, effect: none}
    """
    third, third_begun, end_third = gate()
    last, last_begun, end_last = gate()
    env.plan["do a"] = [ValueError("again"), ValueError("again"), third]
    env.plan["do b"] = [last]
    async with env.serving(definition) as client:
        id = await begin(client, "read")
        await wait_for_event(third_begun)
        before = await describe_run(client.temporal, id)
        assert before is not None
        assert [pending.attempt for pending in before.raw.pending_activities] == [3]
        end_third.set()
        await wait_for_event(last_begun)
        view = await view_of_run(Workers(client.temporal, client.locator.keys), before)
        end_last.set()
        assert (await finished(client, id))["state"] == "COMPLETED"
    assert row(view.to_json(), "a")["attempts"] == 3


async def test_a_plain_function_runs_in_a_thread(env: Environment) -> None:
    definition = """
        saga: threads
        steps:
          - {id: a, for_each: [1, 2, 3], max_parallel: 3, uses: plain, with: {value: "${{ item }}"}, effect: none}
        output: "${{ steps.a.results.map(r, r.value) }}"
    """
    async with env.serving(definition) as client:
        assert (await run_saga(client, "threads"))["output"] == [1, 2, 3]


async def _state(client, saga: str, step: str, wanted: str) -> bool:
    story = await client.show(saga)
    return states(story).get(step) == wanted


async def _overdue(client, saga: str) -> bool:
    return (await client.show(saga))["overdue"]
