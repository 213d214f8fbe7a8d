"""`outbox.emit` and `kafka.publish` against a real broker: all of the events, or none, and each of them once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from saga_workers.relay.relay_process import run_relay
from saga_workers.relay.undecided_events import decide_event
from sagas import Step, action
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.fault_proxy import fault_proxy
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.messaging.relay.events_environment import (
    EventsEnvironment,
    begin,
    open_environment,
    run_saga,
)


@pytest.fixture
async def env(
    temporal: TemporalServer, postgres_server: DatabaseServer, kafka: Broker, tmp_path: Path
) -> AsyncIterator[EventsEnvironment]:
    environment = await open_environment(tmp_path, temporal.address, postgres_server, kafka.address)
    yield environment
    await environment.databases.close()


@contextlib.asynccontextmanager
async def relaying(env: EventsEnvironment) -> AsyncIterator[None]:
    """A relay in this process."""
    stop = asyncio.Event()
    running = asyncio.create_task(run_relay(load_settings(env.folder), stop=stop))
    try:
        yield
    finally:
        stop.set()
        await running


def five_events(first: str, second: str) -> str:
    """The events of a step: five of them, for two topics."""
    return "\n".join(f"              - {{topic: {(first, second)[n % 2]}, key: k{n}, value: {n}}}" for n in range(5))


def values(broker: Broker, *topics: str) -> list[int]:
    return sorted(record.json() for record in broker.read_committed(*topics))


async def published(env: EventsEnvironment, saga_id: str) -> None:
    async def all_of_them() -> bool:
        statuses = await env.statuses(saga_id)
        return bool(statuses) and set(statuses) == {"PUBLISHED"}

    await until(all_of_them)


async def test_five_events_to_two_topics_are_published_atomically(env: EventsEnvironment, kafka: Broker) -> None:
    first, second = kafka.create_topic(), kafka.create_topic()
    definition = f"""
      saga: five
      input: {{properties: {{hold: {{type: boolean}}, fail: {{type: boolean}}}}}}
      steps:
        - id: tell
          uses: kafka.publish
          with:
            events:
{five_events(first, second).replace("}", ", hold: true}")}
        - {{id: check, uses: require, with: {{that: "!input.fail"}}}}
        - id: told
          uses: outbox.emit
          pivot: true
          with: {{connection: shop, topic: {first}, value: 9, headers: {{kind: last}}}}
    """
    async with env.serving(definition) as client, relaying(env):
        failed = await run_saga(client, "five", fail=True)
        done = await run_saga(client, "five", fail=False)
        await published(env, done["id"])
    assert (failed["state"], done["state"]) == ("COMPENSATED", "COMPLETED")
    assert await env.statuses(failed["id"]) == ["DROPPED"] * 5
    records = kafka.read_committed(first, second)
    assert sorted(record.json() for record in records) == [0, 1, 2, 3, 4, 9]
    assert {record.headers["sagaid"] for record in records} == {done["id"]}
    last = next(record for record in records if record.json() == 9)
    assert (last.headers["kind"], last.headers["sagastep"]) == ("last", "told")
    ids = {event["id"] for row in done["steps"] if row["result"] for event in row["result"]["events"]}
    assert {record.headers["ce_id"] for record in records} == ids


async def test_a_step_that_waits_until_its_events_are_published(env: EventsEnvironment, kafka: Broker) -> None:
    topic = kafka.create_topic()
    definition = f"""
      saga: waits
      steps:
        - id: tell
          uses: kafka.publish
          timeout: 2s
          retry: {{initial_interval: 100ms, backoff_coefficient: 1.0}}
          with: {{topic: {topic}, value: 1, wait: published}}
          pivot: true
        - {{id: after, uses: kafka.publish, timeout: 5s, with: {{topic: {topic}, value: 2, wait: published}}}}
    """
    async with env.serving(definition) as client:
        saga_id = await begin(client, "waits")
        await asyncio.sleep(3)  # longer than one attempt: the next one finds the stored result, and waits on
        assert await env.statuses(saga_id) == ["NEW"]
        async with relaying(env):
            story = await finished(client, saga_id)
    assert story["state"] == "COMPLETED"
    assert await env.statuses(saga_id) == ["PUBLISHED", "PUBLISHED"]
    assert values(kafka, topic) == [1, 2]


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("place", ["before", "pivot", "after"])
async def test_a_step_that_waits_for_an_event_that_is_dropped(
    env: EventsEnvironment, kafka: Broker, place: str
) -> None:
    topic = kafka.create_topic()
    passed = "{id: go, uses: require, with: {that: true}, pivot: true}"
    tell = f"""
        - id: tell
          uses: kafka.publish
          with: {{topic: {topic}, value: 1, wait: published}}
          pivot: {str(place == "pivot").lower()}"""
    if place == "before":
        tell += f"\n          compensate: {{uses: kafka.publish, with: {{topic: {topic}, value: -1}}}}"
    steps = {"before": f"{tell}\n        - {passed}", "pivot": tell, "after": f"\n        - {passed}{tell}"}[place]
    async with env.serving(f"\n      saga: waits\n      steps:{steps}\n") as client:
        saga_id = await begin(client, "waits")

        async def is_written() -> bool:
            return await env.statuses(saga_id) == ["NEW"]

        await until(is_written)
        await env.query("update saga_outbox set status = 'REFUSED' where saga_id = :id", id=saga_id)
        [event] = await env.rows(saga_id)
        await decide_event(env.databases.engine("shop"), event.event_id, "drop", who="kim", reason="not wanted")
        parked = await finished(client, saga_id)
        [operation] = parked["parked"]
        assert (parked["state"], operation["step"]) == ("PARKED", "tell")
        assert f"1 of 1 event will never be published ({topic}): drop: kim: not wanted" in operation["why"]
        decision = {"step": "tell", "decision": "done", "reason": "it goes on without it", "who": "kim"}
        if place == "pivot":
            decision["evidence"] = "its event is in the outbox"
        else:
            assert "skip" in operation["decisions"]
        await client.resolve(saga_id, decision)
        story = await finished(client, saga_id)
    assert story["state"] == "COMPLETED"


@pytest.mark.slow
async def test_a_worker_that_dies_between_commit_and_answer(env: EventsEnvironment, kafka: Broker) -> None:
    first, second = kafka.create_topic(), kafka.create_topic()
    definition = f"""
      saga: once
      steps:
        - id: tell
          uses: kafka.publish
          timeout: 4s
          with:
            events:
{five_events(first, second)}
          pivot: true
    """
    port = int(env.urls["shop"].rsplit(":", 1)[1].split("/")[0])
    async with fault_proxy(port) as proxy:
        env.write(definition, shop=env.urls["shop"].replace(f":{port}/", f":{proxy.port}/"))
        worker = env.worker()
        try:
            await asyncio.to_thread(worker.start)
            client = await env.client()
            proxy.arm(b"; COMMIT", "swallow_answer")
            saga_id = await begin(client, "once")

            async def committed() -> bool:
                return len(await env.rows(saga_id)) == 5

            await until(committed)
            assert proxy.triggered == 1
            worker.kill()  # it never received the result of its commit
            await asyncio.to_thread(worker.start)
            story = await finished(client, saga_id)
            async with relaying(env):
                await published(env, saga_id)
        finally:
            worker.kill()
    assert story["state"] == "COMPLETED"
    assert story["steps"][0]["attempts"] >= 2
    assert values(kafka, first, second) == [0, 1, 2, 3, 4]


async def test_an_unpublishable_event_is_refused_before_the_effect(env: EventsEnvironment) -> None:
    @action("shop.large", connection="shop")
    async def large(step: Step, size: int) -> None:
        await step.sql.execute("insert into effects values ('large', 1)")
        step.emit("t", value="x" * size)

    @action("shop.odd", connection="shop")
    async def odd(step: Step) -> None:
        await step.sql.execute("insert into effects values ('odd', 1)")
        step.emit("t", value=object())

    undo = "compensate: {uses: sql, with: {connection: shop, run: delete from effects}}"
    definitions = [
        f"saga: large\nsteps: [{{id: a, uses: shop.large, with: {{size: 1100000}}, {undo}}}]\n",
        f"saga: odd\nsteps: [{{id: a, uses: shop.odd, {undo}}}]\n",
        "saga: listless\ninput: {}\nsteps:\n  - id: a\n    uses: kafka.publish\n"
        '    with: {events: "${{ input.events }}"}\n    pivot: true\n',
    ]
    async with env.serving(*definitions, actions=[large, odd]) as client:
        stories = [await run_saga(client, "large"), await run_saga(client, "odd")]
        hidden = await run_saga(client, "listless", events=[{"topic": "t", "value": 1, "hold": True}])
        wrong = await run_saga(client, "listless", events={"topic": "t"})
    output = [(story["state"], story["steps"][0]["state"], story["steps"][0]["attempts"]) for story in stories]
    assert output == [("COMPENSATED", "FAILED", 1)] * 2, "it is not tried again: it would be refused again"
    assert "800000 are allowed" in stories[0]["steps"][0]["error"]["message"]
    assert "cannot be written as JSON" in stories[1]["steps"][0]["error"]["message"]
    assert await env.effects() == []
    for story, sentence in (
        (hidden, "write `hold: true`"),
        (wrong, "argument `events` of `kafka.publish`: expected a list, found a mapping"),
    ):
        assert story["state"] == "COMPENSATED"
        assert sentence in story["steps"][0]["error"]["message"]


@pytest.mark.slow
async def test_a_missing_topic_does_not_fail_the_saga(env: EventsEnvironment, kafka: Broker) -> None:
    there, missing = kafka.create_topic(), f"missing-{env.prefix}"
    definition = f"""
      saga: missing
      steps:
        - {{id: a, uses: kafka.publish, with: {{topic: {missing}, value: 1}}, pivot: true}}
        - {{id: b, uses: kafka.publish, with: {{topic: {there}, value: 2}}}}
    """
    async with env.serving(definition) as client, relaying(env):
        story = await run_saga(client, "missing")
        assert story["state"] == "COMPLETED"

        async def other_is_published() -> bool:
            return (await env.statuses(story["id"])) == ["NEW", "PUBLISHED"]

        await until(other_is_published)
        kafka.create_topic(missing)
        await published(env, story["id"])
    assert values(kafka, there, missing) == [1, 2]


async def test_held_events_reach_the_topic_after_the_commit_point(env: EventsEnvironment, kafka: Broker) -> None:
    topic = kafka.create_topic()
    definition = f"""
      saga: held
      steps:
        - {{id: tell, uses: kafka.publish, with: {{topic: {topic}, value: 1, hold: true}}}}
        - {{id: approve, uses: wait, with: {{signal: approved}}}}
    """
    async with env.serving(definition) as client, relaying(env):
        saga_id = await begin(client, "held")

        async def held() -> Any:
            return await env.statuses(saga_id) == ["HELD"]

        await until(held)
        await asyncio.sleep(1)
        assert values(kafka, topic) == [], "the relay leaves it alone"
        await client.signal(saga_id, "approved")
        assert (await finished(client, saga_id))["state"] == "COMPLETED"
        await published(env, saga_id)
    assert values(kafka, topic) == [1]
