"""The process of `saga trigger`: triggers, consumers and bridges of a project, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from prometheus_client import CollectorRegistry
from sqlalchemy.exc import SQLAlchemyError
from temporalio.service import RPCError

from saga_activities import inbox
from saga_activities.connections import Connections
from saga_activities.kafka.config import require_client
from saga_workers.client import Client
from saga_workers.health import HealthServer
from saga_workers.process import health_pages, run_parts
from saga_workers.replies.listener import ReplyListener
from saga_workers.replies.topics import reply_topics
from saga_workers.stopping import leave_in_time, stop_on_signals
from saga_workers.trigger.bridging import Bridging
from saga_workers.trigger.consuming import Consuming
from saga_workers.trigger.dead_letters import DeadLetters
from saga_workers.trigger.metrics import TriggerMetrics
from saga_workers.trigger.reader import Reader
from saga_workers.trigger.records import Record
from saga_workers.trigger.sagas_of_events import SagaEvents
from saga_workers.trigger.trying import Stopped, pause_or_stop
from sagas.consumers import Bridge, Consumer
from sagas.definition.model import Definition
from sagas.errors import UsageError
from sagas.project import Project

log = logging.getLogger("saga.trigger")

STARTS = 32
"""Events of one trigger that are given to Temporal at once."""
MESSAGES = 16
"""Messages of one consumer in its database at once."""
THREADS = 64
"""Plain `def` handlers of this process at once."""
CLEAN_EVERY = 3_600.0
LEAVING = 10.0
"""Seconds after its grace in which this process leaves its groups. The client of Kafka waits for a broker that is there
and does not answer for as long as that lasts; without us the group goes on when our session is over."""


@dataclass(frozen=True)
class Plan:
    """What this process runs. ``triggers`` are sagas with the topics they read."""

    triggers: tuple[tuple[Definition, str], ...]
    consumers: tuple[Consumer, ...] = ()
    bridges: tuple[Bridge, ...] = ()
    replies: tuple[str, ...] = ()
    """The topics in which participants answer `kafka.request`."""

    def __len__(self) -> int:
        return len(self.triggers) + len(self.consumers) + len(self.bridges) + len(self.replies)

    @property
    def needs_temporal(self) -> bool:
        return bool(self.triggers or self.replies)


def plan(project: Project, saga: str | None = None) -> Plan:
    """Everything the project reads from Kafka, or the triggers of one saga. Raises UsageError: it is nothing."""
    if saga is not None:
        found = Plan(tuple(_topics(project.definition(saga))))
        if not found:
            raise UsageError(f"the saga {saga} has no trigger", help="triggers: {kafka: {topic: …}} in its definition")
        return found
    readers = project.readers
    triggers = tuple(one for definition in project.definitions.values() for one in _topics(definition))
    replies = reply_topics(project.definitions, project.settings.kafka.prefix)
    found = Plan(triggers, tuple(readers.consumers), tuple(readers.bridges), tuple(replies))
    if not found:
        raise UsageError(
            "this project reads no topic: no definition has `triggers` or a `kafka.request`, and no action module a"
            " @consumer or a @bridge",
            help="see docs/how-to/trigger-sagas-from-kafka.md and consume-events.md",
        )
    return found


def _topics(definition: Definition) -> Iterator[tuple[Definition, str]]:
    """One reader for each topic: triggers of one saga on the same topic share it, and each sees every event."""
    for topic in dict.fromkeys(one.topic for one in definition.triggers):
        yield definition, topic


async def run_trigger(
    project: Project, *, saga: str | None = None, health: str | None = None, grace: timedelta = timedelta(seconds=30)
) -> None:
    """Run until SIGTERM or SIGINT; what has begun then has ``grace`` to end.

    Raises UsageError: nothing to do, no server, a module that cannot be loaded, a port that is taken.
    """
    require_client()
    todo = plan(project, saga)
    for diagnostic in project.diagnostics if saga is None else ():
        log.warning("%s:%s %s %s", diagnostic.file, diagnostic.line, diagnostic.code, diagnostic.message)
    _ = project.settings.kafka.servers
    client = await Client.connect(project) if todo.needs_temporal else None
    stop = stop_on_signals()
    why = "Kafka does not answer. What is not committed is read again by somebody else"
    leaving = asyncio.create_task(leave_in_time(stop, grace.total_seconds() + LEAVING, why))
    async with AsyncExitStack() as stack:
        stack.callback(leaving.cancel)
        parts = Parts(project, client, stop, stack)
        if health is not None:
            registry = CollectorRegistry()
            registry.register(parts.metrics)
            await stack.enter_async_context(HealthServer(health, health_pages(stop, parts.ready, registry)))
        log.info(
            "%d triggers, %d consumers, %d bridges; Kafka at %s",
            len(todo.triggers),
            len(todo.consumers),
            len(todo.bridges),
            project.settings.kafka.servers,
        )
        await run_parts(parts.of(todo, grace.total_seconds()), stop)


class Parts:
    """Makes the parts of the process; what they share is made once, and closed with ``stack``."""

    def __init__(self, project: Project, client: Client | None, stop: asyncio.Event, stack: AsyncExitStack) -> None:
        self._project = project
        self._settings = project.settings.kafka
        self._client = client
        self._stop = stop
        self.metrics = TriggerMetrics()
        self._dead = DeadLetters(self._settings, self.metrics)
        stack.callback(self._dead.close)
        self._databases = Connections(
            {one.name: {**one.options, "kind": "sql", "url": one.url} for one in project.settings.sql_connections()}
        )
        stack.push_async_callback(self._databases.close)
        self._listener: ReplyListener | None = None
        self._readers: list[Reader | Bridging] = []
        self._threads = ThreadPoolExecutor(THREADS, "consumer")
        stack.callback(self._threads.shutdown, wait=False)

    def of(self, todo: Plan, grace: float) -> dict[str, Coroutine[Any, Any, None]]:
        """The parts by their names. Raises UsageError: a connection that is not there."""
        self._readers = [
            *(self._trigger(definition, topic) for definition, topic in todo.triggers),
            *(self._consumer(one) for one in todo.consumers),
            *(self._bridge(one) for one in todo.bridges),
        ]
        for one in self._readers:
            self.metrics.watch_lag(one.lags)
        parts: dict[str, Coroutine[Any, Any, None]] = {one.group: one.run(self._stop, grace) for one in self._readers}
        if todo.consumers:
            parts["clean-up"] = self._clean({one.connection for one in todo.consumers})
        if todo.replies:
            parts["replies"] = self._hear(todo.replies)
        return parts

    async def ready(self) -> str | None:
        if self._client is not None:
            try:
                await self._client.temporal.service_client.check_health(timeout=timedelta(seconds=2))
            except RPCError as error:
                return f"Temporal does not answer: {error.message}"
        if self._listener is not None and (why := self._listener.health()):
            return f"replies: {why}"
        return next((why for one in self._readers if (why := one.health())), None)

    def _trigger(self, definition: Definition, topic: str) -> Reader:
        assert self._client is not None
        group = f"{self._settings.prefix}-trigger-{definition.saga}-{topic}"
        handle = SagaEvents(self._client, definition, topic, group, self._dead, self.metrics, self._stop)
        return Reader(self._settings, group, topic, handle, width=STARTS)

    def _consumer(self, consumer: Consumer) -> Reader:
        group = f"{self._settings.prefix}-consumer-{consumer.name}"
        handle = Consuming(
            consumer,
            self._databases.guard(consumer.connection),
            group,
            self._dead,
            self.metrics,
            self._stop,
            max_bytes=self._settings.max_message_bytes,
            threads=self._threads,
        )
        return Reader(self._settings, group, consumer.topic, handle, width=MESSAGES)

    def _bridge(self, bridge: Bridge) -> Bridging:
        group = f"{self._settings.prefix}-bridge-{bridge.name}"
        return Bridging(self._settings, bridge, group, self._dead, self.metrics)

    async def _hear(self, topics: Sequence[str]) -> None:
        """Hear the replies to commands until the process stops."""
        assert self._client is not None

        async def bury(message: Any, group: str, reason: str, stop: asyncio.Event) -> None:
            await self._dead.send(Record(message), group, reason, stop)

        self._listener = ReplyListener(
            self._client.temporal, self._settings, self._databases, topics, bury=bury, counted=self.metrics.replied
        )
        await self._listener.start()
        await self._stop.wait()
        await self._listener.stop()

    async def _clean(self, connections: Iterable[str]) -> None:
        """Forget messages that no topic can bring again. It is time that drives it, not traffic."""
        try:
            while True:
                for name in connections:
                    try:
                        while await inbox.forget(
                            self._databases.engine(name), time.time() - 2 * self._settings.retention
                        ):
                            await pause_or_stop(0.1, self._stop)
                    except (SQLAlchemyError, OSError, TimeoutError) as error:
                        log.warning("the inbox of %s is cleaned later: %s", name, error)
                await pause_or_stop(CLEAN_EVERY, self._stop)
        except Stopped:
            return
