"""Records that cannot be checked within bounds: each reader gives them up with that reason, and goes on with others."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from saga_workers.runtime.health import health_server
from sagas import Command, Message, action, bridge, consumer, participant
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.free_ports import free_port
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import running_worker
from tests.helpers.nested_lists import nested_list
from tests.helpers.processes import TemporalServer
from tests.helpers.quiet_cpu import quiet_seconds
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import (
    Shop,
    count,
    ended,
    fresh,
    fully_consumed,
    open_shop,
    project_of,
    triggering,
)

OUT_OF_BOUNDS: Mapping[str, bytes] = {
    "is nested deeper than 100 levels": b'{"what": ' + b"[" * 200 + b"]" * 200 + b"}",
    "has more than 4,000 digits": b'{"what": ' + b"9" * 5_000 + b"}",
    "has more than 1,000 digits": b'{"what": 0.' + b"9" * 2_000 + b"}",
}
"""Records by the end of the reason for which any reader gives them up."""

TREES = """
    saga: {saga}
    input:
      type: object
      properties: {{tree: {{$ref: "#/$defs/tree"}}, card: {{type: integer, x-sensitive: true}}}}
      $defs:
        tree:
          anyOf:
            - {{type: array, items: {{$ref: "#/$defs/tree"}}, contains: {{const: 0}}}}
            - {{type: array, items: {{$ref: "#/$defs/tree"}}}}
            - {{type: string}}
    triggers:
      kafka:
        topic: {topic}
        filter: "trigger.value.what.all(a, trigger.value.what.all(b, a + b >= 0))"
        id: "{saga}-${{{{ trigger.value.id }}}}"
        input: {{tree: "${{{{ trigger.value.tree }}}}", card: "${{{{ int(default(trigger.value.card, 1)) }}}}"}}
    steps:
      - {{id: say, uses: unbounded.say, with: {{}}, effect: none}}
