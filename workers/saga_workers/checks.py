"""What `saga doctor` looks at: each check says whether it is well, what it saw, and what to do next."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from temporalio.client import Client
from temporalio.service import RPCError

from saga_workers import search_attributes
from saga_workers.finding import Finding
from saga_workers.kafka_checks import examine_kafka
from saga_workers.kafka_use import operations_of, uses_kafka
from saga_workers.pollers import count_pollers
from saga_workers.spark import has_spark_steps
from saga_workers.spark_checks import examine_spark
from saga_workers.temporal_client import connect
from sagas.errors import SagaError
from sagas.project import Project
from sagas.settings import Connection, Settings

if TYPE_CHECKING:
    from saga_workers.relay.held import Undecided
    from saga_workers.relay.lag import Waiting

# Beyond this, "since" and "older than" in two places contradict each other visibly.
_SKEW_SECONDS = 5.0

_LATE = 60.0
"""Seconds an event may wait to be published: a relay needs less than one, and some to be started again."""


async def examine(settings: Settings) -> list[Finding]:
    """Every check, in the order in which one depends on the other."""
    findings = [_settings(settings)]
    project = Project(settings)
    findings += _definitions(project)
    try:
        client = await connect(settings)
    except SagaError as error:
        findings.append(Finding("server", False, error.message, error.help))
    else:
        findings += await _temporal(client, settings, project)
    spark = has_spark_steps(project)
    for connection in settings.sql_connections():
        findings += await _database(connection, spark=spark)
    findings += await examine_spark(settings) if spark else [_java()]
    if uses_kafka(project):
        findings += await examine_kafka(project)
    return findings


def _settings(settings: Settings) -> Finding:
    if settings.config_file is None:
        return Finding("settings", None, f"no saga.toml from {settings.root} upwards", "saga init DIR")
    return Finding("settings", True, str(settings.config_file))


def _definitions(project: Project) -> list[Finding]:
    try:
        errors = [one for one in project.diagnostics if one.severity == "error"]
        names = sorted(project.definitions)
    except SagaError as error:
        return [Finding("definitions", False, error.message, error.help)]
    if errors:
        first = errors[0]
        text = f"{len(errors)} errors, the first: {first.file}:{first.line} {first.code} {first.message}"
        return [Finding("definitions", False, text, "saga validate")]
    return [Finding("definitions", True, ", ".join(names) or "none")]


async def _temporal(client: Client, settings: Settings, project: Project) -> list[Finding]:
    findings = [Finding("server", True, client.service_client.config.target_host)]
    described = await _asked("namespace", f"the namespace {client.namespace} is not there", lambda: _namespace(client))
    findings.append(described)
    if not described.ok:
        return findings
    try:
        absent = await search_attributes.missing(client)
        findings.append(
            Finding("search attributes", not absent, f"missing: {', '.join(absent)}" if absent else "all there",
                    "saga setup" if absent else None)
        )  # fmt: skip
        findings += await _pollers(client, settings, project)
        findings.append(await _server_clock(client))
    except RPCError as error:
        findings.append(Finding("server", False, f"it does not answer everything: {error}"))
    return findings


async def _asked(check: str, otherwise: str, question: Callable[[], Awaitable[str]]) -> Finding:
    try:
        return Finding(check, True, await question())
    except RPCError as error:
        return Finding(check, False, f"{otherwise} ({error})")


async def _namespace(client: Client) -> str:
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

    found = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    days = found.config.workflow_execution_retention_ttl.ToTimedelta().days
    return f"{client.namespace}, finished runs are kept for {days} days"


async def _pollers(client: Client, settings: Settings, project: Project) -> list[Finding]:
    """Who serves the sagas' own queue, and each queue that a step names, with the actions it is there for."""
    own = settings.temporal.task_queue
    findings = [
        await _served(client, own, f"sagas of task queue {own}", workflows=True),
        await _served(client, own, f"steps of task queue {own}", workflows=False),
    ]
    for queue, actions in sorted(_foreign_actions(project, own).items()):
        what = f"task queue {queue} ({', '.join(sorted(actions))})"
        findings.append(await _served(client, queue, what, workflows=False, help=f"start the worker of {queue}"))
    return findings


async def _served(
    client: Client, queue: str, what: str, *, workflows: bool, help: str = "saga dev up    (or saga worker)"
) -> Finding:
    count = await count_pollers(client, queue, workflows=workflows)
    if count:
        return Finding("workers", True, f"{what}: {count} worker{'s poll' if count > 1 else ' polls'}")
    return Finding("workers", False, f"nobody serves the {what}", help)


