"""`up`, `status` and `down` over the services: start what is missing, wait until it is ready, write it down."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saga_spark.settings import WORK
from saga_workers.dev import ports as tcp
from saga_workers.dev.failure import cause, full_disk
from saga_workers.dev.folder import DevFolder, Record
from saga_workers.dev.kafka import why_no_broker
from saga_workers.dev.own import OwnProcess
from saga_workers.dev.process import find_marked, spawn, stop
from saga_workers.dev.selection import refuse_incomplete
from saga_workers.dev.service import Service
from saga_workers.dev.services import NAMES, SERVICES, WITH_KAFKA
from saga_workers.dev.spark import spark_runner
from saga_workers.dev.temporal import configured_port
from saga_workers.kafka_use import listens, uses_kafka
from saga_workers.spark import why_not_here
from sagas.errors import SagaError, UsageError
from sagas.project import Project
from sagas.settings import Settings, load_settings

Say = Callable[[str], Any]

# How long a process that already runs may take to answer before it counts as hung and is started anew.
_HUNG_AFTER = 5.0


@dataclass(frozen=True, slots=True)
class Running:
    """A service that was started (or found) and is to become ready. ``log_from``: where its new output begins."""

    service: Service
    record: Record
    log_from: int
    found: bool
    attempt: int = 1


class Stack:
    """The embedded stack of one project. ``say`` tells a person what goes on."""

    def __init__(self, settings: Settings, say: Say) -> None:
        self.folder = DevFolder(settings.root)
        self.say = say
        self.settings = settings
        self.services = {kind.name: kind(settings, self.folder) for kind in SERVICES}

    # ── up ──────────────────────────────────────────────────────────────────────────────────────────────

    def up(self, only: Collection[str] | None = None) -> None:
        """Start what is missing of ``only`` (default: everything) and wait until all of it is ready.

        Raises:
            SagaError: a service does not start; the others stay as they are.
        """
        self.folder.create()
        with self.folder.lock(lambda: self.say("another `saga dev` command is at work here; waiting for it")):
            self.folder.owner()
            if (only is None or "worker" in only) and (sentence := why_not_here(self.settings)):
                self.say(sentence)
            pending = [name for name in NAMES if name in (self._needed() if only is None else only)]
            if set(WITH_KAFKA) & set(pending):
                pending = self._with_kafka(pending)
            running = [name for name in NAMES if self.folder.read(name).is_alive()]
            refuse_incomplete(self.settings, pending, running)
            if "temporal" in pending and self._names_other_temporal():
                pending.remove("temporal")
                self.say(f"Temporal is {self.settings.temporal.address}, as the settings say; none is started here")
            while pending:
                wave = [name for name in pending if not set(self.services[name].after) & set(pending)]
                for running in [self._ensure_started(self.services[name]) for name in wave]:
                    self._await_ready(running)
                self._write_toml()
                if "postgres" in wave:
                    self._set_up_databases()
                if "kafka" in wave:
                    self._set_up_topics()
                pending = [name for name in pending if name not in wave]

    def _needed(self) -> list[str]:
        """Everything, except what is for Kafka in a project that has no use for it."""
        project = Project(self.settings)
        if not uses_kafka(project):
            return [name for name in NAMES if name not in WITH_KAFKA]
        idle = {"relay": not self.settings.sql_connections(), "trigger": not listens(project)}
        return [name for name in NAMES if not idle.get(name)]

    def _with_kafka(self, pending: list[str]) -> list[str]:
        """What can be started of ``pending``: without a broker neither it nor what needs one, and a person is told.

        Raises SagaError: it is somebody else's broker, and does not answer.
        """
        kafka = self.settings.kafka
        if kafka.bootstrap_servers is not None and not kafka.embedded:
            if "kafka" in pending:
                self.say(f"Kafka is {kafka.bootstrap_servers}, as the settings say; none is started here")
            left = [name for name in pending if name != "kafka"]
            if set(WITH_KAFKA) & set(left) and not self._other_kafka_answers():
                raise SagaError(
                    f"Kafka does not answer at {kafka.bootstrap_servers}, as the settings say: nothing was started.",
                    help="start it, or take `bootstrap_servers` out of [kafka]: then `saga dev up` starts one",
                )
            return left
        if self._record(self.services["kafka"]).is_alive() or (sentence := why_no_broker(self.say)) is None:
            return pending
        self.say(sentence)
        return [name for name in pending if name not in WITH_KAFKA]

    def _set_up_databases(self) -> None:
        """Create the tables in the databases of our own PostgreSQL; in others only `saga setup` does."""
        current = load_settings(self.settings.root, self.settings.config_file)
        own = [connection for connection in current.sql_connections() if connection.embedded]
        if own:
            import asyncio

            from saga_workers.databases import set_up

            for connection in own:
                asyncio.run(set_up(connection, current.kafka.shards))

    def _set_up_topics(self) -> None:
        """Create the topics that the definitions name in our own Kafka; in others only `saga setup` does."""
        from saga_workers.kafka_setup import make_topics

        current = load_settings(self.settings.root, self.settings.config_file)
        if current.kafka.embedded:
            try:
                make_topics(Project(current))
            except UsageError as error:
                self.say(f"no topics are made: {error.message}")

    def _other_kafka_answers(self) -> bool:
        servers = self.settings.kafka.bootstrap_servers or ""
        return any(_answers(address.strip()) for address in servers.split(","))

    def _names_other_temporal(self) -> bool:
        """True when the settings name a server that is not ours to start."""
        temporal = self.settings.temporal
        if temporal.address is None or temporal.embedded:
            return False
        port = configured_port(temporal.address)
        if port is None:
            return True
        record = self.folder.read("temporal")
        return not (record.is_alive() and record.ports.get("port") == port) and not tcp.is_free(port)

    def _ensure_started(self, service: Service) -> Running:
        record = self._record(service)
        if record.is_alive() and isinstance(service, OwnProcess) and service.is_outdated(record.data):
            self.say(f"the project has changed: the {service.name} starts anew")
            record = self._stop(service, record)
        if record.is_alive():
            return Running(service, record, 0, found=True)
        return self._start(service, record)

    def _record(self, service: Service) -> Record:
        """What is known of a service; its process is also found when its record was lost."""
        record = self.folder.read(service.name)
        if not record.is_alive() and (process := find_marked(self._mark(service))):
            record = dataclasses.replace(record, process=process)
            if not record.ports:
                # Where it listens is lost with the record, so it cannot be used any more.
                record = self._stop(service, record)
        return record

    def _mark(self, service: Service) -> str:
        return f"{self.folder.owner()}/{service.name}"

    def _start(self, service: Service, record: Record, after: Running | None = None) -> Running:
        """``after``: the attempt that this one repeats."""
        data = service.prepare(record.data)
        others = [port for name in NAMES if name != service.name for port in self.folder.read(name).ports.values()]
        previous = dict(record.ports)
        preferred = service.ports()
        if service.name == "temporal" and not self.settings.temporal.embedded and self.settings.temporal.address:
            previous.pop("port", None)  # the settings name the port; it does not matter what it was before
        ports = tcp.choose(preferred, previous, others)
        if after is None or after.found:
            log = self.folder.rotate_log(service.name)
            log_from = log.stat().st_size if log.exists() else 0
        else:
            log, log_from = self.folder.log_file(service.name), after.log_from
        process = spawn(service.launch(ports, data), log, self._mark(service))
        record = Record(True, process, ports, dict(data))
        self.folder.write(service.name, record)
        return Running(service, record, log_from, found=False, attempt=after.attempt + 1 if after else 1)

    def _await_ready(self, running: Running) -> None:
        service, record = running.service, running.record
        end = time.monotonic() + (_HUNG_AFTER if running.found else service.patience)
        while record.is_alive():
            missing = service.waits_for(record.ports)
            if missing is None:
                service.finish(record.ports, record.data)
                self.folder.write(service.name, dataclasses.replace(record, wanted=True))
                return
            if time.monotonic() > end:
                record = self._stop(service, record)
                if not running.found:
                    why = full_disk(self._home(service)) or f"{missing} did not answer"
                    raise SagaError(
                        f"{service.name} was not ready after {service.patience:.0f} s: {why}",
                        help=f"saga dev logs {service.name}",
                    )
                self.say(f"{service.name} did not answer and starts anew")
                break
            time.sleep(0.03)
        else:
            # It ended: the port was taken meanwhile, or an earlier process has not quite gone.
            if running.attempt >= service.attempts:
                raise SagaError(
                    f"{service.name} ended while it started: {self._cause(running)}",
                    help=f"saga dev logs {service.name}    ({self.folder.log_file(service.name)})",
                )
            time.sleep(0.3 * running.attempt)
        self._await_ready(self._start(service, dataclasses.replace(record, process=None), running))

    def _cause(self, running: Running) -> str:
        with self.folder.log_file(running.service.name).open("rb") as log:
            log.seek(running.log_from)
            return full_disk(self._home(running.service)) or cause(log.read().decode("utf-8", "replace"))

    def _home(self, service: Service) -> Path:
        """The folder of its data, if it has some."""
        data = self.folder.data(service.name)
        return data if data.is_dir() else self.folder.dev

    def _write_toml(self) -> None:
        tables: dict[str, dict[str, str]] = {}
        for name, service in self.services.items():
            record = self.folder.read(name)
            if record.is_alive():
                tables |= service.toml(record.ports, record.data)
        self.folder.write_toml(tables)

    # ── status ──────────────────────────────────────────────────────────────────────────────────────────

    def status(self) -> dict[str, Any]:
        """The document of `dev status -o json`."""
        if self.folder.dev.is_dir():
            self.folder.owner()  # the records in a copied project are those of the original
        document: dict[str, Any] = {}
        for name, service in self.services.items():
            record = self.folder.read(name)
            alive = record.is_alive()
            if alive and service.waits_for(record.ports) is None:
                state = "running"
            else:
                state = "failed" if record.wanted or alive else "stopped"
            where = service.addresses(record.ports, record.data) if record.ports and alive else {}
            document[name] = {"state": state, "pid": record.process.pid if alive and record.process else None, **where}
        temporal = self.settings.temporal
        if document["temporal"]["pid"] is None and temporal.address and not temporal.embedded:
            document["temporal"] = {
                "state": "running" if _answers(temporal.address) else "failed",
                "pid": None,
                "address": temporal.address,
                "web_ui": temporal.web_ui,
            }
        kafka = self.settings.kafka
        if document["kafka"]["pid"] is None and kafka.bootstrap_servers and not kafka.embedded:
            state = "running" if self._other_kafka_answers() else "failed"
            document["kafka"] = {"state": state, "pid": None, "address": kafka.bootstrap_servers}
        current = load_settings(self.settings.root, self.settings.config_file)
        document["spark"] = spark_runner(current.root / str(current.spark.get("work", WORK)))
        document["connections"] = {
            connection.name: connection.url
            for connection in current.sql_connections()
            if isinstance(connection.written_url, str)
        }
        document["catalogs"] = {name: dict(properties) for name, properties in current.catalogs.items()}
        return document

    # ── down ────────────────────────────────────────────────────────────────────────────────────────────

    def down(self, *, wipe: bool = False) -> list[str]:
        """Stop what `up` started, in the opposite order; returns what was stopped. ``wipe``: the data too."""
        if not self.folder.dev.is_dir():
            return []
        stopped = []
        with self.folder.lock(lambda: self.say("another `saga dev` command is at work here; waiting for it")):
            self.folder.owner()
            for name in reversed(NAMES):
                service = self.services[name]
                record = self._record(service)
                if record.is_alive():
                    stopped.append(name)
                self._stop(service, record)
            self.folder.toml.unlink(missing_ok=True)
            if wipe:
                self.folder.wipe()
        return stopped

    def _stop(self, service: Service, record: Record) -> Record:
        if record.process is not None:
            stop(record.process, number=service.stop_signal, grace=service.grace)
        record = dataclasses.replace(record, wanted=False, process=None)
        self.folder.write(service.name, record)
        return record


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return port.isdigit() and tcp.is_open(host.strip("[]"), int(port))
