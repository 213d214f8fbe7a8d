"""Relays that fight, a reader in each state, and a trigger that works, all at the same time under one Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

from prometheus_client.registry import Collector
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_workers.runtime.health import health_server
from saga_workers.worker.reader_gauges import ReaderGauges
from sagas import Message, consumer
from sagas.actions.events import Event
from tests.helpers.alert_watch import Watch, Watched, watching
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.free_ports import free_ports
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import running_worker
from tests.helpers.waiting import until, until_in_thread
from tests.integration.messaging.relay.relay_environment import OutboxEnvironment
from tests.integration.messaging.trigger.trigger_environment import count, fresh, project_of, triggering
from tests.integration.operators.reader_states import Readers, crash_loop, held_back, position_lost, topic_gone

EXPECTED = (
    "SagaReadersHeldBack",
    "SagaRelaysFight",
    "SagaDeadLetters",
    "SagaReaderCrashLoop",
    "SagaReaderUndecided",
    "SagaReaderStopped",
    "SagaTriggerBehind",
    "SagaTopicUnread",
)
PROCESSES = ("relay", "relay_of_copy", "trigger", "crashing", "undecided", "stopped", "worker")

ORDER = """
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
    steps: [{{id: pay, uses: wait, with: {{signal: paid}}}}]
"""


async def watch_messaging(folder: Path, temporal: str, databases: DatabaseServer, broker: Broker) -> Watched | None:
    """All that Prometheus shows of it; None without Prometheus."""
    addresses = {name: f"127.0.0.1:{port}" for name, port in free_ports(*PROCESSES).items()}
    with watching(folder / "prometheus", addresses.values()) as watch:
        if watch is None:
            return None
        async with (
            fighting_relays(folder, databases, broker, addresses) as emit,
            working_trigger(new_folder(folder, "trigger"), temporal, broker, addresses["trigger"]),
            contextlib.AsyncExitStack() as states,
        ):
            for name, make in (("crashing", crash_loop), ("undecided", position_lost), ("stopped", topic_gone)):
                metrics = await states.enter_async_context(make(await Readers.make(new_folder(folder, name), broker)))
                await states.enter_async_context(served(metrics, addresses[name]))
            unread = await Readers.make(new_folder(folder, "unread"), broker)  # by none of these triggers
            await states.enter_async_context(served(ReaderGauges(unread.project, no_outbox), addresses["worker"]))
            held = await Readers.make(new_folder(folder, "held"), broker)
            await emit(held.topic)
            await states.enter_async_context(held_back(held))
            return await until_fired(watch, lambda: emit(held.topic))


async def until_fired(watch: Watch, emit: Callable[[], Awaitable[None]]) -> Watched:
    """Both relays have events to publish as long as this takes."""
    waiting = asyncio.create_task(watch.until_fired([(name, {}) for name in EXPECTED], limit=60))
    while not waiting.done():
        await emit()
        await asyncio.wait({waiting}, timeout=0.5)
    return await asyncio.to_thread(Watched.of, watch, "messaging.json")


def new_folder(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made


def no_outbox() -> AsyncEngine:
    raise AssertionError("the project has no listener for replies")


@contextlib.asynccontextmanager
async def served(metrics: Collector, address: str) -> AsyncIterator[None]:
    async def ready() -> None:
        return None

    async with health_server(address, stop=asyncio.Event(), ready=ready, metrics=(metrics,)):
        yield


@contextlib.asynccontextmanager
async def fighting_relays(
    folder: Path, databases: DatabaseServer, broker: Broker, addresses: Mapping[str, str]
) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    """A relay, and one of a copy of its database with the same identity; gives what writes events into both."""
    outbox, copy = (OutboxEnvironment(databases, broker, folder) for _ in range(2))
    copy.kafka, copy.settings = outbox.kafka, copy.settings.model_copy(update={"kafka": outbox.kafka})
    for made in (outbox, copy):
        await made.make_tables()
    [(home,)] = outbox.rows("select home from saga_outbox_home")
    with copy.connect() as connection:
        connection.execute("update saga_outbox_home set home = %s", (home,))

    async def emit(topic: str) -> None:
        events = [Event(topic, f"key-{number}", number) for number in range(16)]
        for made in (outbox, copy):
            await asyncio.to_thread(made.emit, *events)

    async with (
        outbox.relaying(health=addresses["relay"]),
        copy.relaying(health=addresses["relay_of_copy"]),
    ):
        yield emit


@contextlib.asynccontextmanager
async def working_trigger(folder: Path, temporal: str, broker: Broker, address: str) -> AsyncIterator[None]:
    """Events start a saga, find it there, and signal it; of two messages for a consumer one is a dead letter."""
    topic, notes, saga = broker.create_topic(), broker.create_topic(), fresh("order")

    @consumer(notes, connection="shop", max_attempts=1)
    async def note(message: Message) -> None:
        if message.value == 2:
            raise ValueError("no such note")

    url = f"sqlite+aiosqlite:///{folder / 'shop.db'}"
    engine = open_engine("shop", url, 1)
    await create_tables(engine)
    await engine.dispose()
    project = project_of(
        folder,
        broker.settings(),
        temporal,
        definitions={saga: ORDER.format(saga=saga, topic=topic)},
        readers=[note],
        connections={"shop": url},
    )
    async with running_worker(project), triggering(project) as metrics, served(metrics, address):
        broker.produce(notes, 1, 2)
        broker.produce(topic, {"order": 1}, {"order": 1}, key="a", headers={"kind": "order"})
        broker.produce(topic, {"order": 1}, key="a", headers={"kind": "payment"})
        await until(lambda: count(metrics, "saga_trigger_signalled_total") == 1)
        await until_in_thread(lambda: count(metrics, "saga_dead_letters_total") == 1)
        yield
