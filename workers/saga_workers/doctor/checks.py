"""The checks of `saga doctor`: each reports whether it passed, what it found, and what to do next."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from temporalio.client import Client
from temporalio.service import RPCError

from saga_workers.doctor.accepted_definitions import check_accepted_definitions
from saga_workers.doctor.codec_keys import check_codec_keys
from saga_workers.doctor.decoding_checks import check_decoding
from saga_workers.doctor.doctor_result import DoctorResult, results_of
from saga_workers.doctor.foreign_definers import check_definers
from saga_workers.doctor.foreign_key_setting import check_foreign_key_setting
from saga_workers.doctor.kafka_checks import check_kafka
from saga_workers.doctor.schedule_checks import check_schedules
from saga_workers.doctor.schema_rights import check_schema_rights
from saga_workers.doctor.session_pooling import check_session_pooling
from saga_workers.doctor.spark_checks import check_spark, has_packages
from saga_workers.doctor.spark_input_checks import check_spark_inputs
from saga_workers.doctor.sqlite_columns import check_column_types
from saga_workers.doctor.statement_checks import check_statements
from saga_workers.doctor.two_phase_checks import check_two_phase
from saga_workers.doctor.unusable_databases import unusable_databases, unusable_result
from saga_workers.temporal import search_attributes
from saga_workers.temporal.payload_codec import payload_codec
from saga_workers.temporal.server_clock import measure_server_clock
from saga_workers.temporal.step_queues import actions_on_other_queues
from saga_workers.temporal.temporal_client import connect
from saga_workers.temporal.temporal_runs import count_pollers
from saga_workers.temporal.worker_deployments import no_current_version, set_current_command, version_to_make_current
from saga_workers.topics.kafka_use import uses_kafka
from saga_workers.views.held_counts import count_held
from saga_workers.views.prepared import two_phase_connections
from saga_workers.views.saga_list import SagaFilter
from saga_workers.worker.spark_support import has_spark_steps
from sagas.definition.model import Definition
from sagas.definition.sensitivity import has_sensitive_values
from sagas.definition.times import format_timestamp
from sagas.errors import SagaError
from sagas.project import Project
from sagas.protocol.doubtful_outcomes import NOT_VERIFIED
from sagas.protocol.standing_pause import StandingPause
from sagas.settings import HttpService, Settings, SqlConnection
from sagas.settings.effect_declarations import wrong_declarations
from sagas.settings.secrets import Secret
from sagas.settings.signing_keys import KEY_FILE
from sagas.settings.trust import writable_by_others
from sagas.text.shortening import join_names

if TYPE_CHECKING:
    from saga_workers.relay.outbox_table import WaitingEvents
    from saga_workers.relay.undecided_events import UndecidedEvent

# Beyond this, durations and ages measured on two machines contradict each other visibly.
_MAX_CLOCK_SKEW = 5.0

_MAX_PUBLISH_DELAY = 60.0
"""Seconds an event may wait to be published; a relay needs less than one, and a few more for a restart."""


async def run_checks(settings: Settings, on_progress: Callable[[str], None] = lambda _: None) -> list[DoctorResult]:
    """Run all checks, in the order of their dependencies. ``on_progress`` is called with what is checked next."""
    from saga_workers.doctor.saga_checks import check_late_replies, check_locks, check_sagas

    findings = [_check_settings(settings)]
    project = Project(settings)
    codec = _check_codec(settings)
    can_decrypt = all(result.ok for result in codec)
    findings += [*_check_definitions(project), _check_keys(settings), *codec, *_values_in_clear(project)]
    closed = await unusable_databases(settings.sql_connections())
    client = None
    try:
        client = await connect(settings)
    except SagaError as error:
        findings.append(DoctorResult("server", False, error.message, error.help))
    else:
        on_progress("the server")
        findings += await results_of("server", _check_temporal(client, settings, project))
        if settings.lock_connection is not None and settings.lock_connection not in closed:
            findings += await results_of("locks", check_locks(client, settings))
        if settings.kafka.outbox is not None and settings.kafka.outbox not in closed:
            findings += await results_of("replies", check_late_replies(client, settings))
        findings += await results_of("schedules", check_schedules(client, project))
        sagas = check_sagas(client, project, databases=not closed, on_progress=on_progress)
        findings += await results_of("sagas", sagas)
    ledger = settings.ledger.connection
    accepted = check_accepted_definitions(project, client, ledger_answers=ledger is not None and ledger not in closed)
    findings += await results_of("accepted definitions", accepted)
    if can_decrypt:
        findings += await results_of("codec", check_codec_keys(settings, client, closed))
    if ledger is not None and ledger not in closed:
        findings += await results_of("pauses", _check_standing_pauses(settings, client))
    if settings.ledger.connection not in closed:
        findings += await results_of("decoded values", check_decoding(settings))
    spark = has_spark_steps(project)
    prepared = _two_phase_connections(project)
    findings += [_check_http_connection(service) for service in settings.http_services()]
    findings += [unusable_result(project, name, problem) for name, problem in closed.items()]
    for connection in settings.sql_connections():
        if connection.name in closed:
            continue
        check = _check_database(connection, spark=spark, two_phase=connection.name in prepared)
        on_progress(f"the connection {connection.name}")
        findings += await results_of(f"connection {connection.name}", check)
    if not closed and can_decrypt:
        findings += await results_of("enqueued rows", _check_enqueued(settings))
    on_progress("the statements")
    findings += await results_of("statements", check_statements(project, without=closed))
    findings += await results_of("automatic compensations", _check_automatic_steps(project, without=closed))
    findings += await results_of("reconcile", _check_declared_columns(settings, without=closed))
    findings += await results_of("spark", check_spark(settings)) if spark else [_find_java()]
    if spark and has_packages():
        findings += await results_of("spark inputs", check_spark_inputs(project))
    if uses_kafka(project):
        findings += await results_of("kafka", check_kafka(project, client))
    problems = [result.message for result in codec if result.ok is False]
    # Each check that opens a database or Temporal repeats what is wrong with the keys.
    return [each for each in findings if each in codec or not any(problem in each.message for problem in problems)]


async def _check_standing_pauses(settings: Settings, client: Client | None) -> list[DoctorResult]:
    """The pauses of connections and of the sagas of a name, and the circuit breakers that are open, each with the
    number of sagas that wait, if Temporal answers, and the command that ends it.
    """
    from saga_workers.ledger.run_ledger import using_ledger

    try:
        async with using_ledger(settings) as ledger:
            pauses, breakers = await ledger.pauses(), await ledger.open_breakers()
    except SagaError as error:
        return [DoctorResult("pauses", False, error.message, error.help or "saga setup")]
    holds, waiting = [*pauses, *breakers], dict[str, str]()
    if holds and client is not None:
        with contextlib.suppress(RPCError):  # its own check tells of a Temporal that does not answer
            queue = SagaFilter(task_queue=settings.temporal.task_queue)
            held = await count_held(client, queue, [hold.order for hold in holds])
            waiting = {hold.order: f"; {held.words(hold)}" for hold in holds}

    def text(hold: StandingPause) -> str:
        return hold.text + waiting.get(hold.order, "")

    findings = [DoctorResult("pauses", False, text(pause), pause.resume_command) for pause in pauses]
    for breaker in breakers:
        connection = settings.connections.get(breaker.name)
        is_unused = connection is None or connection.circuit_breaker is None
        unused = "; it holds nothing, because these settings have none for this connection" if is_unused else ""
        findings.append(DoctorResult("circuit breakers", False, text(breaker) + unused, breaker.resume_command))
    return findings


async def _check_enqueued(settings: Settings) -> list[DoctorResult]:
    """Rows that were refused, or wait for long; nothing without ``[enqueue]``."""
    from saga_workers.enqueued.stuck_rows import stuck_rows

    problems = [
        DoctorResult(f"enqueued rows of {name}", False, problem, "saga enqueued list")
        async for name, problem in stuck_rows(settings)
    ]
    if problems or not settings.enqueue.connections:
        return problems
    return [DoctorResult("enqueued rows", True, "none was refused, and none waits for long")]


_MAX_NAMED = 10


def _check_settings(settings: Settings) -> DoctorResult:
    if settings.config_file is None:
        return DoctorResult("settings", None, f"no saga.toml in {settings.root} or its parent folders", "saga init DIR")
    files = (settings.root / name for name in settings.actions if name.endswith(".py"))
    for path in (settings.config_file, settings.root, *settings.definitions, *files):
        if writable_by_others(path):
            why = f"other users may change {path}, and so run code as the users of this project"
            return DoctorResult("settings", None, why, f"chmod go-w {path}")
    return DoctorResult("settings", True, str(settings.config_file))


_UNCHECKED = (
    "for this reason not checked: the statements, automatic compensations, two-phase commits, Spark jobs, topics and"
    " task queues"
)


def _check_definitions(project: Project) -> list[DoctorResult]:
    try:
        errors = [diagnostic for diagnostic in project.diagnostics if diagnostic.severity == "error"]
        names = sorted(project.definitions)
    except SagaError as error:
        return [DoctorResult("definitions", False, f"{error.message}; {_UNCHECKED} of all definitions", error.help)]
    if errors:
        first, files = errors[0], list(dict.fromkeys(error.file for error in errors))
        count = f"{len(errors)} errors, the first: " if len(errors) > 1 else ""
        text = f"{count}{first.file}:{first.line} {first.code} {first.message}"
        unchecked = f"{_UNCHECKED} of {join_names(files, _MAX_NAMED)}"
        return [DoctorResult("definitions", False, f"{text}; {unchecked}", "saga validate")]
    wrong = [
        DoctorResult("reconcile", False, mistake.message, mistake.help)
        for mistake in wrong_declarations(project.settings, project.definitions)
    ]
    return [DoctorResult("definitions", True, ", ".join(names) or "none"), *wrong]


def _two_phase_connections(project: Project) -> set[str]:
    try:
        return two_phase_connections(project.definitions)
    except SagaError:
        return set()  # reported with the definitions


def _check_http_connection(connection: HttpService) -> DoctorResult:
    """The settings of an HTTP connection, and the secret with which it signs. Nothing is sent. Workers read the secret,
    so one that is missing here is not an error.
    """
    from saga_activities.http.credentials import signing_key
    from saga_activities.http.settings import http_settings

    check = f"connection {connection.name}"
    try:
        settings = http_settings(connection)
    except SagaError as error:
        missing = isinstance(connection.url_setting, Secret) and connection.url_scheme is None
        return DoctorResult(check, None if missing else False, error.message, error.help)
    if (secret := settings.signing_secret) is None:
        return DoctorResult(check, True, "its settings are complete; no request was sent")
    try:
        secret.resolve()
    except SagaError as error:
        return DoctorResult(check, None, error.message, error.help)
    try:
        return DoctorResult(check, True, f"signs with a secret of {len(signing_key(secret))} bytes")
    except SagaError as error:
        return DoctorResult(check, False, error.message, error.help)


def _check_keys(settings: Settings) -> DoctorResult:
    """The result about the definitions that a worker with these settings runs."""
    try:
        keys = settings.signing_keys(create=False)
    except SagaError as error:
        return DoctorResult("definition keys", False, error.message, error.help)
    if settings.worker.accept == "any":
        message = (
            'workers run whatever a client of Temporal sends: [worker] accept = "any"; and nobody verifies how sagas '
            "have ended"
        )
        return DoctorResult("definition keys", False, message, "remove it, and set definition_key under [worker]")
    source = "worker.definition_key" if keys.shared else f"the key file of this folder, {KEY_FILE}"
    if not keys.keys:
        advice = "start a worker in this folder, or set definition_key under [worker]"
        return DoctorResult("definition keys", None, f"none here; workers need one, and {NOT_VERIFIED}", advice)
    first, *others = keys.ids
    rotated = f"; {', '.join(others)} also verif{'y' if len(others) > 1 else 'ies'}" if others else ""
    return DoctorResult("definition keys", True, f"{first} signs{rotated} ({source})")


def _check_codec(settings: Settings) -> list[DoctorResult]:
    """The result about the keys that encrypt values; none without the setting."""
    try:
        codec = payload_codec(settings)
    except SagaError as error:
        return [DoctorResult("codec", False, error.message, error.help)]
    return [] if codec is None else [DoctorResult("codec", True, f"encrypts with the key {codec.key_id}")]


def _values_in_clear(project: Project) -> list[DoctorResult]:
    """The sagas with `x-sensitive` values in a project that encrypts nothing, which may be as it is meant."""
    names = sorted({each.saga for each in _definitions(project) if has_sensitive_values(each.input)})
    if not names or project.settings.codec.key is not None:
        return []
    what = f"`x-sensitive` values of {join_names(names, 5)} are in clear in Temporal and in the engine's tables"
    return [DoctorResult("codec", None, what, "set [codec] key to encrypt them")]


async def _check_temporal(client: Client, settings: Settings, project: Project) -> list[DoctorResult]:
    findings = [DoctorResult("server", True, client.service_client.config.target_host)]
    described = await _check_rpc(
        "namespace", f"the namespace {client.namespace} does not exist", lambda: _describe_namespace(client)
    )
    findings.append(described)
    if not described.ok:
        return findings
    try:
        absent = await search_attributes.missing_attributes(client)
        findings.append(
            DoctorResult("search attributes", not absent, f"missing: {', '.join(absent)}" if absent else "complete",
                    "saga setup" if absent else None)
        )  # fmt: skip
        findings += await _check_pollers(client, settings, project)
        findings.append(await _check_server_clock(client))
    except RPCError as error:
        findings.append(DoctorResult("server", False, f"a request failed: {error}"))
    return findings


async def _check_rpc(check: str, failure_message: str, query: Callable[[], Awaitable[str]]) -> DoctorResult:
    try:
        return DoctorResult(check, True, await query())
    except RPCError as error:
        return DoctorResult(check, False, f"{failure_message} ({error})")


async def _describe_namespace(client: Client) -> str:
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

    described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    days = described.config.workflow_execution_retention_ttl.ToTimedelta().days
    return f"{client.namespace}, closed runs are kept for {days} days"


async def _check_pollers(client: Client, settings: Settings, project: Project) -> list[DoctorResult]:
    """The pollers of the sagas' own task queue, and of each queue that a step names, with the actions it serves."""
    own = settings.temporal.task_queue
    findings = [
        await _check_task_queue(client, own, f"sagas of task queue {own}", workflows=True),
        await _check_task_queue(client, own, f"steps of task queue {own}", workflows=False),
    ]
    for queue, actions in sorted(actions_on_other_queues(_definitions(project), own).items()):
        what = f"task queue {queue} ({', '.join(sorted(actions))})"
        findings.append(
            await _check_task_queue(client, queue, what, workflows=False, help=f"start the worker of {queue}")
        )
    return findings


