"""Events start and signal sagas: each event once, despite faults."""

from __future__ import annotations

import asyncio
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from temporalio.client import Client as Temporal

from saga_workers.temporal.temporal_runs import list_runs
from sagas import Rejected, action
from sagas.errors import UsageError
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer, TriggerProcess
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import (
    committed,
    count,
    ended,
    fresh,
    fully_consumed,
    produce_keyed,
    project_of,
    triggering,
    write_project,
)


@action("shop.note")
async def note(what: Any = None) -> Any:
    return {"noted": what}


ORDER = """
    saga: {saga}
    id: "{saga}-${{{{ input.order }}}}"
    input: {{type: object, required: [order], properties: {{order: {{type: integer}}, amount: {{type: number}}}}}}
    triggers: {{kafka: {{topic: {topic}}}}}
    steps:
      - {{id: note, uses: shop.note, with: {{what: "${{{{ input.order }}}}"}}, effect: none}}
"""


async def test_each_event_starts_one_saga(kafka: Broker, temporal: TemporalServer, tmp_path: Path) -> None:
    topic, saga, settings = kafka.create_topic(partitions=3), fresh("order"), kafka.settings()
    project = project_of(
        tmp_path, settings, temporal.address, actions=[note], definitions={saga: ORDER.format(saga=saga, topic=topic)}
    )
    produce_keyed(kafka, topic, [(str(number % 7), {"order": number, "amount": 1.5}) for number in range(60)])
    produce_keyed(kafka, topic, [(str(number % 7), {"order": number, "amount": 1.5}) for number in range(20)])
    async with running_worker(project) as client, triggering(project) as metrics:
        group = f"{settings.prefix}-trigger-{saga}-{topic}"
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
        assert count(metrics, "saga_trigger_started_total") == 60
        assert count(metrics, "saga_trigger_lag") == 0
        stories = await asyncio.gather(*(ended(client, f"{saga}-{number}") for number in (0, 3, 59)))
        assert {story["state"] for story in stories} == {"COMPLETED"}
        assert stories[1]["input"] == {"order": 3, "amount": 1.5}
        await until_in_thread(lambda: _runs(client, saga, 60))


async def test_events_keep_the_digits_of_their_numbers(kafka: Broker, temporal: TemporalServer, tmp_path: Path) -> None:
    topic, saga, settings = kafka.create_topic(), fresh("order"), kafka.settings()
    project = project_of(
        tmp_path, settings, temporal.address, actions=[note], definitions={saga: ORDER.format(saga=saga, topic=topic)}
    )
    producer = Producer({"bootstrap.servers": kafka.address})
    amount = "12345678901234567890.10"
    for written in ("7", "7.0", "70e-1"):
        producer.produce(topic, f'{{"order": {written}, "amount": {amount}}}', "a")
    assert producer.flush(30) == 0
    async with running_worker(project) as client, triggering(project) as metrics:
        await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-trigger-{saga}-{topic}", topic))
        story = await ended(client, f"{saga}-7")
        assert count(metrics, "saga_dead_letters_total") == 0
        assert count(metrics, "saga_trigger_started_total") == 1
        assert count(metrics, "saga_trigger_existing_total") == 2
    assert (type(story["input"]["order"]), str(story["input"]["amount"])) == (int, amount)
    assert story["steps"][0]["result"] == {"noted": 7}


async def _runs(client: Any, saga: str, wanted: int) -> bool:
    runs = [run async for run in list_runs(client.temporal, f"WorkflowType = '{saga}'")]
    assert len(runs) <= wanted
    return len(runs) == wanted


async def test_aborted_events_start_nothing(kafka: Broker, temporal: TemporalServer, tmp_path: Path) -> None:
    """K18: 1,000 events of an aborted transaction are 0 sagas."""
    topic, saga, settings = kafka.create_topic(), fresh("order"), kafka.settings()
    project = project_of(
        tmp_path, settings, temporal.address, actions=[note], definitions={saga: ORDER.format(saga=saga, topic=topic)}
    )
    await asyncio.to_thread(_abort, kafka, topic, 1_000)
    produce_keyed(kafka, topic, [("a", {"order": -1})])
    async with running_worker(project) as client, triggering(project) as metrics:
        group = f"{settings.prefix}-trigger-{saga}-{topic}"
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
        assert count(metrics, "saga_trigger_started_total") == 1
        assert count(metrics, "saga_dead_letters_total") == 0
        await until_in_thread(lambda: _runs(client, saga, 1))


