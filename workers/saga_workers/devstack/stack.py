"""`up`, `restart`, `status` and `down` over the services: start what is missing, wait until it is ready, record it."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from saga_workers.devstack import ports as tcp
from saga_workers.devstack import schedules
from saga_workers.devstack.closing_report import report_what_is_missing
from saga_workers.devstack.dev_folder import DevFolder, ServiceRecord
from saga_workers.devstack.kafka_server import KafkaService, broker_unavailable_reason
from saga_workers.devstack.os_process import find_marked, start_process, stop_process
from saga_workers.devstack.postgres_server import PostgresService
from saga_workers.devstack.project_processes import ProjectProcess, RelayService, TriggerService, WorkerService
from saga_workers.devstack.reported_reason import ReportedReason
from saga_workers.devstack.service import Service
from saga_workers.devstack.start_failure import cause, full_disk
from saga_workers.devstack.temporal_server import TemporalService, local_port
from saga_workers.topics.kafka_use import needs_trigger, uses_kafka
from saga_workers.worker.spark_support import spark_unavailable_reason
from sagas.errors import SagaError, UsageError, did_you_mean, errors_together
from sagas.project import Project
from sagas.settings import Settings, SqlConnection, load_settings
from sagas.settings.loader import load_valid_settings
from sagas.settings.masking import mask, mask_properties
from sagas.text.shell import saga_command

Report = Callable[[str], Any]

# Seconds a running process may take to answer before it counts as hung and is restarted.
_HUNG_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class StartedService:
    """A service that was started (or found) and has to become ready. ``log_from``: where its new output begins."""

    service: Service
    record: ServiceRecord
    log_from: int
    was_running: bool
    attempt: int = 1


class Stack:
    """The embedded stack of one project. ``report`` shows progress to the user."""

    def __init__(self, settings: Settings, report: Report) -> None:
        self.folder = DevFolder(settings.root)
        self.report = report
        self.settings = settings
        self.services = {kind.name: kind(settings, self.folder) for kind in SERVICES}

    # ── up ──────────────────────────────────────────────────────────────────────────────────────────────

    def up(self, only: Collection[str] | None = None) -> None:
        """Start what is missing of ``only`` (default: everything) and wait until all of it is ready.

        Raises:
            SagaError: a service does not start; the others stay as they are.
        """
        self.folder.create()
        with self._locked():
            self.folder.owner()
            if (only is None or "worker" in only) and (reason := spark_unavailable_reason(self.settings)):
                self.report(reason)
            pending = [name for name in SERVICE_NAMES if name in (self._needed_services() if only is None else only)]
            if self._kafka_services & set(pending):
                pending = self._without_missing_kafka(pending)
            running = [name for name in SERVICE_NAMES if self.folder.read(name).is_alive()]
            refuse_incomplete(self.settings, pending, running)
            if "temporal" in pending and self._uses_external_temporal():
                pending.remove("temporal")
                self.report(
                    f"the settings name the Temporal server {self.settings.temporal.address}, so none is started"
                )
                schedules.report_missing_setup(self.settings, self.report)
            chosen = list(pending)
            while pending:
                wave = [name for name in pending if not set(self.services[name].after) & set(pending)]
                for running in [self._ensure_started(self.services[name]) for name in wave]:
                    self._await_ready(running)
                self._write_toml()
                if "postgres" in wave:
                    self._set_up_databases()
                if "kafka" in wave:
                    self._set_up_topics()
                if "temporal" in wave:
                    schedules.set_up_stack_schedules(self.settings, self.report)
                pending = [name for name in pending if name not in wave]
            report_what_is_missing(self.settings, chosen, self.report)

    def _locked(self) -> AbstractContextManager[None]:
        """Lock this stack against other `saga dev` commands, with a report when it has to wait for one."""
        return self.folder.lock(
            lambda: self.report("another `saga dev` command is running in this project; waiting for it")
        )

    def restart(self, names: Collection[str]) -> None:
        """Stop these services and start them again; none: the project's own processes that should run.

        The project's processes restart too when an address has changed: a server lost its port to another program.
        Raises SagaError as :meth:`up`, UsageError if nothing was started.
        """
        if not self.folder.dev.is_dir():
            raise UsageError("the dev stack of this project was never started", help=saga_command("dev", "up"))
        with self._locked():
            self.folder.owner()
            addresses = self._addresses()
            chosen = names or [name for name in PROJECT_PROCESSES if self.folder.read(name).wanted]
            if not chosen:
                raise UsageError("no process of this project is running", help=saga_command("dev", "up"))
            for name in reversed(SERVICE_NAMES):
                if name in chosen:
                    self.report(f"stopping {name}")
                    self._stop(self.services[name], self._record(self.services[name]))
        self.up(chosen)
        running = [name for name in PROJECT_PROCESSES if self.folder.read(name).is_alive()]
        if running and self._addresses() != addresses:
            self.up(running)

    def _addresses(self) -> bytes:
        return self.folder.toml.read_bytes() if self.folder.toml.exists() else b""

    def _needed_services(self) -> list[str]:
        """All services, without those for Kafka if the project does not use it."""
        project = Project(self.settings)
        if not uses_kafka(project):
            return [name for name in SERVICE_NAMES if name not in self._kafka_services]
        idle = {"relay": not self.settings.sql_connections(), "trigger": not needs_trigger(project)}
        return [name for name in SERVICE_NAMES if not idle.get(name)]

    @property
    def _kafka_services(self) -> set[str]:
        """Services that have nothing to do without Kafka."""
        return set(KAFKA_SERVICES) - ({RelayService.name} if self.settings.relay_delivers else set())

    def _without_missing_kafka(self, pending: list[str]) -> list[str]:
        """Return those of ``pending`` that can start: without a broker, Kafka and what needs it are dropped, with a
        report.

        Raises SagaError if an external broker does not answer.
        """
        kafka = self.settings.kafka
        if kafka.bootstrap_servers is not None and not kafka.embedded:
            if "kafka" in pending:
                self.report(f"the settings name the Kafka brokers {kafka.bootstrap_servers}, so none is started")
            waiting = [name for name in pending if name != "kafka"]
            if self._kafka_services & set(waiting) and not self._external_kafka_answers():
                raise SagaError(
                    f"the configured Kafka brokers {kafka.bootstrap_servers} do not answer; nothing was started",
                    help="start them, or remove `bootstrap_servers` from [kafka] to let `saga dev up` start a broker",
                )
            return waiting
        if (
            self._record(self.services["kafka"]).is_alive()
            or (reason := broker_unavailable_reason(self.report)) is None
        ):
            return pending
        self.report(reason)
        return [name for name in pending if name not in self._kafka_services]

    def _set_up_databases(self) -> None:
        """Create the tables in the databases of the embedded PostgreSQL; for others, use `saga setup`."""
        current = load_settings(self.settings.root, self.settings.config_file)
        own = [connection for connection in current.sql_connections() if connection.embedded]
        if own:
            import asyncio

            from saga_workers.runtime.databases import set_up_database

            failures: list[SagaError] = []
            for connection in own:
                try:
                    asyncio.run(set_up_database(connection, current.kafka.shards, self.report))
                except SagaError as error:
                    failures.append(error)
            if failures:
                raise errors_together(failures)

    def _set_up_topics(self) -> None:
        """Create the topics that the definitions name in the embedded Kafka; for others, use `saga setup`."""
        from saga_workers.topics.topic_creation import create_topics

        current = load_settings(self.settings.root, self.settings.config_file)
        if current.kafka.embedded:
            try:
                create_topics(Project(current))
            except UsageError as error:
                self.report(f"topics not created: {error.message}")

    def _external_kafka_answers(self) -> bool:
        servers = self.settings.kafka.bootstrap_servers or ""
        return any(_port_is_open(address.strip()) for address in servers.split(","))

    def _uses_external_temporal(self) -> bool:
        """Return whether the settings name a server that the stack does not manage."""
        temporal = self.settings.temporal
        if temporal.address is None or temporal.embedded:
            return False
        port = local_port(temporal.address)
        if port is None:
            return True
        record = self.folder.read("temporal")
        return not (record.is_alive() and record.ports.get("port") == port) and not tcp.is_free(port)

    def _ensure_started(self, service: Service) -> StartedService:
        record = self._record(service)
        if record.is_alive() and isinstance(service, ProjectProcess) and service.is_outdated(record.data):
            self.report(f"the project has changed: restarting the {service.name}")
            record = self._stop(service, record)
        if record.is_alive():
            return StartedService(service, record, 0, was_running=True)
        return self._start(service, record)

    def _record(self, service: Service) -> ServiceRecord:
        """The record of a service; its process is found by its mark if the record was lost."""
        record = self.folder.read(service.name)
        if not record.is_alive() and (process := find_marked(self._mark(service))):
            record = dataclasses.replace(record, process=process)
            if not record.ports:
                # Its ports are lost with the record, so the process is of no use.
                record = self._stop(service, record)
        return record

    def _mark(self, service: Service) -> str:
        return f"{self.folder.owner()}/{service.name}"

    def _start(self, service: Service, record: ServiceRecord, after: StartedService | None = None) -> StartedService:
        """Start a service. ``after``: the attempt that this one repeats."""
        data = service.prepare(record.data)
        others = [
            port for name in SERVICE_NAMES if name != service.name for port in self.folder.read(name).ports.values()
        ]
        previous = dict(record.ports)
        preferred = service.ports()
        if service.name == "temporal" and not self.settings.temporal.embedded and self.settings.temporal.address:
            previous.pop("port", None)  # the settings name the port, so the previous one does not matter
        ports = tcp.choose_ports(preferred, previous, others)
        if after is None or after.was_running:
            log = self.folder.rotate_log(service.name)
            log_from = log.stat().st_size if log.exists() else 0
        else:
            log, log_from = self.folder.log_file(service.name), after.log_from
        process = start_process(service.launch(ports, data), log, self._mark(service))
        record = ServiceRecord(True, process, ports, dict(data))
        self.folder.write(service.name, record)
        return StartedService(service, record, log_from, was_running=False, attempt=after.attempt + 1 if after else 1)

    def _await_ready(self, running: StartedService) -> None:
        service, record = running.service, running.record
        end = time.monotonic() + (_HUNG_TIMEOUT if running.was_running else service.start_timeout)
        reason = ReportedReason(service, record.ports, self.report)
        while record.is_alive():
            missing = service.not_ready(record.ports)
            if missing is None:
                service.on_ready(record.ports, record.data)
                self.folder.write(service.name, dataclasses.replace(record, wanted=True))
                return
            reason.look()
            if time.monotonic() > end:
                record = self._stop(service, record)
                if not running.was_running:
                    why = full_disk(self._home(service)) or reason.text or f"{missing} did not answer"
                    raise SagaError(
                        f"{service.name} was not ready after {service.start_timeout:.0f} s: {why}",
                        help=saga_command("dev", "logs", service.name),
                    )
                self.report(f"{service.name} did not answer: restarting it")
                break
            time.sleep(0.03)
        else:
            # It has ended: the port was taken meanwhile, or an earlier process has not ended completely.
            if running.attempt >= service.start_attempts:
                why = self._cause(running)
                raise SagaError(f"{service.name} exited during its start: {why}", help=service.start_help())
            time.sleep(0.3 * running.attempt)
        self._await_ready(self._start(service, dataclasses.replace(record, process=None), running))

    def _cause(self, running: StartedService) -> str:
        with self.folder.log_file(running.service.name).open("rb") as log:
            log.seek(running.log_from)
            return full_disk(self._home(running.service)) or cause(log.read().decode("utf-8", "replace"))

    def _home(self, service: Service) -> Path:
        """The service's data folder, or ``.saga/dev`` if it has none."""
        data = self.folder.data_folder(service.name)
        return data if data.is_dir() else self.folder.dev

    def _write_toml(self) -> None:
        tables: dict[str, dict[str, str]] = {}
        for name, service in self.services.items():
            record = self.folder.read(name)
            if record.is_alive():
                tables |= service.settings_tables(record.ports, record.data)
        self.folder.write_toml(tables)

    # ── status ──────────────────────────────────────────────────────────────────────────────────────────

    def status(self, *, reveal: bool = False) -> dict[str, Any]:
        """The document of `dev status -o json`. ``reveal``: with the passwords of the embedded servers, not others'."""
        if self.folder.dev.is_dir():
            self.folder.owner()  # drops the records in a copied project, which are those of the original
        document: dict[str, Any] = {}
        for name, service in self.services.items():
            record = self.folder.read(name)
            alive = record.is_alive()
            if alive and service.not_ready(record.ports) is None:
                state = "running"
            else:
                state = "failed" if record.wanted or alive else "stopped"
            where = service.addresses(record.ports, record.data) if record.ports and alive else {}
            where = where if reveal else mask_properties(where)
            document[name] = {"state": state, "pid": record.process.pid if alive and record.process else None, **where}
        temporal = self.settings.temporal
        if document["temporal"]["pid"] is None and temporal.address and not temporal.embedded:
            document["temporal"] = {
                "state": "running" if _port_is_open(temporal.address) else "failed",
                "pid": None,
                "address": temporal.address,
                "web_ui": temporal.web_ui,
            }
        kafka = self.settings.kafka
        if document["kafka"]["pid"] is None and kafka.bootstrap_servers and not kafka.embedded:
            state = "running" if self._external_kafka_answers() else "failed"
            document["kafka"] = {"state": state, "pid": None, "address": kafka.bootstrap_servers}
        file = self.settings.config_file
        current = load_settings(self.settings.root) if file is None else load_valid_settings(file, without_file=True)[0]
        document["spark"] = spark_runner_status(current.root / current.spark.work)
        document["connections"] = {
            connection.name: self._url_for_people(connection, reveal=reveal)
            for connection in current.sql_connections()
            if isinstance(connection.url_setting, str)
        }
        document["catalogs"] = {
            name: dict(properties) if reveal and name in current.embedded_catalogs else mask_properties(properties)
            for name, properties in current.catalogs.items()
        }
        return document

    def _url_for_people(self, connection: SqlConnection, *, reveal: bool) -> str:
        """The URL of a database, of the embedded PostgreSQL over TCP; without ``reveal`` credentials are masked."""
        postgres, ports = self.services["postgres"], self.folder.read("postgres").ports
        if not connection.embedded or not isinstance(postgres, PostgresService) or not ports:
            return mask(connection.url)
        url = postgres.url(ports, connection.name)
        return url if reveal else mask(url)

    # ── down ────────────────────────────────────────────────────────────────────────────────────────────

    def down(self, *, wipe: bool = False) -> list[str]:
        """Stop what `up` has started, in reverse order; returns what was stopped. ``wipe``: delete the data too."""
        if not self.folder.dev.is_dir():
            return []
        stopped = []
        with self._locked():
            self.folder.owner()
            for name in reversed(SERVICE_NAMES):
                service = self.services[name]
                record = self._record(service)
                if record.is_alive():
                    stopped.append(name)
                self._stop(service, record)
            self.folder.toml.unlink(missing_ok=True)
            if wipe:
                for service in self.services.values():
                    service.wipe()
                self.folder.wipe()
        return stopped

    def _stop(self, service: Service, record: ServiceRecord) -> ServiceRecord:
        if record.process is not None:
            stop_process(record.process, number=service.stop_signal, grace=service.grace)
        record = dataclasses.replace(record, wanted=False, process=None)
        self.folder.write(service.name, record)
        return record