"""


@action("unbounded.say")
async def say() -> None:
    return None


@pytest.fixture
async def shop(postgres_server: DatabaseServer) -> Shop:
    return await open_shop(postgres_server)


def reasons(kafka: Broker, topic: str, reader: str) -> list[str]:
    dead = kafka.read_committed(f"{topic}.dlq")
    return [letter.headers["sagadlqreason"] for letter in dead if letter.headers["sagadlqgroup"].endswith(reader)]


@asynccontextmanager
async def polled_health() -> AsyncIterator[list[float]]:
    """Ask a health page of this process again and again; gives the CPU that its event loop took between two answers."""
    address, stop, taken = f"127.0.0.1:{free_port()}", asyncio.Event(), list[float]()

    async def ready() -> None:
        return None

    async def poll(client: httpx.AsyncClient) -> None:
        before = time.thread_time()
        while True:
            assert (await client.get(f"http://{address}/livez")).text == "ok\n"
            seconds = time.thread_time() - before
            taken.append(seconds if seconds < 0.1 else quiet_seconds(seconds))
            before = time.thread_time()
            await asyncio.sleep(0.01)

    async with health_server(address, stop=stop, ready=ready, metrics=()), httpx.AsyncClient() as client:
        await client.get(f"http://{address}/livez")
        polling = asyncio.create_task(poll(client))
        try:
            yield taken
        finally:
            polling.cancel()
            with suppress(asyncio.CancelledError):
                await polling


async def test_an_event_whose_check_is_too_long_is_a_dead_letter_of_its_trigger(
    kafka: Broker, temporal: TemporalServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic, saga, settings = kafka.create_topic(partitions=1), fresh("trees"), kafka.settings()
    definitions = {saga: TREES.format(saga=saga, topic=topic)}
    project = project_of(tmp_path, settings, temporal.address, actions=[say], definitions=definitions)
    hostile = [
        {"id": "deep", "what": [], "tree": nested_list(80)},
        {"id": "wide", "what": list(range(1_000)), "tree": "x"},
        {"id": "secret", "what": [], "tree": "x", "card": "4000-kanari"},
    ]
    good = [{"id": "first", "what": [1], "tree": nested_list(2)}, {"id": "last", "what": [1], "tree": nested_list(11)}]
    async with running_worker(project) as client, triggering(project) as metrics, polled_health() as loop_seconds:
        await asyncio.to_thread(kafka.produce, topic, good[0], *hostile, *OUT_OF_BOUNDS.values(), good[1])
        await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-trigger-{saga}-{topic}", topic))
        for event in good:
            assert (await ended(client, f"{saga}-{event['id']}"))["state"] == "COMPLETED"
        assert count(metrics, "saga_trigger_started_total") == len(good)
        assert count(metrics, "saga_dead_letters_total") == len(hostile) + len(OUT_OF_BOUNDS)
    assert len(loop_seconds) > 5
    assert max(loop_seconds) < 0.1, "the health page does not wait for the check of a record"
    told = reasons(kafka, topic, topic)
    assert "kanari" not in str(told) + caplog.text
    for why in (
        "`filter` cannot be evaluated for this event: the expression needs more than 100,000 evaluation steps",
        f"the input of {saga} is not valid: input: the input is too large for the schema",
        "`input` cannot be evaluated for this event: `${{ int(default(trigger.value.card, 1)) }}` fails; the reason "
        "may quote an x-sensitive value, and is not shown",
        *OUT_OF_BOUNDS,
    ):
        assert sum(why in reason for reason in told) == 1, why


@pytest.mark.slow
async def test_consumers_bridges_and_commands_give_up_what_they_cannot_read(
    kafka: Broker, shop: Shop, tmp_path: Path
) -> None:
    topic, out, commands, replies = (kafka.create_topic(partitions=1) for _ in range(4))

    @consumer(topic, connection="shop", name="book")
    async def book(message: Message) -> None:
        await message.sql.execute("insert into effect (what, number) values ('booked', 1)")

    @bridge(topic, to=out, name="copy")
    def copy(message: Message) -> Any:
        return message.value

    @participant(commands, connection="shop", name="seats")
    class Seats:
        async def do(self, command: Command, what: str) -> Any:
            await command.sql.execute("insert into effect (what, number) values ('seated', 1)")
            return {"seat": 1}

        async def undo(self, command: Command) -> None:
            return None

    settings = kafka.settings(outbox="shop")
    readers = [book, copy, Seats]
    project = project_of(tmp_path, settings, "127.0.0.1:1", readers=readers, connections={"shop": shop.url})
    good = json.dumps({"what": "good"}).encode()
    async with triggering(project) as metrics:
        await asyncio.to_thread(kafka.produce, topic, *OUT_OF_BOUNDS.values(), good)
        for number, value in enumerate([*OUT_OF_BOUNDS.values(), good]):
            headers = {"sagaop": "do", "sagakey": f"unbounded/{number}/do", "sagareplyto": replies}
            await asyncio.to_thread(kafka.produce, commands, value, key=str(number), headers=headers)
        for group, read in (("consumer-book", topic), ("bridge-copy", topic), ("consumer-seats", commands)):
            name = f"{settings.prefix}-{group}"
            await until_in_thread(lambda name=name, read=read: fully_consumed(kafka, name, read))
        assert count(metrics, "saga_dead_letters_total") == 3 * len(OUT_OF_BOUNDS)
    for read, reader in ((topic, "book"), (topic, "copy"), (commands, "seats")):
        told = reasons(kafka, read, reader)
        assert len(told) == len(OUT_OF_BOUNDS), reader
        for why in OUT_OF_BOUNDS:
            assert sum(reason.endswith(why) for reason in told) == 1, (reader, why)
    assert sorted(shop.effects()) == [("booked", 1), ("seated", 1)]
    assert [record.json() for record in kafka.read_committed(out)] == [{"what": "good"}]
    assert [headers["sagaoutcome"] for _, headers, _ in shop.outbox(replies)] == ["done"]