def _foreign_actions(project: Project, own: str) -> dict[str, set[str]]:
    """Queues other than our own, with the actions that steps send there."""
    try:
        definitions = project.definitions.values()
    except SagaError:
        return {}
    found: dict[str, set[str]] = {}
    for definition in definitions:
        for step in definition.steps:
            for operation in operations_of(step):
                if operation.task_queue and operation.task_queue != own:
                    found.setdefault(operation.task_queue, set()).add(operation.uses)
    return found


async def _pollers_of(client: Client, queue: str) -> Sequence[Any]:
    from temporalio.api.enums.v1 import TaskQueueType
    from temporalio.api.taskqueue.v1 import TaskQueue
    from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

    kind = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    found = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind)
    )
    return found.pollers


async def _server_clock(client: Client) -> Finding:
    """Compare clocks. The server tells its time nowhere, except as when a poller was last seen: so poll once."""
    from temporalio.api.taskqueue.v1 import TaskQueue
    from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest

    queue = f"saga-doctor-{os.getpid()}"
    # Only a poller with an identity is shown.
    request = PollWorkflowTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name=queue), identity=queue)
    began = time.time()
    # The server refuses a poll that would not wait for long; this one is given up as soon as it has been seen.
    poll = asyncio.ensure_future(
        client.workflow_service.poll_workflow_task_queue(request, timeout=timedelta(seconds=20))
    )
    try:
        # The server sends no event when a poll has arrived.
        while not (pollers := await _pollers_of(client, queue)) and time.time() - began < 1.5:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    finally:
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)
    if not pollers:
        return Finding("clock of the server", None, "it could not be compared")
    return _clock("the server", pollers[0].last_access_time.ToMicroseconds() / 1e6 - began)


def _clock(whose: str, skew: float) -> Finding:
    ok = abs(skew) < _SKEW_SECONDS
    differs = f"{abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine"
    return Finding(
        f"clock of {whose}",
        ok,
        differs if abs(skew) >= 1.5 else "the same as here",
        None if ok else "synchronise the clocks (NTP)",
    )


async def _database(connection: Connection, *, spark: bool) -> list[Finding]:
    from sqlalchemy import inspect, text
    from sqlalchemy.exc import SQLAlchemyError

    from saga_activities.guard.clock import now_sql
    from saga_activities.guard.tables import metadata
    from saga_activities.outbox import NEW
    from saga_workers.databases import database_says, open_engine
    from saga_workers.relay.held import undecided
    from saga_workers.relay.lag import Lag, read_lag

    check = f"connection {connection.name}"
    try:
        engine = open_engine(connection)
    except SagaError as error:
        return [Finding(check, False, error.message, error.help)]
    now = f"select {now_sql(engine.dialect.name)}"
    try:
        async with asyncio.timeout(15), engine.connect() as database:
            tables = await database.run_sync(lambda sync: set(inspect(sync).get_table_names()))
            skew = float((await database.execute(text(now))).scalar_one()) - time.time()
            ours = set(metadata.tables) <= tables
            waiting, lag = (await undecided(engine), await read_lag(engine)) if ours else ([], Lag())
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        return [Finding(check, False, f"it cannot be used: {database_says(error)}", "saga dev up, or check its url")]
    finally:
        await engine.dispose()
    wanted = set(metadata.tables)
    absent = (wanted | {"saga_output"} if spark and connection.keeps_outputs else wanted) - tables
    return [
        Finding(check, not absent, f"missing tables: {', '.join(sorted(absent))}" if absent else "tables are there",
                "saga setup" if absent else None),
        _clock(connection.name, skew),
        *_events(connection.name, waiting, lag.total(NEW)),
    ]  # fmt: skip


def _events(name: str, waiting: Sequence[Undecided], new: Waiting) -> Iterator[Finding]:
    """A line only where something waits."""
    if waiting:
        first = waiting[0]
        message = f"{len(waiting)} wait for a person; one for {first.topic} is {first.status}: {first.why}"
        yield Finding(
            f"events of {name}", False, message, "saga relay --status    shows them, --release or --drop decides"
        )
    if new.oldest > _LATE:
        events = "1 event is" if new.events == 1 else f"{new.events} events are"
        message = f"{events} not published, the oldest has waited for {new.oldest:.0f} s"
        yield Finding(f"relay of {name}", False, message, "saga relay --status    says what holds them up")


def _java() -> Finding:
    found = shutil.which("java")
    return Finding("java", None, f"found: {found}" if found else "not found; only Spark steps would need it")
