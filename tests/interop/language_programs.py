"""The programs of docs/how-to/other-languages: they are built in a temporary folder with the registries' SDKs."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sagas.text.exact_json import decode_json

SOURCES = Path(__file__).parents[2] / "docs/how-to/other-languages"
DEFINITION = (SOURCES / "booking.saga.yaml").read_text("utf-8")
BUILD_TIMEOUT = 900
CLIENT_TIMEOUT = 240
_JAVA = ("java", "-Xmx192m", "-XX:TieredStopAtLevel=1", "-cp", f"target/classes{os.pathsep}target/lib/*")


@dataclass(frozen=True, slots=True)
class Language:
    """How the programs of one language are built and run, in a folder with their sources."""

    name: str
    tools: tuple[str, ...]
    build: tuple[tuple[str, ...], ...]
    worker: tuple[str, ...]
    client: tuple[str, ...]


LANGUAGES = (
    Language("go", ("go",), (("go", "build", "-o", "booking", "."),), ("./booking", "worker"), ("./booking",)),
    Language(
        "typescript",
        ("node", "npm"),
        (("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"), ("npm", "run", "build")),
        ("node", "build/worker.js"),
        ("node", "build/client.js"),
    ),
    Language(
        "java",
        ("java", "javac", "mvn"),
        (("mvn", "-q", "-B", "compile", "dependency:copy-dependencies"),),
        (*_JAVA, "SeatsWorker"),
        (*_JAVA, "BookingClient"),
    ),
)


class Programs:
    """The built worker and client of one language. The worker serves ``queue`` and notes each request."""

    def __init__(self, language: Language, folder: Path, address: str, queue: str) -> None:
        self.queue, self.language = queue, language.name
        self._language, self._folder, self._log = language, folder, folder / "worker.out"
        self._environment = {**os.environ, "TEMPORAL_ADDRESS": address}
        self._worker: subprocess.Popen[bytes] | None = None

    def build(self) -> None:
        """Copy the sources and build them; skips the test if a tool is missing."""
        missing = [tool for tool in self._language.tools if shutil.which(tool) is None]
        if missing:
            pytest.skip(f"{' and '.join(missing)} not installed: the {self._language.name} programs cannot be built")
        shutil.copytree(SOURCES / self._language.name, self._folder, dirs_exist_ok=True)
        for command in self._language.build:
            built = subprocess.run(
                command, cwd=self._folder, capture_output=True, text=True, timeout=BUILD_TIMEOUT, check=False
            )
            assert built.returncode == 0, f"{' '.join(command)}:\n{built.stdout[-4000:]}{built.stderr[-4000:]}"

    def start_worker(self) -> None:
        with self._log.open("wb") as log, (self._folder / "worker.err").open("wb") as errors:
            command = [*self._language.worker, self.queue]
            self._worker = subprocess.Popen(
                command, cwd=self._folder, env=self._environment, stdout=log, stderr=errors, stdin=subprocess.DEVNULL
            )

    def stop_worker(self) -> int:
        """Ask the worker to end, as an operator does; its exit code."""
        assert self._worker is not None
        self._worker.terminate()
        return self._worker.wait(30)

    def requests(self, saga_id: str) -> list[dict[str, Any]]:
        """Requests of this saga to the worker, and its answers, with exact numbers."""
        entries = [decode_json(line) for line in self._log.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n"]
        return [entry for entry in entries if str(entry["request"]["_saga"]["key"]).startswith(f"{saga_id}/")]

    async def client(self, *words: str, task_queue: str = "") -> Any:
        """Run the client; the JSON that it prints, with exact numbers."""
        process = await asyncio.create_subprocess_exec(
            *self._language.client,
            *words,
            cwd=self._folder,
            env={**self._environment, "SAGA_TASK_QUEUE": task_queue},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(CLIENT_TIMEOUT):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, errors.decode()[-4000:]
        return decode_json(output) if output.strip() else None