async def _check_task_queue(
    client: Client, queue: str, description: str, *, workflows: bool, help: str = "saga dev up    (or saga worker)"
) -> DoctorResult:
    count = await count_pollers(client, queue, workflows=workflows)
    version = await version_to_make_current(client, queue) if count and workflows else None
    if version is not None:
        what = f"{description}: {no_current_version(version)}"
        return DoctorResult("workers", False, what, set_current_command(version))
    if count:
        return DoctorResult("workers", True, f"{description}: {count} worker{'s poll' if count > 1 else ' polls'}")
    return DoctorResult("workers", False, f"{description}: no worker polls", help)


def _definitions(project: Project) -> Iterable[Definition]:
    """The definitions of the project, none if they cannot be read: another check says so."""
    try:
        return project.definitions.values()
    except SagaError:
        return ()


async def _check_server_clock(client: Client) -> DoctorResult:
    skew = await measure_server_clock(client)
    if skew is None:
        return DoctorResult("clock of the server", None, "not comparable: no poller was listed in time")
    return _clock_result("the server", skew)


def _clock_result(name: str, skew: float) -> DoctorResult:
    ok = abs(skew) < _MAX_CLOCK_SKEW
    differs = f"{abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine"
    return DoctorResult(
        f"clock of {name}",
        ok,
        differs if abs(skew) >= 1.5 else "the same as on this machine",
        None if ok else "synchronise the clocks (NTP)",
    )


