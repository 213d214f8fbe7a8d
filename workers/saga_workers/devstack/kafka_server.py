"""Runs one Kafka broker that is its own controller: properties, Java, data folder, and the service.

It is small on purpose: one node, no replication, a heap of 512 MB, and a JIT tuned for a fast start.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from saga_activities.kafka.config import require_client
from saga_spark.runner.java import QUIET_OPTIONS, java_identity, write_class_archive
from saga_workers.devstack.locked_jars import LockedJars
from saga_workers.devstack.os_process import Launch
from saga_workers.devstack.ports import HOST, choose_ports, is_open
from saga_workers.devstack.service import Service
from saga_workers.devstack.start_failure import cause, full_disk
from sagas.errors import SagaError


class KafkaUnavailableError(SagaError):
    """The embedded Kafka is not available on this machine."""


KAFKA_JARS = LockedJars(
    Path(__file__).with_name("kafka.lock"), "kafka", "the embedded Kafka", "44 MB", KafkaUnavailableError
)

_JVM_OPTIONS = (
    "-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CICompilerCount=1",
    *QUIET_OPTIONS,
)  # fmt: skip
_START_TIMEOUT = 60.0
_LOG4J_PROPERTIES = """\
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %m (%c{1})%n
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
"""


@dataclass(frozen=True, slots=True)
class KafkaServer:
    """A broker in ``folder`` with ports for its clients and its controller; ``overrides`` win over other properties.

    It runs in its folder and names files relative to it, so that any folder name works.
    """

    folder: Path
    jars: Sequence[Path]
    port: int
    controller: int
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def properties(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{self.controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{self.controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": "data",
            "auto.create.topics.enable": "false",
            "num.partitions": "4",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            # After a kill the controller waits this long before it accepts the broker again; the default is 9 s.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": "8388608",
            **self.overrides,
        }

    def prepare(self) -> None:
        """Write the properties and, once, format the data folder.

        Raises:
            KafkaUnavailableError: the format fails.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lines = (f"{key}={value}\n" for key, value in self.properties().items())
        (self.folder / "server.properties").write_text("".join(lines), encoding="utf-8")
        (self.folder / "log4j2.properties").write_text(_LOG4J_PROPERTIES, encoding="ascii")
        shutil.rmtree(self._temporary, ignore_errors=True)  # what a killed broker has left there
        self._temporary.mkdir(mode=0o700)
        if (self.folder / "data" / "meta.properties").exists():
            return
        # An id that begins with `-` would be parsed as an option.
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=").replace("-", "_")
        words = ["format", "--cluster-id", cluster, "--config", "server.properties"]
        done = subprocess.run(
            self._argv("kafka.tools.StorageTool", *words), cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            why = full_disk(self.folder) or cause(done.stderr.strip() or done.stdout)
            raise KafkaUnavailableError(f"Kafka could not create its data folder: {why}")

    @property
    def _temporary(self) -> Path:
        """The folder in which compression codecs unpack the native libraries that they load; it is this user's own."""
        return (self.folder / "tmp").absolute()

    def argv(self) -> list[str]:
        """The command of the server, to be run in ``folder``."""
        return self._argv("kafka.Kafka", "server.properties")

    def _argv(self, program: str, *words: str, archive: str | None = None) -> list[str]:
        shared = _archive_file()
        option = archive or (f"-XX:SharedArchiveFile={shared}" if shared.exists() else "-Xshare:auto")
        logs = "-Dlog4j2.configurationFile=log4j2.properties"
        return [
            KAFKA_JARS.find_java(),
            *_JVM_OPTIONS,
            option,
            logs,
            f"-Djava.io.tmpdir={self._temporary}",
            "-cp",
            os.pathsep.join(map(str, self.jars)),
            program,
            *words,
        ]

    def is_ready(self) -> bool:
        """Return whether it serves clients. Its port opens a little earlier, so send an ApiVersions request."""
        return self._answers_api_versions() if is_open(HOST, self.port) else False

    def _answers_api_versions(self) -> bool:
        # ApiVersions (18), version 0, with a minimal client id.
        request = b"\x00\x12\x00\x00\x00\x00\x00\x01\x00\x04saga"
        try:
            with socket.create_connection((HOST, self.port), timeout=2.0) as connection:
                connection.sendall(len(request).to_bytes(4, "big") + request)
                return len(connection.recv(16)) > 8
        except OSError:
            return False


def create_class_archive(jars: Sequence[Path]) -> None:
    """Create the class data archive, which halves the time of each later start, unless it exists."""
    write_class_archive(_archive_file(), lambda draft: _start_once(jars, draft))


def _start_once(jars: Sequence[Path], draft: Path) -> None:
    """Start and stop a broker; its JVM writes ``draft`` on exit. One that is too slow for it is killed: no archive."""
    ports = choose_ports({"port": None, "controller": None}, {}, ())
    server = KafkaServer(draft.parent, jars, ports["port"], ports["controller"])
    server.prepare()
    argv = server._argv("kafka.Kafka", "server.properties", archive=f"-XX:ArchiveClassesAtExit={draft}")
    child = subprocess.Popen(argv, cwd=server.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + _START_TIMEOUT
        while not server.is_ready() and child.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        child.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_START_TIMEOUT)
    finally:
        child.kill()
        if child.wait() == -signal.SIGKILL:
            draft.unlink(missing_ok=True)  # half of an archive


def _archive_file() -> Path:
    """The archive of Kafka's classes for this Java and these jars; another Java would ignore it."""
    mark = hashlib.sha256(java_identity(KAFKA_JARS.find_java()).encode()).hexdigest()
    return KAFKA_JARS.folder() / f"java-{mark[:12]}.jsa"


class KafkaService(Service):
    name: ClassVar[str] = "kafka"
    grace: ClassVar[float] = 15.0

    def ports(self) -> Mapping[str, int | None]:
        return {"port": None, "controller_port": None}

    def launch(self, ports: Mapping[str, int], data: Mapping[str, str]) -> Launch:
        server = KafkaServer(
            self.folder.data_folder(self.name),
            KAFKA_JARS.fetch(lambda _: None),
            ports["port"],
            ports["controller_port"],
        )
        server.prepare()
        return Launch(server.argv(), server.folder, os.environ)

    def not_ready(self, ports: Mapping[str, int]) -> str | None:
        server = KafkaServer(self.folder.data_folder(self.name), (), ports["port"], ports["controller_port"])
        return None if server.is_ready() else "the broker"

    def addresses(self, ports: Mapping[str, int], data: Mapping[str, str]) -> dict[str, str]:
        return {"address": f"{HOST}:{ports['port']}"}

    def settings_tables(self, ports: Mapping[str, int], data: Mapping[str, str]) -> dict[str, dict[str, str]]:
        return {"kafka": {"bootstrap_servers": f"{HOST}:{ports['port']}"}}


def broker_unavailable_reason(report: Callable[[str], Any]) -> str | None:
    """Why Kafka cannot run on this machine, as a message; None if it can, after downloading the jars if necessary."""
    try:
        require_client()
        create_class_archive(KAFKA_JARS.fetch(report))
    except SagaError as error:
        return f"Kafka and the services that need it are not started: {error.message}"
    return None
