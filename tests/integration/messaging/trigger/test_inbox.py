"""Changes of a consumer in each kind of database: one effect, the rejection, the version table, and purging."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from saga_activities.connections import DatabaseConnections
from saga_activities.guard.schema import create_tables
from saga_activities.messaging import inbox
from saga_workers.trigger import consumed_record
from saga_workers.trigger.commands import CommandHandler
from saga_workers.trigger.consumed_record import ConsumedRecord
from saga_workers.trigger.consumer import ConsumerFailed
from saga_workers.trigger.dead_letters import DeadLetters
from saga_workers.trigger.retry import PoisonMessage
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from sagas import Message, Rejected, consumer
from sagas.actions.consumers import HANDLER_ATTRIBUTE, message_id
from sagas.settings import KafkaSettings, SqlConnection
from tests.helpers.kafka_broker import Broker
from tests.helpers.new_databases import new_url
from tests.helpers.sampling import mostly_slow
from tests.helpers.waiting import LIMIT

NOWHERE = KafkaSettings(bootstrap_servers="127.0.0.1:1")


class RawRecord:
    """A record as the client library gives it."""

    def __init__(self, topic: str, offset: int, value: Any, headers: Mapping[str, str]) -> None:
        self._topic, self._offset = topic, offset
        self._value = value if isinstance(value, bytes) else json.dumps(value).encode()
        self._headers = [(name, text.encode()) for name, text in headers.items()]

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return self._value

    def headers(self) -> list[tuple[str, bytes]]:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000


class ConsumerSetup:
    """One database with the engine's tables, and consumers of it: each as in a process of its own."""

    def __init__(self, url: str) -> None:
        self.databases = DatabaseConnections([SqlConnection(name="shop", url=url)], pool_size=8)
        self.others = DatabaseConnections([SqlConnection(name="shop", url=url)], pool_size=8)
        self.engine = self.databases.engine("shop")
        self.metrics = TriggerMetrics()
        self.topic = f"orders-{uuid.uuid4().hex[:8]}"
        self.name = f"note-{uuid.uuid4().hex[:8]}"

    def consuming(
        self, function: Callable[..., Any], settings: KafkaSettings = NOWHERE, *, other: bool = False, **options: Any
    ) -> CommandHandler:
        made = getattr(consumer(self.topic, connection="shop", name=self.name, **options)(function), HANDLER_ATTRIBUTE)
        databases = self.others if other else self.databases
        return CommandHandler(
            made,
            databases.guard("shop"),
            f"group-{self.name}",
            DeadLetters(settings, self.metrics),
            self.metrics,
            asyncio.Event(),
            max_bytes=10_000,
            threads=ThreadPoolExecutor(4),
        )

    def record(self, offset: int, value: Any, **headers: str) -> ConsumedRecord:
        return ConsumedRecord(RawRecord(self.topic, offset, value, headers))

    def message_id(self, offset: int) -> str:
        """The id of a record without one of its own."""
        return message_id({}, self.topic, 0, offset)

    async def rows(self, question: str, **values: Any) -> list[tuple[Any, ...]]:
        async with self.engine.connect() as connection:
            return [tuple(row) for row in await connection.execute(text(question), values)]

    async def effects(self) -> list[tuple[Any, ...]]:
        return await self.rows("select what, number from effect where consumer = :name order by number", name=self.name)

    async def inbox(self) -> list[tuple[Any, ...]]:
        question = "select event_id, status from saga_inbox where consumer = :name order by event_id"
        return await self.rows(question, name=self.name)

    async def outbox(self, topic: str) -> list[Any]:
        rows = await self.rows("select value from saga_outbox where topic = :topic order by id", topic=topic)
        return [json.loads(value) for (value,) in rows]


pytestmark = pytest.mark.sampled(turns="setup")


@pytest.fixture(params=["postgresql", "mariadb", "sqlite"])
async def setup(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ConsumerSetup]:
    url = await new_url(request.param, request, tmp_path)
    setup = ConsumerSetup(url)
    await create_tables(setup.engine)
    async with setup.engine.begin() as connection:
        made = "create table if not exists effect (consumer varchar(100), what varchar(100), number int)"
        await connection.execute(text(made))
    yield setup
    await setup.databases.close()
    await setup.others.close()


async def note(message: Message, name: str, what: str, number: int) -> None:
    statement = "insert into effect (consumer, what, number) values (:name, :what, :number)"
    await message.sql.execute(statement, name=name, what=what, number=number)


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


async def test_a_clock_that_is_ahead_forgets_no_message(setup: ConsumerSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    if setup.engine.dialect.name == "sqlite":
        pytest.skip("a file has no clock of its own")
    real = time.time
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: real() + 60 * 86400.0)
        limit = await inbox.purge_limit(setup.engine, 100.0)
    assert abs(limit - (real() - 100.0)) < 60.0


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