async def _check_database(connection: SqlConnection, *, spark: bool, two_phase: bool) -> list[DoctorResult]:
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    from saga_activities.guard import outbox_postgresql, watermark
    from saga_activities.guard.tables import now_sql
    from saga_activities.messaging.outbox import NEW
    from saga_activities.table_names import table_names
    from saga_workers.relay.outbox_table import OutboxLag, read_lag
    from saga_workers.relay.undecided_events import list_undecided
    from saga_workers.runtime.database_access import unusable
    from saga_workers.runtime.databases import needed_tables, open_command_engine

    check = f"connection {connection.name}"
    engine = open_command_engine(connection)
    now = f"select {now_sql(engine.dialect.name)}"
    try:
        async with asyncio.timeout(15), engine.connect() as database:
            tables = await table_names(database)
            database_time = float((await database.execute(text(now))).scalar_one())
            skew = database_time - time.time()
            mark = await watermark.read(engine) if "saga_watermark" in tables else 0.0
            ours = tables.issuperset(outbox_postgresql.needed_tables(engine.dialect.name))
            waiting, lag = (await list_undecided(engine), await read_lag(engine)) if ours else ([], OutboxLag())
            warn_after = connection.prepared_warn_after
            prepared = await check_two_phase(connection.name, engine, warn_after) if two_phase else []
            rights = await check_schema_rights(connection.name, engine, connection.trusted_roles)
            rights += await check_definers(connection.name, engine)
            rights += await check_foreign_key_setting(connection.name, engine)
            rights += await check_session_pooling(connection.name, engine)
            types = await check_column_types(connection.name, engine)
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        problem = unusable(connection, "the database cannot be used", error)
        return [DoctorResult(check, False, problem.message, problem.help)]
    finally:
        await engine.dispose()
    absent = needed_tables(connection, engine.dialect.name, spark=spark) - tables
    return [
        DoctorResult(
            check,
            not absent,
            f"missing tables: {', '.join(sorted(absent))}" if absent else "the tables exist",
            "saga setup" if absent else None,
        ),
        _clock_result(connection.name, skew),
        *_watermark_results(connection.name, mark, max(database_time, time.time())),
        *_event_results(connection.name, waiting, lag.total(NEW)),
        *prepared,
        *rights,
        *types,
    ]


