"""Messages that the inbox of a consumer gives up: what it records, replies, and tells of them in the dead letter."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from saga_workers.trigger import consumed_record
from sagas import Message, Rejected
from tests.helpers.kafka_broker import Broker
from tests.helpers.sampling import mostly_slow
from tests.helpers.waiting import LIMIT
from tests.integration.messaging.trigger.consumer_setup import ConsumerSetup, note

pytestmark = pytest.mark.sampled(turns="setup")


async def test_a_dead_letter_is_not_processed_again(setup: ConsumerSetup, kafka: Broker) -> None:
    tries = []

    async def fail(message: Message) -> None:
        tries.append(message.attempt)
        await note(message, setup.name, "never", 1)
        raise KeyError("price")

    kafka.create_topic(setup.topic)
    answers = f"{setup.topic}-answers"
    handle = setup.consuming(fail, kafka.settings(), max_attempts=2)
    asked = setup.record(1, {}, sagareplyto=answers, sagakey="s/ask")
    await handle(asked)
    await handle(asked)  # its offset was not committed
    assert tries == [1, 2]
    assert await setup.effects() == []
    assert await setup.inbox() == [(setup.message_id(1), "DEAD")]
    [answer] = await setup.outbox(answers)
    assert "price" in answer["reason"]
    letters = await asyncio.to_thread(kafka.read_committed, f"{setup.topic}.dlq")
    assert [letter.headers["sagadlqoffset"] for letter in letters] == ["1"]


@pytest.mark.sampled("setup")
async def test_an_id_with_other_content_is_a_dead_letter(setup: ConsumerSetup, kafka: Broker) -> None:
    """A producer has used the id twice. Equal JSON in other bytes is a repetition."""

    async def book(message: Message) -> None:
        if message.value["n"] == 9:
            raise Rejected("too many")
        await note(message, setup.name, "booked", message.value["n"])

    kafka.create_topic(setup.topic)
    handle, answers = setup.consuming(book, kafka.settings()), f"{setup.topic}-answers"
    same = {"ce_id": "one", "ce_source": "till", "sagareplyto": answers, "sagakey": "s/ask"}
    refused = {"ce_id": "two", "ce_source": "till"}
    await handle(setup.record(1, b'{"n": 1, "of": 2}', **same))
    await handle(setup.record(2, b'{"of":2.0,"n":10e-1}', **same))
    for _ in range(2):  # its offset was not committed
        await handle(setup.record(3, {"n": 3, "of": 2}, **same))
    await handle(setup.record(4, {"n": 9}, **refused))
    await handle(setup.record(5, {"n": 5}, **refused))
    assert await setup.effects() == [("booked", 1)]
    assert [status for _, status in await setup.inbox()] == ["DONE", "REJECTED"]
    letters = await asyncio.to_thread(kafka.read_committed, f"{setup.topic}.dlq")
    assert [letter.headers["sagadlqoffset"] for letter in letters] == ["3", "5"]
    for letter, first, second in zip(letters, (1, 4), (3, 5), strict=True):
        for offset in (first, second):
            assert f"{setup.topic}/0/{offset}" in letter.headers["sagadlqreason"]
    done, *rejections = await setup.outbox(answers)
    assert done is None
    assert {"another key or value" in rejection["reason"] for rejection in rejections} == {True}


async def test_a_message_with_the_id_of_a_dead_letter_is_told_so(setup: ConsumerSetup, kafka: Broker) -> None:
    async def book(message: Message) -> None:
        await note(message, setup.name, "booked", message.value["n"])

    kafka.create_topic(setup.topic)
    handle, same = setup.consuming(book, kafka.settings()), {"ce_id": "one", "ce_source": "till"}
    for offset, value in ((1, b'{"n": 1'), (2, b'{"n": 1'), (3, b'{"n": 1}')):
        await handle(setup.record(offset, value, **same))
    assert await setup.effects() == []
    assert [status for _, status in await setup.inbox()] == ["DEAD"]
    letters = await asyncio.to_thread(kafka.read_committed, f"{setup.topic}.dlq")
    first, repeated, corrected = [letter.headers["sagadlqreason"] for letter in letters]
    assert first == repeated
    assert f"is that of {setup.topic}/0/1, which is a dead letter ({first}), so {setup.topic}/0/3 has no" in corrected
    assert corrected.endswith("send it with an id of its own")


async def test_a_message_that_is_given_up_unread_is_read_within_a_budget(
    setup: ConsumerSetup, kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading it may take long, and is needed: the inbox compares it with later messages of the same id."""
    threads: list[str] = []
    decode = consumed_record.decode

    def noting(message: Any) -> Any:
        threads.append(threading.current_thread().name)
        return decode(message)

    async def book(message: Message) -> None:
        await note(message, setup.name, "booked", 1)

    kafka.create_topic(setup.topic)
    monkeypatch.setattr(consumed_record, "decode", noting)
    same = {"ce_id": "one", "ce_source": "till", "sagareplyto": "not a topic!"}
    handle, text = setup.consuming(book, kafka.settings()), b'"' + b"x" * 1_000_000 + b'"'
    for offset, value in ((1, text), (2, b" " + text)):
        await handle(setup.record(offset, value, **same))
    assert len(threads) == 2
    assert threading.main_thread().name not in threads
    assert [status for _, status in await setup.inbox()] == ["DEAD"]


