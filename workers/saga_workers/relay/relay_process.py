"""The relay process: one task for each shard of each outbox, plus periodic maintenance, until it is stopped.

It also delivers the rows of ``[enqueue]``, and without Kafka nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence, Set
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from sqlalchemy.exc import SQLAlchemyError

from saga_activities.concurrency import Backoff, end_tasks, wait_first
from saga_activities.connections import DatabaseConnections
from saga_activities.database_clock import time_of
from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.config import require_client
from saga_workers.enqueued.delivering import Delivering, delivered_connections
from saga_workers.relay.outbox import Outbox
from saga_workers.relay.outbox_table import OutboxTable, has_outbox
from saga_workers.relay.relay_metrics import RelayMetrics
from saga_workers.relay.relay_status import OutboxGauges
from saga_workers.relay.shard import Shard
from saga_workers.runtime.background import start_background
from saga_workers.runtime.database_access import driver_message, unusable
from saga_workers.runtime.databases import open_databases
from saga_workers.runtime.health import health_server
from saga_workers.runtime.lease import Leases
from saga_workers.runtime.logs import fields
from saga_workers.runtime.process_identity import process_identity
from saga_workers.runtime.shutdown import LEAVE_TIMEOUT, exit_after_grace, stop_on_signals
from saga_workers.runtime.wakeup import Wakeup
from sagas.errors import SagaError, UsageError
from sagas.project import Project
from sagas.settings import Settings

log = logging.getLogger("saga.relay")

_DATABASE_TIMEOUT = 15.0
_HUNG = "a client library does not return; the next relay finds the outcome of the transactions in flight"
_FINISH_BEFORE = 1.0
"""Seconds before the end of the grace period in which a delivery that is still under way is given up."""

_EXTRA_CONNECTIONS = 3
"""Database connections besides the two of each shard (scan and marks): leases, wakeup, maintenance and gauges."""


async def run_relay(
    settings: Settings,
    *,
    connection: str | None = None,
    once: bool = False,
    health: str | None = None,
    grace: timedelta = timedelta(seconds=30),
    stop: asyncio.Event | None = None,
) -> None:
    """Publish until ``stop`` is set (None: on SIGTERM or SIGINT); batches under way then have ``grace`` to end.

    ``connection`` names one database; None: all of the project. With ``once`` it returns when all new events are
    published, and all enqueued rows delivered.

    Raises UsageError if there is nothing to publish or deliver, or a port is taken; SagaError if Kafka refuses a
    setting and, with ``once``, also if Kafka denies access or if a server does not answer.
    """
    kafka = settings.kafka
    enqueued = tuple(name for name in delivered_connections(settings, "relay") if connection in (None, name))
    publishes = not enqueued or kafka.bootstrap_servers is not None
    if publishes:
        require_client()
        log.info("relay started", extra=fields(kafka=kafka.servers))
        if once:
            await asyncio.to_thread(KafkaAdmin(kafka).topics)
        databases = open_databases(settings, connection, 2 * kafka.shards + _EXTRA_CONNECTIONS)
    else:
        log.info("relay started without Kafka: it delivers enqueued rows", extra=fields(connections=enqueued))
        databases = DatabaseConnections()
    metrics = RelayMetrics()
    outboxes: list[Outbox] = []
    async with AsyncExitStack() as stack:
        if stop is None:
            stop = stop_on_signals()
            leaving = asyncio.create_task(exit_after_grace(stop, grace.total_seconds() + LEAVE_TIMEOUT, _HUNG))
            stack.callback(leaving.cancel)
        stack.push_async_callback(databases.close)
        delivering = Delivering(Project(settings), enqueued, stop, once=once)
        if health is not None:
            gauges = OutboxGauges(outboxes)

            async def refresh() -> None:
                await asyncio.gather(gauges.refresh(), delivering.metrics.refresh())

            await stack.enter_async_context(
                health_server(
                    health,
                    stop=stop,
                    ready=partial(_readiness, set(databases.names()), outboxes, delivering),
                    metrics=(metrics, gauges, delivering.metrics),
                    refresh=refresh,
                )
            )
        serving = [
            asyncio.create_task(
                _publish_outbox(
                    name, settings, databases, metrics, stop, outboxes, once=once, requested_connection=connection
                )
            )
            for name in databases.names()
        ]
        serving.append(asyncio.create_task(_deliver(delivering, enqueued, grace.total_seconds())))
        ended = asyncio.ensure_future(asyncio.wait(serving, return_when=asyncio.FIRST_EXCEPTION))
        try:
            await wait_first(asyncio.wait({ended}), stop.wait())
            if not ended.done():
                log.info("stopping: transactions in flight have %d s to complete", int(grace.total_seconds()))
                await asyncio.wait({ended}, timeout=grace.total_seconds())
            if not ended.done():
                raise _no_answer(databases.names(), outboxes, grace.total_seconds())
            served = [task.result() for task in serving if task.done()]
        finally:
            await end_tasks([*serving, ended])
        if not any(served):
            raise UsageError("no connection of the project has an outbox", help="saga setup")


async def _deliver(delivering: Delivering, connections: Collection[str], grace: float) -> bool:
    """Deliver the enqueued rows; False if no database of the settings has any."""
    await delivering.run(max(grace - _FINISH_BEFORE, 0.0))
    return bool(connections)


def _no_answer(names: Collection[str], outboxes: Collection[Outbox], grace: float) -> SagaError:
    """The error for shards that have not ended ``grace`` seconds after the stop."""
    working = [(outbox.name, shard) for outbox in outboxes for shard in outbox.states.values() if not shard.ended]
    waiting = {name for name, shard in working if not shard.calls_kafka} | ({*names} - {box.name for box in outboxes})
    silent = ["Kafka"] if any(shard.calls_kafka for _, shard in working) else []
    silent += [f"the database of {name}" for name in sorted(waiting)]
    return SagaError(
        f"{' and '.join(silent)} did not answer within {grace:g} s after the stop; the next relay finds the outcome of"
        " the transactions in flight"
    )


async def _publish_outbox(
    name: str,
    settings: Settings,
    databases: DatabaseConnections,
    metrics: RelayMetrics,
    stop: asyncio.Event,
    outboxes: list[Outbox],
    *,
    once: bool,
    requested_connection: str | None,
) -> bool:
    """Publish one outbox; False if the database has none."""
    outbox = await _wait_for_outbox(name, settings, databases, metrics, stop, once=once)
    if outbox is None:
        if stop.is_set():
            return True
        if requested_connection is not None:
            raise UsageError(f"the database of the connection {name} has no outbox", help="saga setup")
        log.info("no outbox; `saga setup` creates it", extra=fields(connection=name))
        return False
    if outbox.identity.shards != settings.kafka.shards:
        log.info(
            "the outbox has %d shards; their number is fixed when its tables are created",
            outbox.identity.shards,
            extra=fields(outbox=name),
        )
    outboxes.append(outbox)
    metrics.initialize(name)
    background = [start_background(outbox.wakeup.run_forever, f"the wake-up of {name}")]
    if not once:
        background += [
            start_background(partial(run_periodically, task, outbox), f"the maintenance of {name}")
            for task in maintenance_tasks(settings)
        ]
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(outbox.identity.shards):
                group.create_task(Shard(outbox, number).run())
    except* SagaError as errors:
        raise errors.exceptions[0] from None  # every shard raises the same error
    finally:
        await end_tasks(background)
    return True


async def _wait_for_outbox(
    name: str,
    settings: Settings,
    databases: DatabaseConnections,
    metrics: RelayMetrics,
    stop: asyncio.Event,
    *,
    once: bool,
) -> Outbox | None:
    """Wait until the database answers, then return its outbox; None if it has none or the relay stops."""
    backoff, logged = iter(Backoff(0.2, 5.0)), ""
    guard = databases.guard(name)
    rows = OutboxTable(guard.engine)
    while not stop.is_set():
        try:
            async with asyncio.timeout(_DATABASE_TIMEOUT):
                async with rows.engine.connect() as connection:
                    there = await has_outbox(connection)
                if not there:
                    return None
                home = await rows.read_identity()
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            what = f"the database of the connection {name} does not answer"
            problem = unusable(settings.sql_connection(name), what, error)
            if once:
                raise problem from error
            if problem.message != logged:
                log.warning("%s", problem.message)
                logged = problem.message
            await asyncio.sleep(next(backoff))
            continue
        leases = Leases(rows.engine, process_identity())
        return Outbox(guard, settings.kafka, home, rows, leases, Wakeup(rows.engine), metrics, stop, once)
    return None


async def _readiness(names: Set[str], outboxes: Sequence[Outbox], delivering: Delivering) -> str | None:
    waiting = names - {outbox.name for outbox in outboxes}
    lines = [f"{name}: no outbox yet" for name in sorted(waiting)] if not outboxes else []
    shards = [(outbox, number, shard) for outbox in outboxes for number, shard in outbox.states.items()]
    if any(shard.state in ("trouble", "fenced", "starting") for *_, shard in shards):
        lines += [
            f"{outbox.name} shard {number}: {shard.state} {shard.reason}".rstrip() for outbox, number, shard in shards
        ]
    lines += [f"{name}: enqueued rows wait: {reason}" for name, reason in delivering.troubles.items()]
    return "\n".join(lines) or None


_START_DELAY = 1.0
"""Seconds; publishing comes first."""


@dataclass(frozen=True, slots=True)
class MaintenanceTask:
    """A function run on an outbox every ``period`` seconds."""

    name: str
    period: float
    run: Callable[[Outbox], Awaitable[object]]


async def run_periodically(task: MaintenanceTask, outbox: Outbox) -> None:
    """Run the task soon after the start, then once per period. An error is logged, and the next period tries again."""
    await asyncio.sleep(_START_DELAY)
    while True:
        try:
            await task.run(outbox)
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            log.warning("%s failed: %s", task.name, driver_message(error), extra=fields(outbox=outbox.name))
        except SagaError as error:
            log.warning("%s failed: %s", task.name, error.message, extra=fields(outbox=outbox.name))
        await asyncio.sleep(task.period)


async def purge_published(outbox: Outbox) -> None:
    """Delete events published or dropped before the retention period, in the shards that this process publishes."""
    shards = {shard for shard, current in outbox.states.items() if current.state == "publishing"}
    if shards:
        await outbox.table.purge(shards, await time_of(outbox.table.engine), outbox.settings.retention)


def maintenance_tasks(settings: Settings) -> Sequence[MaintenanceTask]:
    """The maintenance tasks of a relay."""
    return MaintenanceTask("purge", 60.0, purge_published), _check_back_task(settings)


def _check_back_task(settings: Settings) -> MaintenanceTask:
    from saga_workers.ledger.run_ledger import using_ledger
    from saga_workers.relay.check_back import CHECK_PERIOD, CheckBack
    from saga_workers.temporal.machine_query import verifying_keys
    from saga_workers.temporal.temporal_client import connect

    verifying_keys(settings)  # a wrong setting ends the relay here
    asking = CheckBack(lambda: connect(settings), lambda: using_ledger(settings), keys=lambda: verifying_keys(settings))
    return MaintenanceTask("check-back", CHECK_PERIOD, lambda outbox: asking.check(outbox.guard))