async def _check_automatic_steps(project: Project, *, without: Collection[str]) -> list[DoctorResult]:
    """Return whether the catalogs allow what `compensate: auto` would have to undo; nothing if no step has it."""
    from saga_workers.doctor.automatic_steps import automatic_step_problems

    check, help = "automatic compensations", "change the statement or its table, or write a compensation"
    try:
        problems = await automatic_step_problems(project, without=without)
    except SagaError as error:
        return [DoctorResult(check, False, error.message, error.help)]
    if problems is None:
        return []
    if not problems:
        return [DoctorResult(check, True, "their tables can be restored")]
    return [DoctorResult(check, False, problem, help) for problem in problems]


async def _check_declared_columns(settings: Settings, *, without: Collection[str]) -> list[DoctorResult]:
    """Return whether the databases know what `[[reconcile.effects]]` declares; nothing without such declarations."""
    from saga_workers.reconcile.declared_columns import HELP, declaration_problems

    try:
        problems = await declaration_problems(settings, without=without)
    except SagaError as error:
        return [DoctorResult("reconcile", False, error.message, error.help)]
    if problems is None:
        return []
    if not problems:
        return [DoctorResult("reconcile", True, "the tables and columns of [[reconcile.effects]] can be read")]
    return [DoctorResult("reconcile", False, problem, HELP) for problem in problems]


