"""Half messages: an event is held until its saga's commit point, and dropped when its step is undone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sagas import Step, action
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.fault_proxy import fault_proxy
from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.messaging.relay.events_environment import (
    EventsEnvironment,
    begin,
    open_environment,
    run_saga,
)

BOOK = """
        - id: book
          uses: sql
          with:
            connection: shop
            run: insert into effects values ('book', 1)
            emit: [{topic: booked, key: k, value: {n: 1}, hold: true}, {topic: seen, value: 1}]
          compensate: {uses: sql, with: {connection: shop, run: delete from effects where what = 'book'}}
"""

HELD = f"""
      saga: held
      input: {{properties: {{fail: {{type: boolean}}}}}}
      steps:
        {BOOK.strip()}
        - id: tell
          uses: kafka.publish
          with: {{events: [{{topic: told, value: 1, hold: true}}, {{topic: told, value: 2, hold: true}}]}}
        - {{id: approve, uses: wait, with: {{signal: approved}}}}
        - {{id: check, uses: require, with: {{that: "!input.fail"}}}}
"""


@pytest.fixture
async def env(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> AsyncIterator[EventsEnvironment]:
    environment = await open_environment(tmp_path, temporal.address, postgres_server)
    yield environment
    await environment.databases.close()


async def waiting(env: EventsEnvironment, saga_id: str, count: int = 4) -> None:
    """Until the steps before the approval are through."""

    async def there() -> bool:
        return len(await env.rows(saga_id)) == count

    await until(there)


async def test_events_are_held_until_the_commit_point_and_then_released(env: EventsEnvironment) -> None:
    async with env.serving(HELD) as client:
        saga_id = await begin(client, "held", fail=False)
        await waiting(env, saga_id)
        assert await env.statuses(saga_id) == ["HELD", "NEW", "HELD", "HELD"], "a plain emit does not wait"
        await client.signal(saga_id, "approved")
        story = await finished(client, saga_id)
    assert story["state"] == "COMPLETED"
    assert await env.statuses(saga_id) == ["NEW"] * 4
    result = next(row for row in story["steps"] if row["id"] == "tell")["result"]
    assert [event["id"] for event in result["events"]] == [row.event_id for row in (await env.rows(saga_id))[2:]]
    assert story["can_undo"] is False, "what has been published is not withdrawn: `tell` says no counter-event"


async def test_events_of_a_compensated_step_are_dropped(env: EventsEnvironment) -> None:
    async with env.serving(HELD) as client:
        saga_id = await begin(client, "held", fail=True)
        await waiting(env, saga_id)
        await client.signal(saga_id, "approved")
        story = await finished(client, saga_id)
    assert (story["state"], await env.effects()) == ("COMPENSATED", [])
    assert await env.statuses(saga_id) == ["DROPPED", "NEW", "DROPPED", "DROPPED"], "a plain emit is not withdrawn"


async def test_published_events_stay_when_a_completed_saga_is_undone(env: EventsEnvironment) -> None:
    definition = f"""
      saga: undoable
      steps:
        {BOOK.strip()}
        - id: tell
          uses: outbox.emit
          with: {{connection: shop, topic: told, value: 1, hold: true}}
          compensate:
            uses: outbox.drop
            confirmed: {{uses: outbox.emit, with: {{connection: shop, topic: told, value: -1}}}}
    """
    async with env.serving(definition) as client:
        story = await run_saga(client, "undoable")
        assert (story["state"], story["can_undo"]) == ("COMPLETED", True)
        run = await client.undo(story["id"], reason="changed my mind", who="ada")
        undone = await finished(client, run.id)
    assert undone["state"] == "COMPENSATED"
    assert await env.effects() == []
    rows = await env.rows(story["id"])
    assert [(row.topic, row.value, row.status) for row in rows] == [
        ("booked", '{"n":1}', "NEW"),
        ("seen", "1", "NEW"),
        ("told", "1", "NEW"),
        ("told", "-1", "NEW"),
    ]


async def test_a_python_action_holds_events(env: EventsEnvironment) -> None:
    @action("shop.book", connection="shop", holds=True)
    async def book(step: Step, what: str) -> None:
        await step.sql.execute("insert into effects values (:what, 1)", what=what)
        step.emit("booked", key=what, value={"op": step.op}, hold=True)

    @action("shop.unbook", connection="shop", holds=True)
    async def unbook(step: Step, what: str) -> None:
        await step.sql.execute("delete from effects where what = :what", what=what)
        step.emit("unbooked", key=what, value={"op": step.op}, hold=True)

    @action("shop.careless", connection="shop")
    async def careless(step: Step, what: str) -> None:
        step.emit("booked", key=what, value=1, hold=True)

    definition = """
      saga: python
      input: {properties: {last: {type: string}}}
      steps:
        - {id: first, uses: shop.book, with: {what: a}, compensate: shop.unbook}
        - {id: check, uses: require, with: {that: "input.last != 'fail'"}}
        - {id: end, uses: shop.book, with: {what: c}, pivot: true}
        - {id: after, uses: shop.book, with: {what: d}}
    """
    wrong = (
        "saga: wrong\nsteps: [{id: a, uses: shop.careless, with: {what: a}, pivot: true, retry: {max_attempts: 2}}]\n"
    )
    async with env.serving(definition, wrong, actions=[book, unbook, careless]) as client:
        done = await run_saga(client, "python", last="no")
        failed = await run_saga(client, "python", last="fail")
        refused = await run_saga(client, "wrong")
    assert done["state"] == "COMPLETED"
    assert await env.statuses(done["id"]) == ["NEW"] * 3
    assert failed["state"] == "COMPENSATED"
    rows = await env.rows(failed["id"])
    assert [(row.topic, row.status) for row in rows] == [("booked", "DROPPED"), ("unbooked", "NEW")], "an undo is final"
    message = refused["steps"][0]["error"]["message"]
    assert message.endswith("the action shop.careless holds an event: declare it with @action(…, holds=True)")


async def test_events_of_a_step_confirmed_or_undone_in_another_database(env: EventsEnvironment) -> None:
    definition = """
      saga: elsewhere
      input: {properties: {fail: {type: boolean}}}
      steps:
        - id: freeze
          uses: sql
          with:
            connection: shop
            run: insert into effects values ('frozen', 1)
            emit: [{topic: t, value: 1, hold: true}]
          confirm: {uses: sql, with: {connection: bank, run: "insert into effects values ('confirmed', 1)"}}
          compensate: {uses: sql, with: {connection: bank, run: "insert into effects values ('undone', 1)"}}
        - {id: check, uses: require, with: {that: "!input.fail"}}
    """
    async with env.serving(definition) as client:
        done = await run_saga(client, "elsewhere", fail=False)
        failed = await run_saga(client, "elsewhere", fail=True)
    assert (done["state"], failed["state"]) == ("COMPLETED", "COMPENSATED")
    assert await env.statuses(done["id"]) == ["NEW"]
    assert await env.statuses(failed["id"]) == ["DROPPED"]
    assert await env.effects("bank") == ["confirmed", "undone"]


async def test_a_step_that_is_continued_past_drops_its_events(env: EventsEnvironment) -> None:
    @action("shop.flaky", connection="shop", holds=True)
    async def flaky(step: Step) -> None:
        step.emit("maybe", value=1, hold=True)
        raise RuntimeError("no")

    definition = """
      saga: continued
      steps:
        - id: may
          uses: shop.flaky
          on_failure: continue
          retry: {max_attempts: 2, initial_interval: 10ms}
          compensate: outbox.drop
        - {id: end, uses: outbox.emit, with: {connection: shop, topic: t, value: 1, hold: true}}
    """
    async with env.serving(definition, actions=[flaky]) as client:
        story = await run_saga(client, "continued")
    assert story["state"] == "COMPLETED"
    assert [(row.topic, row.status) for row in await env.rows(story["id"])] == [("t", "NEW")]


async def test_events_of_nested_sagas_wait_for_their_own_commit_point(env: EventsEnvironment) -> None:
    child = f"saga: child\nsteps:\n{BOOK}"
    parent = """
      saga: parent
      input: {properties: {fail: {type: boolean}}}
      steps:
        - {id: sub, uses: saga, with: {name: child}}
        - {id: own, uses: kafka.publish, with: {topic: own, value: 1, hold: true}}
        - {id: check, uses: require, with: {that: "!input.fail"}}
    """
    async with env.serving(child, parent) as client:
        story = await run_saga(client, "parent", fail=True)
    assert story["state"] == "COMPENSATED"
    assert await env.effects() == [], "the nested saga was committed, and then undone"
    [(nested,)] = await env.query("select distinct saga_id from saga_outbox where topic = 'booked'")
    assert await env.statuses(nested) == ["NEW", "NEW"], "it was published at the nested saga's own commit point"
    assert await env.statuses(story["id"]) == ["DROPPED"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["cut_before", "cut_after", "swallow_answer"])
async def test_the_response_of_the_local_transaction_is_lost(env: EventsEnvironment, fault: Any) -> None:
    port = int(env.urls["shop"].rsplit(":", 1)[1].split("/")[0])
    definition = HELD.replace("uses: sql", "uses: sql\n          timeout: 3s", 1)
    async with fault_proxy(port) as proxy:
        through = env.urls["shop"].replace(f":{port}/", f":{proxy.port}/")
        async with env.serving(definition, shop=through) as client:
            proxy.arm(b"; COMMIT", fault)
            saga_id = await begin(client, "held", fail=False)
            await waiting(env, saga_id)
            assert proxy.triggered == 1
            assert await env.statuses(saga_id) == ["HELD", "NEW", "HELD", "HELD"], "each event once"
            await client.signal(saga_id, "approved")
            assert (await finished(client, saga_id))["state"] == "COMPLETED"
    assert await env.effects() == ["book"]
    assert await env.statuses(saga_id) == ["NEW"] * 4