def _abort(kafka: Broker, topic: str, many: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": fresh("abort")})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(many):
        producer.produce(topic, json.dumps({"order": number}), "a")
    producer.flush(30)
    producer.abort_transaction(30)


@action("shop.refuse")
async def refuse() -> None:
    raise Rejected("no")


REFUSED = """
    saga: {saga}
    id: "{saga}-${{{{ input.order }}}}"
    input: {{type: object, required: [order], properties: {{order: {{type: integer}}}}}}
    triggers: {{kafka: {{topic: {topic}}}}}
    steps:
      - {{id: pay, uses: shop.refuse, effect: none}}
"""


async def test_another_event_of_an_undone_saga_is_a_dead_letter(
    kafka: Broker, temporal: TemporalServer, tmp_path: Path
) -> None:
    """The sender of the other event has to know of it; the first one may be delivered again."""
    topic, saga, settings = kafka.create_topic(), fresh("order"), kafka.settings()
    definitions = {saga: REFUSED.format(saga=saga, topic=topic)}
    project = project_of(tmp_path, settings, temporal.address, actions=[refuse], definitions=definitions)
    group = f"{settings.prefix}-trigger-{saga}-{topic}"
    async with running_worker(project) as client, triggering(project) as metrics:
        kafka.produce(topic, {"order": 1}, key="a")
        kafka.produce(topic, {"order": 2}, key="a", headers={"ce_id": "first", "ce_source": "web"})
        for order in (1, 2):
            assert (await ended(client, f"{saga}-{order}"))["state"] == "COMPENSATED"
        kafka.produce(topic, {"order": 1}, key="a")
        kafka.produce(topic, {"order": 2}, key="a", headers={"ce_id": "first", "ce_source": "web"})
        kafka.produce(topic, {"order": 2}, key="a", headers={"ce_id": "first", "ce_source": "app"})
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
        assert count(metrics, "saga_trigger_existing_total") == 1
    dead = [(record.json(), record.headers["sagadlqreason"]) for record in kafka.read_committed(f"{topic}.dlq")]
    reason = "has been started by another event, and has ended COMPENSATED"
    assert dead == [({"order": order}, f"{saga}-{order} {reason}") for order in (1, 2)]


PAID = """
    saga: {saga}
    id: "{saga}-${{{{ input.order }}}}"
    input: {{type: object, required: [order], properties: {{order: {{type: integer}}}}}}
    triggers:
      kafka:
        - {{topic: {topic}, filter: trigger.headers.kind == "order"}}
        - topic: {topic}
          id: "{saga}-${{{{ trigger.value.order }}}}"
          filter: trigger.headers.kind == "payment"
          signal: paid
    steps:
      - {{id: pay, uses: wait, with: {{signal: paid, timeout: 5m, on_timeout: reject}}}}
    output: {{paid: "${{{{ steps.pay.result }}}}"}}
"""


async def test_an_event_signals_the_waiting_saga(kafka: Broker, temporal: TemporalServer, tmp_path: Path) -> None:
    """Two triggers share the topic; a refusal by the header rejects; later events of an ended saga are dead letters."""
    topic, saga, settings = kafka.create_topic(), fresh("pay"), kafka.settings()
    project = project_of(
        tmp_path, settings, temporal.address, actions=[note], definitions={saga: PAID.format(saga=saga, topic=topic)}
    )
    group = f"{settings.prefix}-trigger-{saga}-{topic}"
    async with running_worker(project) as client, triggering(project) as metrics:
        kafka.produce(topic, {"order": 1}, {"order": 2}, key="a", headers={"kind": "order"})
        kafka.produce(topic, {"order": 1, "by": "card"}, key="a", headers={"kind": "payment"})
        kafka.produce(
            topic,
            {"order": 2, "reason": "card declined"},
            key="a",
            headers={"kind": "payment", "sagaoutcome": "rejected"},
        )
        paid, refused = await ended(client, f"{saga}-1"), await ended(client, f"{saga}-2")
        assert paid["state"] == "COMPLETED"
        assert paid["output"]["paid"]["data"] == {"order": 1, "by": "card"}
        assert paid["output"]["paid"]["by"] == f"{topic}/0/2"
        assert refused["state"] == "COMPENSATED"
        assert refused["reason"]["message"] == "card declined"

        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
        assert count(metrics, "saga_trigger_signalled_total") == 2
        # P10: a command for a saga that is over is answered with its state, and one for none at all likewise.
        kafka.produce(topic, {"order": 1}, {"order": 99}, headers={"kind": "payment"})
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
    dead = {record.json()["order"]: record.headers for record in kafka.read_committed(f"{topic}.dlq")}
    assert dead[1]["sagadlqreason"] == f"{saga}-1 has already ended COMPLETED"
    assert dead[99]["sagadlqreason"] == f"there is no saga {saga}-99"
    assert (dead[1]["sagadlqtopic"], dead[1]["sagadlqpartition"]) == (topic, "0")
    assert dead[1]["sagadlqgroup"] == group


async def test_signals_that_a_saga_cannot_take(kafka: Broker, temporal: TemporalServer, tmp_path: Path) -> None:
    """A failed reply rejects the `wait`; what the saga could not read, or nobody knows, is a dead letter."""
    topic, saga, settings = kafka.create_topic(), fresh("pay"), kafka.settings()
    project = project_of(
        tmp_path, settings, temporal.address, actions=[note], definitions={saga: PAID.format(saga=saga, topic=topic)}
    )
    deep: Any = 1
    for _ in range(99):
        deep = [deep]
    async with running_worker(project) as client, triggering(project) as metrics:
        kafka.produce(topic, {"order": 1}, {"order": 2}, key="a", headers={"kind": "order"})
        kafka.produce(topic, {"order": 1, "x": deep}, key="a", headers={"kind": "payment"})
        kafka.produce(topic, {"order": 2}, key="a", headers={"kind": "payment", "sagaoutcome": "maybe"})
        kafka.produce(topic, {"order": 2}, key="a", headers={"kind": "payment", "sagaoutcome": "failed"})
        kafka.produce(topic, {"order": "a\0b"}, key="a", headers={"kind": "payment"})
        kafka.produce(topic, {"order": "1~undo"}, key="a", headers={"kind": "payment"})
        await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-trigger-{saga}-{topic}", topic))
        refused = await ended(client, f"{saga}-2")
        assert (refused["state"], refused["reason"]["message"]) == ("COMPENSATED", "failed without a reason")
        assert count(metrics, "saga_trigger_signalled_total") == 1
        with pytest.raises(UsageError, match="nested deeper than 100 levels"):
            await client.signal(f"{saga}-1", "paid", {"x": deep})
    reasons = [record.headers["sagadlqreason"] for record in kafka.read_committed(f"{topic}.dlq")]
    assert len(reasons) == 4
    assert "nested deeper than 100 levels" in reasons[0]
    assert "sagaoutcome is 'maybe'" in reasons[1]
    assert "control characters" in reasons[2]
    assert reasons[3] == f"{saga}-1~undo is the undo of a saga, which takes no signals; send the id of the saga"


async def test_a_duplicate_signal_is_not_a_dead_letter(kafka: Broker, temporal: TemporalServer, tmp_path: Path) -> None:
    """The process died after the signal and before the offset, and meanwhile the saga has ended with that signal."""
    topic, saga, settings = kafka.create_topic(), fresh("pay"), kafka.settings()
    definitions = {saga: PAID.format(saga=saga, topic=topic)}
    project = project_of(tmp_path, settings, temporal.address, actions=[note], definitions=definitions)
    async with running_worker(project) as client:
        async with triggering(project):
            kafka.produce(topic, {"order": 1}, {"order": 2}, headers={"kind": "order"})
            kafka.produce(topic, {"order": 1}, headers={"kind": "payment"})
            kafka.produce(topic, {"order": 2, "reason": "no"}, headers={"kind": "payment", "sagaoutcome": "rejected"})
            assert (await ended(client, f"{saga}-1"))["state"] == "COMPLETED"
            assert (await ended(client, f"{saga}-2"))["state"] == "COMPENSATED"
        # A group of another prefix reads everything once more, as if no offset had been committed.
        again = kafka.settings()
        other = project_of(tmp_path, again, temporal.address, actions=[note], definitions=definitions)
        async with triggering(other, start_from="earliest") as metrics:
            await until_in_thread(lambda: fully_consumed(kafka, f"{again.prefix}-trigger-{saga}-{topic}", topic))
            assert count(metrics, "saga_dead_letters_total") == 0
            assert count(metrics, "saga_trigger_started_total") == 0


async def test_a_poison_message_is_dead_lettered_and_the_partition_continues(
    kafka: Broker, temporal: TemporalServer, tmp_path: Path
) -> None:
    topic, saga, settings = kafka.create_topic(), fresh("order"), kafka.settings()
    project = project_of(
        tmp_path, settings, temporal.address, actions=[note], definitions={saga: ORDER.format(saga=saga, topic=topic)}
    )
    kafka.produce(topic, b"not json", {"order": "many"}, {"order": 1}, {"order": 1, "amount": 2}, {"order": 2}, key="a")
    async with running_worker(project) as client, triggering(project) as metrics:
        await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-trigger-{saga}-{topic}", topic))
        assert {(await ended(client, f"{saga}-{number}"))["state"] for number in (1, 2)} == {"COMPLETED"}
        assert count(metrics, "saga_dead_letters_total") == 3
    reasons = {
        record.headers["sagadlqoffset"]: record.headers["sagadlqreason"]
        for record in kafka.read_committed(topic + ".dlq")
    }
    assert "the value is not JSON" in reasons["0"]
    assert "the input of" in reasons["1"]
    assert "another input" in reasons["3"]
    letters = {record.headers["sagadlqoffset"]: record for record in kafka.read_committed(topic + ".dlq")}
    assert (letters["0"].value, letters["0"].key) == (b"not json", "a")


@pytest.mark.slow
async def test_one_of_two_processes_is_killed_while_processing(
    kafka: Broker, temporal: TemporalServer, tmp_path: Path
) -> None:
    """P7: each event is one saga; partitions of the killed process are reassigned to the other."""
    topic, saga, prefix = kafka.create_topic(partitions=4), fresh("order"), fresh("p")
    folder = write_project(
        tmp_path / "project",
        kafka,
        temporal=temporal.address,
        database=f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}",
        prefix=prefix,
        module="""
            from sagas import action

            @action("shop.note")
            async def note(what=None): ...
            """,
    )
    (folder / f"{saga}.saga.yaml").write_text(textwrap.dedent(ORDER.format(saga=saga, topic=topic)), encoding="utf-8")
    total, group = 400, f"{prefix}-trigger-{saga}-{topic}"
    processes = [TriggerProcess(f"trigger-{number}", folder) for number in range(2)]
    client = await Temporal.connect(temporal.address)
    try:
        for process in processes:
            process.start()
        produce_keyed(kafka, topic, [(str(number), {"order": number}) for number in range(total)])
        await until_in_thread(lambda: sum(committed(kafka, group, topic).values()) > 20)
        processes[0].kill()
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
    finally:
        for process in processes:
            process.kill()
    # Nobody works here, so every saga that was ever started is still there.
    query = f"WorkflowType = '{saga}'"

    async def ids() -> list[str]:
        sagas = [run.id async for run in client.list_workflows(query)]
        return sagas if len(sagas) >= total else []

    assert sorted(await until_in_thread(ids)) == sorted(f"{saga}-{number}" for number in range(total))


async def test_events_wait_while_temporal_is_down(kafka: Broker, tmp_path: Path) -> None:
    """No dead letter, no lost event, and the process stays in its group."""
    server = TemporalServer(tmp_path / "temporal").start()
    topic, saga, settings = kafka.create_topic(), fresh("order"), kafka.settings()
    project = project_of(
        tmp_path / "p",
        settings,
        server.address,
        actions=[note],
        definitions={saga: ORDER.format(saga=saga, topic=topic)},
    )
    group = f"{settings.prefix}-trigger-{saga}-{topic}"
    try:
        async with triggering(project) as metrics:
            kafka.produce(topic, {"order": 0})
            await until_in_thread(lambda: fully_consumed(kafka, group, topic))
            server.kill()
            produce_keyed(kafka, topic, [(str(number), {"order": number}) for number in range(1, 20)])
            await asyncio.sleep(3)
            assert await asyncio.to_thread(committed, kafka, group, topic) == {0: 1}
            server.start()
            await until_in_thread(lambda: fully_consumed(kafka, group, topic))
            assert count(metrics, "saga_dead_letters_total") == 0
        async with running_worker(project) as client:
            await until_in_thread(lambda: _runs(client, saga, 20))
    finally:
        server.kill()
