"""Replies that cannot be used, while their dead letter topic accepts nothing."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from confluent_kafka import Consumer

from saga_activities.connections import DatabaseConnections
from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.config import consumer_config
from saga_workers.trigger import replies
from saga_workers.trigger.committed_positions import commit_position
from saga_workers.trigger.dead_letters import DeadLetters
from saga_workers.trigger.delivery import FIRST_WINDOW, DeliveryMark
from saga_workers.trigger.replies import ReplyListener
from saga_workers.trigger.retry import USUAL_ATTEMPTS
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from sagas.settings import SqlConnection
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.request.request_environment import running_listener
from tests.integration.messaging.trigger.trigger_environment import count, open_shop


async def test_other_replies_are_recorded_while_a_dead_letter_waits(
    kafka: Broker, postgres_server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "_DEAD_LETTER_TIMEOUT", 0.2)
    shop, topic = await open_shop(postgres_server), kafka.create_topic(partitions=1)
    kafka.produce(topic, 1, headers={"sagaoutcome": "done"})
    with shop.connect() as connection:
        for key in ("s/1", "s/2"):
            connection.execute(
                "insert into saga_request (step_key, saga_id, step, generation, op, created_at)"
                " values (%s, 's', 'x', 1, 'do', 1)",
                (key,),
            )
            kafka.produce(topic, 7, headers={"sagakey": key, "sagaoutcome": "done"})
    accepts = asyncio.Event()

    async def send_dead_letter(*_: Any) -> None:
        await accepts.wait()

    def outcomes() -> list[Any]:
        with shop.connect() as connection:
            return [outcome for (outcome,) in connection.execute("select outcome from saga_request").fetchall()]

    databases = DatabaseConnections([SqlConnection(name="shop", url_setting=shop.url)])
    # No attempt waits for these replies, so Temporal is not asked.
    client: Any = None
    listener = ReplyListener(
        client, kafka.settings(outbox="shop"), databases, [topic], dead_letter_sink=send_dead_letter
    )
    async with running_listener(listener):
        try:
            await until_in_thread(lambda: outcomes() == ["done", "done"])
            await until_in_thread(
                lambda: listener.health() == "a reply that cannot be used waits for its dead letter topic"
            )
            accepts.set()
            await until_in_thread(lambda: listener.counts == {"late": 2, "malformed": 1})
            assert listener.health() is None
        finally:
            accepts.set()
    await databases.close()


async def test_a_reply_that_contradicts_the_first_one_or_whose_row_was_changed_is_a_dead_letter(
    kafka: Broker, postgres_server: DatabaseServer
) -> None:
    shop, topic = await open_shop(postgres_server), kafka.create_topic(partitions=1)
    insert = "insert into saga_request (step_key, saga_id, step, generation, op, created_at) values"
    with shop.connect() as connection:
        connection.execute(f"{insert} ('s/1', 's', 'x', 1, 'do', 1), ('s/2', 's', 'x', 1, 'do', 1)")
        connection.execute("update saga_request set token = 'saga:encrypted:x:eA==' where step_key = 's/2'")
    kafka.produce(topic, 7, headers={"sagakey": "s/2", "sagaoutcome": "done"})
    done = ({"a": 1}, {"a": 1}, {"a": 1.0}, {"a": 2})
    for outcome, value in (*(("done", value) for value in done), ("rejected", {"reason": "no"})):
        kafka.produce(topic, value, headers={"sagakey": "s/1", "sagaoutcome": outcome})
    reasons: list[str] = []

    async def send_dead_letter(record: Any, group: str, reason: str, stop: Any) -> None:
        reasons.append(reason)

    databases = DatabaseConnections([SqlConnection(name="shop", url_setting=shop.url)])
    client: Any = None  # no attempt waits for these replies
    settings = kafka.settings(outbox="shop")
    listener = ReplyListener(client, settings, databases, [topic], dead_letter_sink=send_dead_letter)
    async with running_listener(listener):
        await until_in_thread(lambda: listener.counts == {"late": 1, "duplicate": 4, "malformed": 1})
    await databases.close()
    assert sorted(reasons) == [
        "a stored value of this saga was changed in its database",
        "the first reply to s/1 was done, and it counts; this one is rejected",
        "the first reply to s/1, done, has another value, and it counts",
    ]
    with shop.connect() as connection:
        assert connection.execute("select outcome, data from saga_request where step_key = 's/1'").fetchall() == [
            ("done", '{"a":1}')
        ]


async def test_a_reply_that_ended_its_process_is_a_dead_letter(kafka: Broker, postgres_server: DatabaseServer) -> None:
    """Attempts are counted where the end of a process cannot lose them; the replies behind it are recorded."""
    shop, topic, settings = await open_shop(postgres_server), kafka.create_topic(partitions=1), kafka.settings()
    settings = settings.model_copy(update={"outbox": "shop"})
    with shop.connect() as connection:
        for key in ("s/1", "s/2"):
            connection.execute(
                "insert into saga_request (step_key, saga_id, step, generation, op, created_at)"
                " values (%s, 's', 'x', 1, 'do', 1)",
                (key,),
            )
            kafka.produce(topic, 7, headers={"sagakey": key, "sagaoutcome": "done"})
        [(home,)] = connection.execute("select home from saga_outbox_home").fetchall()
    group = f"{settings.prefix}-replies-{home}-{topic}"
    mark = DeliveryMark(KafkaAdmin(settings).topic_id(topic), "killed", FIRST_WINDOW, 0, USUAL_ATTEMPTS)
    member = Consumer(consumer_config(settings, group))
    member.commit(offsets=[commit_position(topic, 0, 0, mark)], asynchronous=False)
    member.close()
    databases = DatabaseConnections([SqlConnection(name="shop", url_setting=shop.url)])
    client: Any = None  # no attempt waits for these replies
    metrics = TriggerMetrics()
    dead = DeadLetters(settings, metrics)
    listener = ReplyListener(client, settings, databases, [topic], dead_letter_sink=dead.send, metrics=metrics)
    async with running_listener(listener):
        await until_in_thread(lambda: listener.counts == {"late": 1, "malformed": 1})
        assert count(metrics, "saga_trigger_ended_attempts") == 0
    await databases.close()
    [letter] = kafka.read_committed(f"{topic}.dlq")
    assert (letter.headers["sagakey"], letter.headers["sagadlqreason"]) == ("s/1", "it ended its process 5 times")
    with shop.connect() as connection:
        outcomes = connection.execute("select outcome from saga_request order by step_key").fetchall()
    assert outcomes == [(None,), ("done",)]


async def test_costly_replies_leave_the_event_loop_to_others(kafka: Broker, postgres_server: DatabaseServer) -> None:
    """The loop, which this thread runs, neither reads them nor compares them."""
    shop, topic = await open_shop(postgres_server), kafka.create_topic(partitions=1)
    costly, count = [0.5] * 249_000, 3
    with shop.connect() as connection:
        for number in range(count):
            connection.execute(
                "insert into saga_request (step_key, saga_id, step, generation, op, created_at)"
                " values (%s, 's', 'x', 1, 'do', 1)",
                (f"s/{number}",),
            )
            kafka.produce(topic, costly, headers={"sagakey": f"s/{number}", "sagaoutcome": "done"})
    databases = DatabaseConnections([SqlConnection(name="shop", url_setting=shop.url)])
    client: Any = None  # no attempt waits for these replies
    settings = kafka.settings(outbox="shop")

    async def send_dead_letter(*_: Any) -> None:
        raise AssertionError

    listener = ReplyListener(client, settings, databases, [topic], dead_letter_sink=send_dead_letter)
    began = time.thread_time()
    async with running_listener(listener):
        await until_in_thread(lambda: listener.counts == {"late": count})
    assert time.thread_time() - began < 1
    await databases.close()
