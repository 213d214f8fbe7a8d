"""Records as anybody may write them: each bad one becomes a dead letter with a reason, and blocks nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from saga_workers.temporal.temporal_runs import list_runs
from sagas import Message, action, bridge, consumer
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.raw_producer import produce_raw
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import (
    Shop,
    count,
    fresh,
    fully_consumed,
    open_shop,
    project_of,
    triggering,
)

LARGE = {"max.message.bytes": "20000000"}
Record = tuple[bytes | None, bytes | None, dict[str, bytes] | list[tuple[str, bytes]]]
"""Value, key and headers."""


@action("shop.note")
async def note(what: Any = None) -> Any:
    return {"noted": what}


ORDER = """
    saga: {saga}
    labels: {{note: "${{{{ input.note }}}}"}}
    input:
      type: object
      required: [order]
      properties: {{order: {{type: string}}, note: {{type: string, default: ""}}, blob: {{type: string}}}}
    triggers:
      kafka:
        - topic: {topic}
          filter: '!("kind" in trigger.headers)'
          id: "{saga}-${{{{ trigger.value.order }}}}"
          input: ${{{{ trigger.value }}}}
        - topic: {topic}
          filter: '"kind" in trigger.headers'
          id: "{saga}-${{{{ trigger.value.order }}}}"
          signal: paid
    steps:
      - {{id: pay, uses: wait, with: {{signal: paid, timeout: 10m}}}}
