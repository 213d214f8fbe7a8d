"""The project's own processes as services: `saga worker`, `saga relay` and `saga trigger`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from saga_workers.devstack.os_process import Launch
from saga_workers.devstack.ports import HOST
from saga_workers.devstack.service import Service, http_get
from sagas.settings.python_processes import python_command
from sagas.text.printable import printable_line
from sagas.text.shell import saga_command
from sagas.text.shortening import shorten

_IGNORED_FOLDERS = {"node_modules", "__pycache__", "venv", "env", "build", "dist", "site-packages"}
_MAX_FILES = 5_000
_MAX_REASON = 2_000


class ProjectProcess(Service):
    """A `saga` command that serves ``--health`` and reads the project's files once; ``name`` is the command.

    ``reads``: the endings of the files that it reads.
    """

    reads: ClassVar[tuple[str, ...]] = (".py", ".yaml", ".yml", ".toml")
    start_attempts: ClassVar[int] = 1  # a failure is caused by the project's files, so a retry would not help
    grace: ClassVar[float] = 35.0  # seconds; a little more than the command's own grace period

    @property
    def endings(self) -> tuple[str, ...]:
        """The endings of the files that this project has it read."""
        return self.reads

    def ports(self) -> Mapping[str, int | None]:
        return {"health_port": None}

    def prepare(self, data: Mapping[str, str]) -> Mapping[str, str]:
        return {**data, "fingerprint": self.fingerprint()}

    def is_outdated(self, data: Mapping[str, str]) -> bool:
        """Return whether the project has changed since the process read it: Python modules are loaded only once."""
        return data.get("fingerprint") != self.fingerprint()

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for file in _project_files(self.settings.root, self.endings):
            stat = file.stat()
            digest.update(f"{file}\0{stat.st_mtime_ns}\0{stat.st_size}\n".encode())
        digest.update(self.folder.toml.read_bytes() if self.folder.toml.exists() else b"")
        return digest.hexdigest()

    def launch(self, ports: Mapping[str, int], data: Mapping[str, str]) -> Launch:
        argv = python_command("saga_cli.main", self.name, "--health", f"{HOST}:{ports['health_port']}")
        if self.settings.config_file:
            argv += ["--config", str(self.settings.config_file)]
        return Launch(argv, self.settings.root, {**os.environ, "PYTHONUNBUFFERED": "1"})

    def not_ready(self, ports: Mapping[str, int]) -> str | None:
        return None if http_get(ports["health_port"], "/readyz")[0] == 200 else f"the {self.name}"

    def reason(self, ports: Mapping[str, int]) -> str | None:
        """The text of /readyz."""
        status, body = http_get(ports["health_port"], "/readyz")
        return printable_line(shorten(body.decode(errors="replace").strip(), _MAX_REASON)) if status == 503 else None

    def addresses(self, ports: Mapping[str, int], data: Mapping[str, str]) -> dict[str, str]:
        return {"health": f"http://{HOST}:{ports['health_port']}"}


class WorkerService(ProjectProcess):
    name: ClassVar[str] = "worker"
    after: ClassVar[tuple[str, ...]] = ("temporal", "postgres", "kafka")


class RelayService(ProjectProcess):
    name: ClassVar[str] = "relay"
    reads: ClassVar[tuple[str, ...]] = (".toml",)  # the settings: no definition, no code of the project
    after: ClassVar[tuple[str, ...]] = ("temporal", "postgres", "kafka")

    @property
    def endings(self) -> tuple[str, ...]:
        """With enqueued rows also those of definitions."""
        return (*self.reads, ".yaml", ".yml") if self.settings.relay_delivers else self.reads


class TriggerService(ProjectProcess):
    name: ClassVar[str] = "trigger"
    after: ClassVar[tuple[str, ...]] = ("temporal", "postgres", "kafka")

    def start_help(self) -> str:
        """Nobody starts the process again here: a record that ends it is given up after some attempts."""
        again = f"{saga_command('dev', 'up')}    again: a record that ends the process 5 times becomes a dead letter"
        return f"{again}\n{ProjectProcess.start_help(self)}"


def _project_files(root: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """The files a process may have read, in a stable order, without hidden and generated folders."""
    count = 0
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in _IGNORED_FOLDERS and not name.startswith("."))
        for name in sorted(files):
            if name.endswith(suffixes):
                count += 1
                if count > _MAX_FILES:
                    return
                yield Path(folder, name)