def _port_is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return port.isdigit() and tcp.is_open(host.strip("[]"), int(port))


# The services of the embedded stack, in the order of `dev status`.
#
# A new one is a file with a :class:`~saga_workers.devstack.service.Service` and a line here.
SERVICES: tuple[type[Service], ...] = (
    TemporalService,
    PostgresService,
    KafkaService,
    WorkerService,
    RelayService,
    TriggerService,
)

KAFKA_SERVICES = (KafkaService.name, RelayService.name, TriggerService.name)
"""Services of projects with Kafka; the relay also delivers what applications have enqueued."""

SERVICE_NAMES = tuple(service.name for service in SERVICES)

PROJECT_PROCESSES = tuple(service.name for service in SERVICES if issubclass(service, ProjectProcess))
"""Services that run the project's own definitions, settings or code."""


# The Spark runner of a project. The worker starts it with the first job, and stops it.
def spark_runner_status(work: Path) -> dict[str, Any]:
    """``state`` (running or stopped), and ``pid`` and ``log`` of the newest running one.

    ``work`` is the folder of the runners' logs and scratch folders. The name of a scratch folder contains the pid of
    its worker, and the runner has its path in its environment.
    """
    scratches = (work / "scratch").glob("runner-*")
    for scratch in sorted(scratches, key=lambda path: path.name, reverse=True):
        worker = scratch.name.split("-")[2]
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(int(worker)).children():
                if _uses_scratch(process, scratch):
                    return {"state": "running", "pid": process.pid, "log": str(work / f"{scratch.name}.log")}
    return {"state": "stopped", "pid": None}