@pytest.mark.sampled("setup")
async def test_a_command_with_the_key_of_another_one_is_a_dead_letter(setup: ConsumerSetup, kafka: Broker) -> None:
    async def book(message: Message) -> None:
        await note(message, setup.name, "booked", message.value)

    kafka.create_topic(setup.topic)
    handle, key = setup.consuming(book, kafka.settings()), f"{setup.name}/ask"
    command = {"sagaop": "do", "sagakey": key, "sagareplyto": f"{setup.topic}-answers"}
    for offset, value in ((1, 1), (2, b"1.0"), (3, 2)):
        await handle(setup.record(offset, value, **command))
    assert await setup.effects() == [("booked", 1)]
    [letter] = await asyncio.to_thread(kafka.read_committed, f"{setup.topic}.dlq")
    assert letter.headers["sagadlqreason"] == (
        f"the key {key} belongs to a command with another value, so {setup.topic}/0/3 has no effect"
    )


UNUSABLE = {
    "no topic": {"sagareplyto": "not a topic!", "sagakey": "s/ask"},
    "topic of the relay": {"sagareplyto": "saga-relay-1", "sagakey": "s/ask"},
    "topic of Spark steps": {"sagareplyto": "saga-spark", "sagakey": "s/ask"},
    "long key": {"sagareplyto": "answers", "sagakey": "k" * 20_000},
}


@pytest.mark.parametrize("headers", mostly_slow(UNUSABLE, {"long key"}, UNUSABLE))
async def test_a_message_that_cannot_be_replied_to_is_a_dead_letter(
    setup: ConsumerSetup, kafka: Broker, headers: dict[str, str]
) -> None:
    async def book(message: Message) -> None:
        await note(message, setup.name, "booked", message.offset)

    kafka.create_topic(setup.topic)
    handle = setup.consuming(book, kafka.settings(), max_attempts=1)
    await handle(setup.record(1, {}, **headers))
    await handle(setup.record(2, {}))
    assert await setup.effects() == [("booked", 2)]
    assert await setup.inbox() == [(setup.message_id(1), "DEAD"), (setup.message_id(2), "DONE")]
    [letter] = await asyncio.to_thread(kafka.read_committed, f"{setup.topic}.dlq")
    expected = "bytes" if headers["sagareplyto"] == "answers" else "which is not a topic for replies"
    assert expected in letter.headers["sagadlqreason"]
    assert await setup.rows("select topic from saga_outbox where topic like 'saga-%'") == []


NUL = {
    "saga": {"sagaid": "a\0b", "sagakey": "s/ask"},
    "key": {"sagakey": "a\0b"},
    "token": {"sagakey": "s/ask", "sagatoken": "a\0b"},
    "id": {"sagakey": "s/ask", "ce_id": "a\0b", "ce_source": "till"},
}


@pytest.mark.sampled
@pytest.mark.parametrize("headers", NUL.values(), ids=NUL)
async def test_a_nul_character_in_a_header_blocks_nothing(
    setup: ConsumerSetup, kafka: Broker, headers: dict[str, str]
) -> None:
    """PostgreSQL's text cannot contain it: the record is a dead letter, and the next one is processed."""

    async def book(message: Message) -> None:
        await note(message, setup.name, "booked", message.offset)

    kafka.create_topic(setup.topic)
    handle = setup.consuming(book, kafka.settings(), max_attempts=1)
    async with asyncio.timeout(LIMIT):
        await handle(setup.record(1, {}, **headers))
        await handle(setup.record(2, {}))
    assert await setup.effects() == [("booked", 2)]
    [letter] = kafka.read_committed(f"{setup.topic}.dlq")
    assert "has a NUL, which no database takes" in letter.headers["sagadlqreason"]
    assert not any("\0" in id for id, _ in await setup.inbox())


async def test_a_nul_character_in_a_reason_blocks_nothing(setup: ConsumerSetup, kafka: Broker) -> None:
    async def fail(_: Message) -> None:
        raise ValueError("bad value a\0b")

    kafka.create_topic(setup.topic)
    async with asyncio.timeout(LIMIT):
        await setup.consuming(fail, kafka.settings(), max_attempts=1)(setup.record(1, {}))
    assert await setup.inbox() == [(setup.message_id(1), "DEAD")]