def _watermark_results(name: str, mark: float, now: float) -> Iterator[DoctorResult]:
    """A result for a watermark in the future only: a purge has used a wrong clock, and the mark never goes down."""
    from saga_activities.guard.watermark import RESET

    if mark > now + _MAX_CLOCK_SKEW:
        until = format_timestamp(mark)
        yield DoctorResult(
            f"watermark of {name}",
            False,
            f"it is in the future, at {until}: until then every step over this connection ends as late",
            f"correct the clocks, then run there: {RESET.format(now=int(now))}",
        )


def _event_results(name: str, waiting: Sequence[UndecidedEvent], new: WaitingEvents) -> Iterator[DoctorResult]:
    """Results for waiting events only; none if nothing waits."""
    if waiting:
        first = waiting[0]
        message = f"{len(waiting)} need an operator; one for {first.topic} is {first.status}: {first.reason}"
        yield DoctorResult(
            f"events of {name}", False, message, "saga relay --status    lists them; decide with --release or --drop"
        )
    if new.oldest > _MAX_PUBLISH_DELAY:
        events = "1 event is" if new.events == 1 else f"{new.events} events are"
        message = f"{events} not published, the oldest has waited for {new.oldest:.0f} s"
        yield DoctorResult(f"relay of {name}", False, message, "saga relay --status    shows why")


def _find_java() -> DoctorResult:
    path = shutil.which("java")
    return DoctorResult("java", None, f"found: {path}" if path else "not found; only Spark steps need it")