def _uses_scratch(process: psutil.Process, scratch: Path) -> bool:
    # The JVM has the same environment, but it is a child of the runner and not of the worker.
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get("SAGA_SPARK_SCRATCH") == str(scratch)
    return False


_ALL = f"the services are {', '.join(SERVICE_NAMES)}"


def service_names(words: Sequence[str] | None) -> list[str] | None:
    """The service names in the values of `--only`, separated by commas or spaces; None means all services.

    Raises:
        UsageError: a value is empty or names an unknown service.
    """
    if words is None:
        return None
    names = [name for word in words for name in re.split(r"[,\s]+", word) if name]
    if not names:
        raise UsageError("--only names no service", help=_ALL)
    refuse_unknown(names)
    return names


def refuse_unknown(names: Collection[str]) -> None:
    """Raise UsageError if a name is not that of a service."""
    for name in names:
        if name == "spark":
            raise UsageError(
                "spark is not a separate service; the worker starts it with the first Spark step, so use worker",
                help=f"{_ALL}; Spark needs Java 17 and, under [spark] in saga.toml, ledger = a SQL connection",
            )
        if name not in SERVICE_NAMES:
            raise UsageError(f"there is no service {name}{did_you_mean(name, SERVICE_NAMES)}", help=_ALL)


def refuse_incomplete(settings: Settings, chosen: Collection[str], running: Collection[str]) -> None:
    """Raise UsageError if a process of the project would start without a server that only this stack provides."""
    from saga_workers.temporal.temporal_client import names_server

    own = [name for name in PROJECT_PROCESSES if name in chosen]
    own_without_temporal = {"trigger"} if settings.relay_delivers else {"trigger", "relay"}
    own_without_kafka = {"worker", "relay"} if settings.relay_delivers else {"worker"}
    needed = {
        "temporal": not own_without_temporal.issuperset(own) and not names_server(settings),
        "postgres": bool(own)
        and any(sql_connection.url_setting is None for sql_connection in settings.sql_connections()),
        "kafka": not own_without_kafka.issuperset(own) and settings.kafka.bootstrap_servers is None,
    }
    missing = [name for name, is_needed in needed.items() if is_needed and name not in {*chosen, *running}]
    if missing:
        every = [name for name in SERVICE_NAMES if name in {*missing, *chosen}]
        raise UsageError(
            f"the {' and the '.join(own)} cannot start without {' and '.join(missing)}; run "
            + saga_command("dev", "up", only=",".join(every))
        )
