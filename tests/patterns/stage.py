"""One pattern on shared servers: a copy of its folder, databases of its own, and its processes.

The settings of the folder are used unchanged; the addresses come from the environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import psycopg
from temporalio.client import Client as Temporal

from saga_workers.devstack.ports import HOST
from saga_workers.temporal.temporal_runs import describe_run
from sagas.definition.model import Definition
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.forked_commands import run_command
from tests.helpers.free_ports import free_port
from tests.helpers.kafka_broker import Broker
from tests.helpers.processes import CommandProcess, Process, TemporalServer
from tests.patterns.pattern import Pattern

TIMEOUT = 300.0
"""Seconds that anything may take: all patterns run side by side."""


@dataclass(frozen=True, slots=True)
class Servers:
    """``broker`` is None when no pattern of the run uses Kafka."""

    temporal: TemporalServer
    database: DatabaseServer
    broker: Broker | None


class Stage:
    """A context manager: leaving it ends all processes."""

    def __init__(self, pattern: Pattern, servers: Servers, folder: Path) -> None:
        self.pattern, self.servers, self.folder = pattern, servers, folder
        shutil.copytree(pattern.folder, folder, ignore=shutil.ignore_patterns(".saga", "__pycache__"))
        self.processes: dict[str, Process] = {}
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("SAGA_", "TEMPORAL_"))}
        self._ports: dict[str, int] = {}

    def __enter__(self) -> Stage:
        self.env |= {
            "SAGA_TEMPORAL__ADDRESS": self.servers.temporal.address,
            "SAGA_TEMPORAL__TASK_QUEUE": f"pattern-{self.pattern.name}",
        }
        for name, connection in self.pattern.settings["connections"].items():
            self.env[f"SAGA_CONNECTIONS__{name.upper()}__URL"] = self._address(name, connection)
        if self.pattern.uses_kafka:
            self.env |= {
                "SAGA_KAFKA__BOOTSTRAP_SERVERS": self.broker.address,
                "SAGA_KAFKA__PREFIX": f"pattern-{self.pattern.name}",
                # The shortest that the broker allows: a process that was killed is missed sooner.
                "SAGA_KAFKA__CLIENT__SESSION_TIMEOUT_MS": "6000",
                "SAGA_KAFKA__CLIENT__HEARTBEAT_INTERVAL_MS": "1000",
            }
        try:
            self.saga("setup")
            for name in self._needed_processes():
                self.start(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()

    def _needed_processes(self) -> list[str]:
        services = [path.name for path in self.folder.glob("receiver.py")]
        texts = [path.read_text("utf-8") for path in self.folder.iterdir() if path.suffix in (".py", ".yaml")]
        reads = any(word in text for text in texts for word in ("@consumer", "@bridge", "triggers:"))
        return [*services, "worker", *(["relay"] if self.pattern.uses_kafka else []), *(["trigger"] if reads else [])]

    def _address(self, name: str, connection: Mapping[str, Any]) -> str:
        if connection.get("kind") == "http":
            self._ports[name] = free_port()
            return f"http://{HOST}:{self._ports[name]}"
        with psycopg.connect(self.servers.database.url(), autocommit=True) as admin:
            admin.execute(cast("Any", f'create database "{self.database(name)}"'))
        return self.servers.database.url(self.database(name)).replace("postgresql:", "postgresql+psycopg:")

    def database(self, connection: str) -> str:
        return f"{self.pattern.name}-{connection}"

    def connect(self, connection: str) -> psycopg.Connection[Any]:
        """A connection to the database of a connection of the pattern."""
        return psycopg.connect(self.servers.database.url(self.database(connection)))

    @property
    def broker(self) -> Broker:
        assert self.servers.broker is not None
        return self.servers.broker

    @property
    def service_ports(self) -> Sequence[int]:
        return list(self._ports.values())

    def definition(self, saga: str) -> Definition:
        return Project(load_settings(config=self.folder / "saga.toml", env={})).definition(saga)

    def start(self, name: str) -> Process:
        """Start a process, or another one in its place."""
        if name.endswith(".py"):
            [port] = self._ports.values()
            argv = [sys.executable, name, str(port)]
            process = Process(name, argv, self.folder, lambda: _answers(f"http://{HOST}:{port}/"), self.env)
        else:
            process = CommandProcess(name, self.folder, name, "--grace", "5s", env=self.env)
        self.processes[name] = process.start()
        return process

    def saga(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run one command; returns what it prints."""
        done = run_command(words, self.folder, env=self.env, timeout=TIMEOUT)
        assert done.returncode in codes, f"saga {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def read(self, source: str, what: str) -> Any:
        """A value of the invariant: of a query, the values in a topic, the view of a saga, a service's JSON."""
        if source == "topic":
            return (
                [record.json() for record in self.broker.read_committed(what)] if what in self.broker.topics() else []
            )
        if source == "saga":
            return json.loads(self.saga("show", what, "-o", "json"))
        if source in self._ports:
            return httpx.get(f"http://{HOST}:{self._ports[source]}{what}").json()
        with self.connect(source) as connection:
            row = connection.execute(cast("Any", what)).fetchone()
            return row and row[0]

    def was_started(self, saga_id: str) -> bool:
        return asyncio.run(self._was_started(saga_id))

    async def _was_started(self, saga_id: str) -> bool:
        temporal = await Temporal.connect(self.servers.temporal.address)
        return await describe_run(temporal, saga_id) is not None


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False
