"""The process of `saga trigger`: runs the triggers, consumers and bridges of a project until it is stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from saga_activities.connections import DatabaseConnections
from saga_activities.database_clock import time_of
from saga_activities.kafka.config import require_client
from saga_activities.messaging import inbox
from saga_workers.client import Client
from saga_workers.runtime.current_definitions import CurrentDefinitions, log_diagnostics
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.garbage import freeze_loaded_objects
from saga_workers.runtime.health import health_server, temporal_readiness
from saga_workers.runtime.logs import fields
from saga_workers.runtime.shutdown import LEAVE_TIMEOUT, exit_after_grace, run_tasks, stop_on_signals
from saga_workers.temporal.server_time import ServerTime
from saga_workers.trigger.attempt_gate import AttemptGate
from saga_workers.trigger.bridge import BridgeReader
from saga_workers.trigger.bulk_triggers import bulk_trigger_problem
from saga_workers.trigger.commands import CommandHandler
from saga_workers.trigger.current_triggers import CurrentTriggers, TriggerReader
from saga_workers.trigger.dead_letters import DeadLetters
from saga_workers.trigger.initial_positions import InitialPositions
from saga_workers.trigger.project_readers import REPLIES, ProjectReader, project_reader
from saga_workers.trigger.reader import TopicReader
from saga_workers.trigger.replies import ReplyListener, reply_topics
from saga_workers.trigger.retry import USUAL_ATTEMPTS, ProcessStopping, sleep_or_stop
from saga_workers.trigger.saga_trigger import SagaTrigger
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from saga_workers.trigger.watchdog import Watchdog
from sagas.actions.consumers import Bridge, Consumer
from sagas.definition.model import Definition
from sagas.errors import UsageError, did_you_mean
from sagas.project import Project

log = logging.getLogger("saga.trigger")

MAX_CONCURRENT_STARTS = 32
"""Events of one trigger passed to Temporal at once."""
MAX_CONCURRENT_MESSAGES = 16
"""Messages of one consumer processed at once, each in a database transaction and, in a plain `def`, a thread."""
PURGE_INTERVAL = 3_600.0


@dataclass(frozen=True)
class TriggerPlan:
    """The work of a trigger process. ``triggers`` are definitions with the topic they read."""

    triggers: tuple[tuple[Definition, str], ...]
    consumers: tuple[Consumer, ...] = ()
    bridges: tuple[Bridge, ...] = ()
    reply_topics: tuple[str, ...] = ()
    """The topics in which participants reply to `kafka.request`."""

    def __len__(self) -> int:
        return len(self.triggers) + len(self.consumers) + len(self.bridges) + len(self.reply_topics)

    @property
    def needs_temporal(self) -> bool:
        return bool(self.triggers or self.reply_topics)


def make_plan(project: Project, only: Sequence[str] | None = None) -> TriggerPlan:
    """Everything the project reads from Kafka, or only the sagas, consumers and bridges of these names.

    Raises UsageError if there is nothing, or nothing of one of the names.
    """
    plan = _whole_plan(project)
    if only is None:
        return plan
    for name in only:
        _require_reader(project, plan, name)
    return TriggerPlan(
        tuple((definition, topic) for definition, topic in plan.triggers if definition.saga in only),
        tuple(consumer for consumer in plan.consumers if consumer.name in only),
        tuple(bridge for bridge in plan.bridges if bridge.name in only),
        plan.reply_topics if REPLIES in only else (),
    )


def _require_reader(project: Project, plan: TriggerPlan, name: str) -> None:
    names = {definition.saga for definition, _ in plan.triggers}
    names.update(reader.name for reader in (*plan.consumers, *plan.bridges))
    names.update([REPLIES] if plan.reply_topics else [])
    if name in names:
        return
    if name in project.definitions:
        raise UsageError(f"the saga {name} has no trigger", help="triggers: {kafka: {topic: …}} in its definition")
    hint = did_you_mean(name, tuple(sorted(names)))
    raise UsageError(
        f"there is no trigger, consumer or bridge {name}{hint}", help=f"there are {', '.join(sorted(names))}"
    )


def _whole_plan(project: Project) -> TriggerPlan:
    readers = project.message_handlers
    triggers = tuple(_all_triggers(project))
    replies = reply_topics(project.definitions, project.settings.kafka.prefix)
    plan = TriggerPlan(triggers, tuple(readers.consumers), tuple(readers.bridges), tuple(replies))
    if not plan:
        raise UsageError(
            "this project reads no topic: no definition has `triggers` or `kafka.request`, and no action module has a"
            " @consumer or a @bridge",
            help="read 'Start and signal sagas with Kafka events' or 'Consume events: each effect once' of the"
            " documentation",
        )
    return plan


def _all_triggers(project: Project) -> Iterator[tuple[Definition, str]]:
    for definition in project.definitions.values():
        yield from _trigger_topics(definition)


def _trigger_topics(definition: Definition) -> Iterator[tuple[Definition, str]]:
    """One reader per topic: the triggers of a saga on one topic share it, and each sees every event."""
    for topic in dict.fromkeys(trigger.topic for trigger in definition.triggers):
        yield definition, topic


async def run_trigger(
    project: Project,
    *,
    only: Sequence[str] | None = None,
    start_from: str | None = None,
    health: str | None = None,
    grace: timedelta = timedelta(seconds=30),
) -> None:
    """Run until SIGTERM or SIGINT; messages in process then have ``grace`` to end. ``only``: see `make_plan`;
    ``start_from``: see `InitialPositions`.

    Raises UsageError if there is nothing to do, a ledger is missing, a server or port is unavailable, or a module
    cannot be loaded.
    """
    require_client()
    todo = make_plan(project, only)
    log_diagnostics(project.diagnostics if only is None else ())
    _ = project.settings.kafka.servers
    if (problem := bulk_trigger_problem(project.settings, todo.triggers)) is not None:
        raise problem
    client = await Client.connect(project) if todo.needs_temporal else None
    stop = stop_on_signals()
    why = "Kafka does not answer; uncommitted messages are delivered to another process"
    leaving = asyncio.create_task(exit_after_grace(stop, grace.total_seconds() + LEAVE_TIMEOUT, why))
    async with AsyncExitStack() as stack:
        stack.callback(leaving.cancel)
        parts = TriggerTasks(project, client, stop, stack, only=only, start_from=start_from)
        watching = asyncio.create_task(parts.watchdog.run())
        stack.callback(watching.cancel)
        if health is not None:
            await stack.enter_async_context(
                health_server(health, stop=stop, ready=parts.ready, metrics=(parts.metrics,))
            )
        log.info(
            "started with %d triggers, %d consumers, %d bridges",
            len(todo.triggers),
            len(todo.consumers),
            len(todo.bridges),
            extra=fields(kafka=project.settings.kafka.servers),
        )
        freeze_loaded_objects()
        await run_tasks(parts.make_tasks(todo, grace.total_seconds()), stop)


class TriggerTasks:
    """Creates the tasks of the process and what they share, which is closed with ``stack``. ``only``: the names of
    :func:`make_plan`.
    """

    def __init__(
        self,
        project: Project,
        client: Client | None,
        stop: asyncio.Event,
        stack: AsyncExitStack,
        *,
        only: Sequence[str] | None = None,
        start_from: str | None = None,
    ) -> None:
        self._project = project
        self._only = only
        self._settings = project.settings.kafka
        self._client = client
        self._stop = stop
        self.metrics = TriggerMetrics()
        self._dead_letters = DeadLetters(self._settings, self.metrics)
        stack.callback(self._dead_letters.close)
        self._databases = DatabaseConnections(project.settings.sql_connections())
        stack.push_async_callback(self._databases.close)
        self._initial_positions = InitialPositions(project, self._databases, client, start_from, metrics=self.metrics)
        stack.callback(self._initial_positions.close)
        self._listener: ReplyListener | None = None
        self._readers: list[TopicReader | BridgeReader] = []
        self._begun: set[str] = set()
        self._unread_replies: set[str] = set()
        self._last_problem: str | None = None
        self.watchdog = Watchdog()
        self._gate = AttemptGate(self.watchdog)
        self._stack = stack

    def make_tasks(self, plan: TriggerPlan, grace: float) -> dict[str, Coroutine[Any, Any, None]]:
        """The tasks by name. Raises UsageError if a connection does not exist."""
        self.watchdog.longest = max([consumer.timeout for consumer in plan.consumers], default=self.watchdog.longest)
        parts: dict[str, Coroutine[Any, Any, None]] = {}
        if self._client is not None:
            triggers = CurrentTriggers(
                CurrentDefinitions(self._project), partial(self._current_triggers, plan), self._add_trigger
            )
            parts["triggers"] = triggers.run(self._stop, grace)
        for source in (*plan.consumers, *plan.bridges):
            reader = project_reader(self._settings.prefix, source, source.topic)
            running = self._make_consumer(source) if isinstance(source, Consumer) else self._make_bridge(source)
            self._add_reader(running)
            parts[reader.group] = self._run_reader(reader, running, self._stop, grace)
        if plan.consumers:
            parts["clean-up"] = self._purge_inboxes({consumer.connection for consumer in plan.consumers})
        if plan.reply_topics:
            self._listener = self._make_listener(plan.reply_topics)
            parts["replies"] = self._listener.run(self._stop, grace)
        return parts

    def _current_triggers(self, plan: TriggerPlan) -> Sequence[tuple[Definition, str]]:
        """The triggers of the definitions as they were read last; those that lack a setting are left out."""
        project, only = self._project, self._only
        triggers = [trigger for trigger in _all_triggers(project) if only is None or trigger[0].saga in only]
        problem = bulk_trigger_problem(project.settings, triggers)
        message = None if problem is None else problem.message
        if message is not None and message != self._last_problem:
            log.error("a trigger cannot begin: %s", message)
        self._last_problem = message
        if only is None or REPLIES in only:
            unread = {*reply_topics(project.definitions, self._settings.prefix)} - {*plan.reply_topics}
            for topic in unread - self._unread_replies:
                log.warning("a definition has replies in %s, which are not read before a restart", topic)
            self._unread_replies = unread
        return [each for each in triggers if bulk_trigger_problem(project.settings, [each]) is None]

    def _add_reader(self, reader: TopicReader | BridgeReader) -> None:
        self._readers.append(reader)
        self.metrics.add_reader(reader)

    def _add_trigger(self, definition: Definition, topic: str, stop: asyncio.Event) -> TriggerReader:
        reader = project_reader(self._settings.prefix, definition, topic)
        running = self._make_trigger(definition, topic, stop)
        self._add_reader(running)
        return TriggerReader(reader.group, partial(self._run_reader, reader, running), partial(self._left, running))

    def _left(self, running: TopicReader) -> None:
        self._readers.remove(running)
        self.metrics.remove_reader(running)
        self._begun.discard(running.group)
        if running in self._gate.members:
            self._gate.members.remove(running)

    async def _run_reader(
        self, reader: ProjectReader, running: TopicReader | BridgeReader, stop: asyncio.Event, grace: float
    ) -> None:
        try:
            await self._initial_positions.settle(reader, stop)
        except ProcessStopping:
            return
        self._begun.add(reader.group)
        self._gate.members.append(running)
        await running.run(stop, grace)

    async def ready(self) -> str | None:
        if self._client is not None and (why := await temporal_readiness(self._client.temporal)):
            return why
        if self._listener is not None and (why := self._listener.health()):
            return f"replies: {why}"
        if (why := self._initial_positions.health()) is not None:
            return why
        beginning = (f"{each.group} looks where it begins" for each in self._readers if each.group not in self._begun)
        stopped = (why for reader in self._readers if (why := reader.health()))
        return next(beginning, None) or next(stopped, None)

    def _make_trigger(self, definition: Definition, topic: str, stop: asyncio.Event) -> TopicReader:
        assert self._client is not None
        group = project_reader(self._settings.prefix, definition, topic).group
        self.metrics.starts_sagas(definition.saga, topic)
        handle = SagaTrigger(self._client, definition, topic, group, self._dead_letters, self.metrics, stop)
        if not handle.most_shared:
            return TopicReader(self._settings, group, topic, handle, concurrency=MAX_CONCURRENT_STARTS, gate=self._gate)
        # While two workflows start, the next one fills.
        most = 3 * handle.most_shared + MAX_CONCURRENT_STARTS
        return TopicReader(
            self._settings,
            group,
            topic,
            handle,
            concurrency=most,
            ordered=handle.ordered,
            max_pending=2 * most,
            fill_time=handle.fill_time,
            gate=self._gate,
        )

    def _make_consumer(self, consumer: Consumer) -> TopicReader:
        group = project_reader(self._settings.prefix, consumer, consumer.topic).group
        self.metrics.consumes(consumer.name, consumer.topic)
        # Its own threads: handlers of another consumer that hang take none of them.
        threads = ThreadPoolExecutor(MAX_CONCURRENT_MESSAGES, group)
        self._stack.callback(threads.shutdown, wait=False)
        handle = CommandHandler(
            consumer,
            self._databases.guard(consumer.connection),
            group,
            self._dead_letters,
            self.metrics,
            self._stop,
            max_bytes=self._settings.max_message_bytes,
            threads=threads,
            prefix=self._settings.prefix,
            watchdog=self.watchdog,
        )
        return TopicReader(
            self._settings,
            group,
            consumer.topic,
            handle,
            concurrency=MAX_CONCURRENT_MESSAGES,
            gate=self._gate,
            max_attempts=consumer.max_attempts or USUAL_ATTEMPTS,
            timeout=consumer.timeout,
        )

    def _make_bridge(self, bridge: Bridge) -> BridgeReader:
        group = project_reader(self._settings.prefix, bridge, bridge.topic).group
        self.metrics.consumes(bridge.name, bridge.topic)
        return BridgeReader(self._settings, bridge, group, self._dead_letters, self.metrics, gate=self._gate)

    def _make_listener(self, topics: Sequence[str]) -> ReplyListener:
        assert self._client is not None
        return ReplyListener(
            self._client.temporal,
            self._settings,
            self._databases,
            topics,
            dead_letter_sink=self._dead_letters.send,
            metrics=self.metrics,
            gate=self._gate,
        )

    async def _purge_inboxes(self, connections: Iterable[str]) -> None:
        """Delete inbox rows of messages that no topic can redeliver any more. Driven by time, not by traffic.

        A file of SQLite has no clock of its own, so the Temporal server's counts as well, in a process that uses one.
        """
        server_time = None if self._client is None else ServerTime(self._client.temporal)
        try:
            while True:
                for name in connections:
                    try:
                        engine = self._databases.engine(name)
                        now = await time_of(engine)
                        if server_time is not None and engine.dialect.name == "sqlite":
                            now = min(now, await server_time.now() or 0.0)
                        while await inbox.purge(engine, now - 2 * self._settings.retention):
                            await sleep_or_stop(0.1, self._stop)
                    except (SQLAlchemyError, OSError, TimeoutError) as error:
                        log.warning("inbox not purged: %s", driver_message(error), extra=fields(connection=name))
                await sleep_or_stop(PURGE_INTERVAL, self._stop)
        except ProcessStopping:
            return
