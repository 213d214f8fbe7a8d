"""Changes of a consumer in each kind of database: one effect, the rejection, the version table, and purging."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import text

from saga_activities.messaging import inbox
from saga_workers.trigger.consumer import ConsumerFailed
from saga_workers.trigger.retry import PoisonMessage
from sagas import Message, Rejected
from tests.helpers.kafka_broker import Broker
from tests.integration.messaging.trigger.consumer_setup import ConsumerSetup, note

pytestmark = pytest.mark.sampled(turns="setup")


@pytest.mark.sampled("setup")
async def test_two_concurrent_deliveries_have_one_effect(setup: ConsumerSetup) -> None:
    async def book(message: Message) -> dict[str, Any]:
        await note(message, setup.name, "booked", message.value)
        message.emit(f"{setup.topic}-told", key="k", value={"told": message.value})
        await asyncio.sleep(0.01)  # so that the other one meets an open transaction
        return {"n": message.value}

    ours, theirs = setup.consuming(book), setup.consuming(book, other=True)
    answers = f"{setup.topic}-answers"
    for number in range(8):
        same = [setup.record(number, number, sagareplyto=answers, sagakey=f"s/{number}") for _ in range(2)]
        await asyncio.gather(ours(same[0]), theirs(same[1]))
    assert await setup.effects() == [("booked", number) for number in range(8)]
    assert [status for _, status in await setup.inbox()] == ["DONE"] * 8
    assert await setup.outbox(f"{setup.topic}-told") == [{"told": number} for number in range(8)]
    assert await setup.outbox(answers) == [{"n": number} for number in range(8)]


async def test_a_rejection_leaves_only_its_reply(setup: ConsumerSetup) -> None:
    calls = []

    async def refuse(message: Message) -> None:
        calls.append(message.attempt)
        await note(message, setup.name, "never", 1)
        message.emit(f"{setup.topic}-told", key="k", value=1)
        raise Rejected("no budget left", limit=100)

    handle, answers = setup.consuming(refuse), f"{setup.topic}-answers"
    for _ in range(2):
        await handle(setup.record(1, {}, sagareplyto=answers, sagakey="s/ask"))
    assert calls == [1]
    assert await setup.effects() == []
    assert await setup.outbox(f"{setup.topic}-told") == []
    assert await setup.outbox(answers) == [{"reason": "no budget left", "details": {"limit": 100}}]
    assert await setup.inbox() == [(setup.message_id(1), "REJECTED")]


@pytest.mark.parametrize("last", ["return", "reject"])
async def test_a_handler_that_catches_the_end_of_its_transaction(setup: ConsumerSetup, last: str) -> None:
    """Nothing that it writes after the database has ended the transaction stays, and the message is not handled."""
    await _make_full(setup)

    def book(message: Message) -> None:
        for statement in ("insert into effect values (:n, 'a', 1)", "insert into full_seat values (:n)"):
            with suppress(Exception):
                message.sql.execute(statement, n=setup.name)
        with suppress(Exception):
            message.newer("order", 1)
        with suppress(Exception):
            message.sql.execute("insert into effect values (:n, 'b', 1)", n=setup.name)
        if last == "reject":
            raise Rejected("no seats left")

    handle = setup.consuming(book)
    if last == "reject":
        await handle(setup.record(1, {}))
    else:
        with pytest.raises((ConsumerFailed, PoisonMessage), match="full_seats"):
            await handle._attempt(setup.record(1, {}), 1)
    assert await setup.effects() == []
    assert [status for _, status in await setup.inbox()] == (["REJECTED"] if last == "reject" else [])


async def _make_full(setup: ConsumerSetup) -> None:
    """A table that refuses every row; on SQLite that ends the transaction."""
    is_file = setup.engine.dialect.name == "sqlite"
    refusal = "" if is_file else ", constraint full_seats check (n = 'nobody')"
    async with setup.engine.begin() as connection:
        await connection.execute(text(f"create table full_seat (n varchar(100){refusal})"))
        if is_file:
            full = "create trigger full_ before insert on full_seat begin select raise(rollback, 'full_seats'); end"
            await connection.execute(text(full))


async def test_a_plain_function_has_the_same_transaction(setup: ConsumerSetup) -> None:
    def plain(message: Message) -> None:
        if message.newer("order", message.value):
            statement = "insert into effect (consumer, what, number) values (:name, 'plain', :n)"
            message.sql.execute(statement, name=setup.name, n=message.value)

    handle = setup.consuming(plain)
    for offset, version in enumerate((2, 1, 3)):
        await handle(setup.record(offset, version))
    assert await setup.effects() == [("plain", 2), ("plain", 3)]
    assert len(await setup.inbox()) == 3


async def test_versions_are_kept_in_any_order_and_concurrently(setup: ConsumerSetup) -> None:
    async def keep(message: Message) -> None:
        if await message.newer(message.value["id"], message.value["version"]):
            await note(message, setup.name, message.value["id"], message.value["version"])

    ours, theirs = setup.consuming(keep), setup.consuming(keep, other=True)
    entities = [f"e{number}" for number in range(3)]
    values = [{"id": id, "version": version} for id in entities for version in range(1, 5)]
    random.Random(7).shuffle(values)
    await asyncio.gather(
        *((ours, theirs)[offset % 2](setup.record(offset, value)) for offset, value in enumerate(values))
    )
    seen = await setup.effects()
    assert len(seen) == len(set(seen))
    for entity in entities:
        assert max(number for what, number in seen if what == entity) == 4
    question = "select entity, version from saga_version_seen where consumer = :name order by entity"
    assert await setup.rows(question, name=setup.name) == [(entity, 4) for entity in entities]


async def test_versions_are_integers(setup: ConsumerSetup, kafka: Broker) -> None:
    """A database that rounds 5.4 to 5 would take 5.1 as newer."""

    async def keep(message: Message) -> None:
        entity, version = message.value
        if await message.newer(entity, version):
            await note(message, setup.name, entity, message.offset)

    values = ["e", 5], ["e ", 3], ["e", 5.0], ["e", 6.0], ["e", 9223372036854775807]
    refused = ["r", 5.4], ["r", 5.1], ["r", 1e19], ["r", True], ["r", "7"], ["r", None], [7, 7]
    kafka.create_topic(setup.topic)
    handle = setup.consuming(keep, kafka.settings(), max_attempts=1)
    for offset, value in enumerate([*values, *refused]):
        await handle(setup.record(offset, value))
    assert await setup.effects() == [("e", 0), ("e ", 1), ("e", 3), ("e", 4)]
    letters = await asyncio.to_thread(kafka.read_committed, f"{setup.topic}.dlq")
    reasons = [letter.headers["sagadlqreason"] for letter in letters]
    assert len(reasons) == len(refused)
    assert "a version must be an integer of at most 64 bits, not 5.4: number the versions" in reasons[0]
    assert all("a version must be an integer of at most 64 bits" in reason for reason in reasons[:-1])
    assert "the name of an entity must be a text, not 7" in reasons[-1]


async def test_events_of_two_sources_are_two_events(setup: ConsumerSetup) -> None:
    """An id may look like a UUID and be the digest of the content, which is the same in all sources."""

    async def book(message: Message) -> None:
        await note(message, setup.name, "booked", message.offset)

    handle, digest = setup.consuming(book), "a1d0c6e83f027327d8461063f4ac58a6"
    events = [(id, source) for id in (digest, "m1", "m1 ") for source in ("/oslo", "/bergen", "")]
    for offset, (id, source) in enumerate(events + events):
        await handle(setup.record(offset, {}, ce_id=id, ce_source=source))
    assert await setup.effects() == [("booked", offset) for offset in range(len(events))]


async def test_an_overlong_entity_name_is_refused(setup: ConsumerSetup, kafka: Broker) -> None:
    """Two long names that begin alike would share one version, and one of the two messages would have no effect."""

    async def keep(message: Message) -> None:
        await message.newer("x" * 201, 1)

    kafka.create_topic(setup.topic)
    await setup.consuming(keep, kafka.settings(), max_attempts=1)(setup.record(1, {}))
    assert [status for _, status in await setup.inbox()] == ["DEAD"]
    [letter] = await asyncio.to_thread(kafka.read_committed, f"{setup.topic}.dlq")
    assert "longer than 200 characters" in letter.headers["sagadlqreason"]


async def test_purging_deletes_old_rows_in_batches(setup: ConsumerSetup) -> None:
    async def book(message: Message) -> None:
        await note(message, setup.name, "booked", message.value)

    handle = setup.consuming(book)
    await asyncio.gather(*(handle(setup.record(number, number)) for number in range(7)))
    old = "update saga_inbox set received_at = 1000 + topic_offset where consumer = :name and topic_offset < 5"
    async with setup.engine.begin() as connection:
        await connection.execute(text(old), {"name": setup.name})
    # The limit is older than the rows of other tests, which may share the database.
    assert [await inbox.purge(setup.engine, 2000.0, limit=2) for _ in range(4)] == [2, 2, 1, 0]
    young = {setup.message_id(number) for number in (5, 6)}
    assert {id for id, _ in await setup.inbox()} == young
    await handle(setup.record(6, 6))
    assert await setup.effects() == [("booked", number) for number in range(7)], "what is kept still holds"
