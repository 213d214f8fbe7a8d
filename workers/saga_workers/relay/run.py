"""The relay process: one task for each shard of each outbox, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta

from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import inspect
from sqlalchemy.exc import SQLAlchemyError

from saga_activities.connections import Connections
from saga_activities.guard.tables_messaging import outbox_home
from saga_activities.kafka.config import require_client
from saga_activities.kafka.topics import Cluster
from saga_workers.databases import database_says
from saga_workers.health import Answer, HealthServer, Page
from saga_workers.relay.bell import Bell
from saga_workers.relay.chores import chores, keep_doing
from saga_workers.relay.lease import Leases, this_process
from saga_workers.relay.metrics import RelayMetrics
from saga_workers.relay.outbox import Outbox
from saga_workers.relay.pauses import Pauses
from saga_workers.relay.rows import OutboxRows
from saga_workers.relay.shard import Shard
from saga_workers.relay.standing import StandingOutboxes
from saga_workers.stopping import stop_on_signals
from sagas.errors import SagaError, UsageError
from sagas.settings import Settings

log = logging.getLogger("saga.relay")

_PATIENCE = 15.0
_SPARE = 3
"""Database connections beside the two of each shard, which marks and reads: leases, the bell, chores and gauges."""


async def run_relay(
    settings: Settings,
    *,
    connection: str | None = None,
    once: bool = False,
    health: str | None = None,
    grace: timedelta = timedelta(seconds=30),
    stop: asyncio.Event | None = None,
) -> None:
    """Publish until ``stop`` (None: SIGTERM or SIGINT); a batch that is under way then has ``grace`` to end.

    ``connection`` names one outbox; None: all of the project. ``once``: end when all that is new is published.

    Raises UsageError: no Kafka or no outbox in the settings, a port that is taken. SagaError: Kafka refuses a
    setting; with ``once`` also: it refuses us, or Kafka or a database does not answer.
    """
    require_client()
    kafka = settings.kafka
    log.info("Kafka at %s", kafka.servers)
    if once:
        await asyncio.to_thread(Cluster(kafka).topics)
    stop = stop or stop_on_signals()
    metrics = RelayMetrics()
    databases = open_databases(settings, connection, 2 * kafka.shards + _SPARE)
    outboxes: list[Outbox] = []
    async with AsyncExitStack() as stack:
        stack.push_async_callback(databases.close)
        if health is not None:
            await stack.enter_async_context(HealthServer(health, _pages(databases.names(), outboxes, metrics, stop)))
        serving = [
            asyncio.create_task(_serve(name, settings, databases, metrics, stop, outboxes, once=once, asked=connection))
            for name in databases.names()
        ]
        ended = asyncio.gather(*serving)
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            log.info("stopping: batches under way have %d s to end", int(grace.total_seconds()))
            await asyncio.wait({ended}, timeout=grace.total_seconds())
        stopping.cancel()
        if not ended.done():
            ended.cancel()
            raise SagaError("A batch did not end in time; the next relay finds out what came of it.")
        served = await ended
        if not any(served):
            raise UsageError("No connection of the project has an outbox.", help="saga setup")


def open_databases(settings: Settings, connection: str | None, pool_size: int) -> Connections:
    """The databases that have an outbox. Raises UsageError: there is none, or none of that name."""
    chosen = settings.sql_connections()
    if connection is not None:
        found = settings.connection(connection)
        if found.kind != "sql":
            raise UsageError(f"The connection {connection} is no database, so it has no outbox.")
        chosen = [found]
    if not chosen:
        raise UsageError("The project has no database, and so no outbox.", help="[connections.NAME] in saga.toml")
    return Connections(
        {one.name: {**one.options, "kind": "sql", "url": one.url} for one in chosen}, pool_size=pool_size
    )


async def _serve(
    name: str,
    settings: Settings,
    databases: Connections,
    metrics: RelayMetrics,
    stop: asyncio.Event,
    outboxes: list[Outbox],
    *,
    once: bool,
    asked: str | None,
) -> bool:
    """Publish one outbox; False: the database has none."""
    outbox = await _find(name, settings, databases, metrics, stop, once=once)
    if outbox is None:
        if stop.is_set():
            return True
        if asked is not None:
            raise UsageError(f"The database of {name} has no outbox, or an old one.", help="saga setup")
        log.info("%s has no outbox, or an old one: `saga setup` makes it", name)
        return False
    if outbox.home.shards != settings.kafka.shards:
        log.info("%s has %d shards: their number is decided when its tables are made", name, outbox.home.shards)
    outboxes.append(outbox)
    metrics.introduce(name)
    background = [asyncio.create_task(outbox.bell.run_for_ever())]
    if not once:
        background += [asyncio.create_task(keep_doing(chore, outbox)) for chore in chores(settings)]
    for task in background:
        task.add_done_callback(_tell_of_a_bug)
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(outbox.home.shards):
                group.create_task(Shard(outbox, number).run())
    except* SagaError as errors:
        raise errors.exceptions[0] from None  # each shard says the same
    finally:
        for task in background:
            task.cancel()
        await asyncio.wait(background)
    return True


async def _find(
    name: str, settings: Settings, databases: Connections, metrics: RelayMetrics, stop: asyncio.Event, *, once: bool
) -> Outbox | None:
    """The outbox of a database, as soon as the database answers; None: it has none, or the relay stops."""
    pauses, said = Pauses(0.2, 5.0), ""
    rows = OutboxRows(databases.engine(name))
    while not stop.is_set():
        try:
            async with asyncio.timeout(_PATIENCE):
                async with rows.engine.connect() as connection:
                    there = await connection.run_sync(lambda sync: inspect(sync).has_table(outbox_home.name))
                if not there:
                    return None
                home = await rows.home()
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            sentence = f"The database of the connection {name} does not answer: {database_says(error)}."
            if once:
                raise SagaError(sentence) from error
            if sentence != said:
                log.warning("%s", sentence)
                said = sentence
            await asyncio.sleep(pauses.next())
            continue
        leases = Leases(rows.engine, this_process())
        return Outbox(name, settings.kafka, home, rows, leases, Bell(rows), metrics, stop, once)
    return None


def _pages(
    names: Iterable[str], outboxes: Sequence[Outbox], metrics: RelayMetrics, stop: asyncio.Event
) -> dict[str, Page]:
    standing = StandingOutboxes(outboxes)
    registry = CollectorRegistry()
    registry.register(metrics)
    registry.register(standing)
    wanted = set(names)

    async def live() -> Answer:
        return 200, "ok\n"

    async def ready() -> Answer:
        if stop.is_set():
            return 503, "stopping\n"
        waiting = wanted - {outbox.name for outbox in outboxes}
        lines = [f"{name}: no outbox yet" for name in sorted(waiting)] if not outboxes else []
        shards = [(outbox, number, told) for outbox in outboxes for number, told in outbox.states.items()]
        if any(told.state in ("trouble", "fenced", "starting") for *_, told in shards):
            lines += [
                f"{outbox.name} shard {number}: {told.state} {told.reason}".rstrip() for outbox, number, told in shards
            ]
        return (503, "\n".join(lines) + "\n") if lines else (200, "ready\n")

    async def show() -> Answer:
        await standing.refresh()
        return 200, generate_latest(registry).decode()

    return {"/livez": live, "/readyz": ready, "/metrics": show}


def _tell_of_a_bug(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("something beside publishing has ended: this is a bug in saga", exc_info=task.exception())