"""


@pytest.fixture
async def shop(postgres_server: DatabaseServer) -> Shop:
    return await open_shop(postgres_server)


def order(id: str, **more: Any) -> bytes:
    return json.dumps({"order": id, **more}).encode()


def hostile_records(first: str) -> list[Record]:
    """Records that must not start anything; ``first`` is an order whose saga waits for its payment."""
    ids = [
        "a/b#0",
        "x~undo",
        "x~notify-0-completed",
        "a\nb",
        "a\0b",
        "\x1b[2J",
        "\u202eb",
        "\ud800",
        "b ",
        "c" * 600,
        "",
    ]
    values = [
        *(order(id) for id in ids if id),
        order("large", blob="x" * 2_200_000),
        order("huge", blob="x" * 5_000_000),
        order("text", blob="\udfff"),
        order("label", note="x" * 3000),
        b'{"order": "n", "blob": "\\ud800"}',
        *(b"", b"\xff", b"{", b"[" * 50_000, b"[1e9999]", b"NaN", b"null", b"[]", b"1", b'"text"', b'{"order": 1}'),
        *(b'{"order": "o%d", "wrong": 1e4000}' % number for number in range(100)),
        *(b"\x00\x01\xfe" * number for number in range(1, 60)),
    ]
    forged: list[Record] = [(order("h"), None, {name: text}) for name, text in FORGED]
    return [
        *((value, None, {}) for value in values),
        (None, b"tombstone", {}),
        *forged,
        (order("h"), None, [("sagaid", b"first"), ("sagaid", b"second")]),
        (order("k"), b"\xff\xfe", {}),
        (order(first, blob="x" * 5_000_000), None, {"kind": b"payment"}),
        (order("nobody/x~undo"), None, {"kind": b"payment"}),
        (order("\ud800"), None, {"kind": b"payment"}),
    ]


FORGED = [
    (name, text)
    for name in ("ce_id", "ce_source", "sagaid", "sagakey", "sagaoutcome", "sagareplyto")
    for text in (b"\xff", b"a\0b", b"\xed\xa0\x80")
]


UNREAD = [("team", b"a"), ("team", b"\xff"), ("sagaid", b"same"), ("sagaid", b"same")]
"""No expression and no handler reads these, or they have one value."""


def write(broker: Broker, topic: str, records: Sequence[Record]) -> None:
    settings: dict[str, Any] = {"bootstrap.servers": broker.address, "message.max.bytes": 20_000_000, "linger.ms": 20}
    producer = Producer(settings)
    for value, key, headers in records:
        producer.produce(topic, value, key, headers=list(headers.items() if isinstance(headers, dict) else headers))
        producer.poll(0)
    assert producer.flush(60) == 0


async def test_each_hostile_record_is_a_dead_letter_and_each_good_one_starts_one_saga(
    kafka: Broker, temporal: TemporalServer, tmp_path: Path
) -> None:
    topic, saga, settings = kafka.create_topic(partitions=1, config=LARGE), fresh("order"), kafka.settings()
    definitions = {saga: ORDER.format(saga=saga, topic=topic)}
    project = project_of(tmp_path, settings, temporal.address, actions=[note], definitions=definitions)
    good = [f"good-{number}" for number in range(40)]
    bad = hostile_records(good[0])
    mixed: list[Record] = [(order(good[0]), None, {})]
    for number, record in enumerate(bad):
        mixed.append(record)
        if number < len(good) - 1:
            mixed.append((order(good[number + 1]), None, UNREAD))
    async with running_worker(project) as client, triggering(project) as metrics:
        await asyncio.to_thread(write, kafka, topic, mixed[:1])
        await until_in_thread(lambda: count(metrics, "saga_trigger_started_total") == 1)
        await asyncio.to_thread(write, kafka, topic, mixed[1:])
        await asyncio.to_thread(produce_raw, kafka.address, topic, order("name"), [(b"\xff\xfe", b"x"), (b"ok", b"y")])
        await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-trigger-{saga}-{topic}", topic))
        assert count(metrics, "saga_trigger_started_total") == len(good)
        await until_in_thread(lambda: _starts_exactly(client, saga, {f"{saga}-{id}" for id in good}))
    dead = kafka.read_committed(f"{topic}.dlq")
    assert len(dead) == len(bad) + 1
    reasons = [letter.headers["sagadlqreason"] for letter in dead]
    assert all(reasons)
    assert not any("internal error" in reason or "Traceback" in reason for reason in reasons)
    for expected in (
        "must not contain /",
        "must not end in ~undo",
        "control characters",
        "the maximum is 512",
        "the request is too large",
        "half a surrogate pair",
        "the maximum of all together is 2048",
        "the header sagakey is not UTF-8 text",
        "the header sagaid is there twice with different values",
        "the name of a header is not UTF-8 text",
        "the key is not UTF-8 text",
    ):
        assert any(expected in reason for reason in reasons), expected


async def _starts_exactly(client: Any, saga: str, wanted: set[str]) -> bool:
    ids = [run.id async for run in list_runs(client.temporal, f"WorkflowType = '{saga}'")]
    assert len(ids) <= len(wanted)
    assert set(ids) <= wanted
    return len(ids) == len(wanted)


async def test_a_consumer_and_a_bridge_get_past_hostile_records(kafka: Broker, shop: Shop, tmp_path: Path) -> None:
    topic, out = kafka.create_topic(config=LARGE), kafka.create_topic()

    @consumer(topic, connection="shop", name="book", max_attempts=1)
    async def book(message: Message) -> None:
        if message.value["order"] == "reads":
            _ = message.headers["team"]
        if message.value["order"] == "fails":
            raise ValueError("bad\0text \ud800")
        await message.sql.execute("insert into effect (what, number) values (:what, 1)", what=message.value["order"])

    @bridge(topic, to=out, name="copy", max_attempts=1)
    def copy(message: Message) -> Any:
        return {"order": message.value["order"]}

    settings = kafka.settings(outbox="shop")
    nowhere = "127.0.0.1:1"
    project = project_of(tmp_path, settings, nowhere, readers=[book, copy], connections={"shop": shop.url})
    bad = [
        record for record in hostile_records("x") if len(record[0] or b"") < 10_000 and "kind" not in dict(record[2])
    ]
    odd: list[Record] = [
        (order("fails"), None, {}),
        (order("reply 1"), None, {"sagareplyto": b"no such/topic", "sagakey": b"k", "sagaid": b"s" * 600}),
        (order("reply 2"), None, {"sagareplyto": b"t" * 300, "ce_id": b"i" * 5000}),
        (order("nul"), None, {"other": b"a\0b", "third": b"\xff"}),
        (order("headers"), b"k" * 100, {"x": b"y" * 900_000}),
        (order("twice", blob="x" * 1_500_000) + b"}", None, {"x": b"y" * 900_000}),
    ]
    with_end: list[Record] = [*bad, *odd, (order("reads"), None, UNREAD), (order("last"), None, UNREAD)]
    async with triggering(project) as metrics:
        await asyncio.to_thread(write, kafka, topic, with_end[:-1])
        await asyncio.to_thread(produce_raw, kafka.address, topic, order("name"), [(b"\xff\xfe", b"x")])
        await asyncio.to_thread(write, kafka, topic, with_end[-1:])
        for group in (f"{settings.prefix}-consumer-book", f"{settings.prefix}-bridge-copy"):
            await until_in_thread(lambda group=group: fully_consumed(kafka, group, topic))
        assert count(metrics, "saga_dead_letters_total") >= 2 * 150
    dead = kafka.read_committed(f"{topic}.dlq")
    assert all(letter.headers["sagadlqreason"] for letter in dead)
    assert ("last", 1) in shop.effects()
    assert {"order": "last"} in [record.json() for record in kafka.read_committed(out)]
    book_reasons = [
        letter.headers["sagadlqreason"] for letter in dead if letter.headers["sagadlqgroup"].endswith("book")
    ]
    assert any("bad\\x00text" in reason for reason in book_reasons), book_reasons[-5:]
    assert any("is not a topic for replies" in reason for reason in book_reasons)
    assert any(reason.endswith("the header team is not UTF-8 text: correct its producer") for reason in book_reasons)
    assert not {"reads", "reply 1", "reply 2", "fails"} & {what for what, _ in shop.effects()}
