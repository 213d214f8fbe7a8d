"""Jars that a lock file names: downloaded once per user, and verified by checksum at each use.

Ivy, which is part of PySpark, downloads exactly the jars of the file, without their dependencies.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saga_spark.runner.java import require_java
from sagas.errors import SagaError

_FETCH_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of a lock file."""

    organisation: str
    module: str
    revision: str
    sha256: str

    @property
    def file(self) -> str:
        return f"{self.module}-{self.revision}.jar"


@dataclass(frozen=True, slots=True)
class LockedJars:
    """The jars of ``lock_file``. ``name`` begins the name of their folder; ``what`` they are (``the embedded Kafka``),
    and their ``size`` are for messages. ``error`` is what is raised when they are not available."""

    lock_file: Path
    name: str
    what: str
    size: str
    error: type[SagaError]

    def jars(self) -> list[Jar]:
        lines = self.lock_file.read_text(encoding="ascii").splitlines()
        return [Jar(*line.split()) for line in lines if line and not line.startswith("#")]

    def folder(self) -> Path:
        """The folder of this user's jars; a changed lock file means another folder."""
        # A collision is harmless: each jar in the folder is verified by its own checksum.
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return base / "saga" / f"{self.name}-{hashlib.sha256(self.lock_file.read_bytes()).hexdigest()[:12]}"

    def find_java(self) -> str:
        """The Java that uses them. Raises ``error`` if there is none."""
        try:
            return require_java(self.what)
        except SagaError as error:
            raise self.error(error.message, help=error.help) from None

    def fetch(self, report: Callable[[str], Any]) -> list[Path]:
        """The jars in class path order. ``report`` is called if they have to be downloaded first.

        Raises ``error``: Java or PySpark is missing, the download fails, or a checksum differs.
        """
        program, wanted, folder = self.find_java(), self.jars(), self.folder() / "jars"
        if not folder.is_dir():
            with _exclusive(folder.parent):
                if not folder.is_dir():
                    report(f"downloading {self.what}, once for this user ({self.size})")
                    self._fetch(program, wanted, folder)
        if wrong := _mismatched_files(wanted, folder):
            raise self.error(
                f"{self.what} is damaged: the checksum of {wrong[0]} differs from {self.lock_file.name}",
                help=f"delete {folder.parent}; it is downloaded again",
            )
        return [folder / jar.file for jar in wanted]

    def _fetch(self, program: str, wanted: list[Jar], folder: Path) -> None:
        """Download into a draft folder and rename it: a folder with the final name is complete and verified."""
        with tempfile.TemporaryDirectory(prefix="draft-", dir=folder.parent) as name:
            draft = Path(name)
            request = draft / "ivy.xml"
            dependencies = "".join(
                f'<dependency org="{jar.organisation}" name="{jar.module}" rev="{jar.revision}" '
                'conf="default->master" transitive="false"/>'
                for jar in wanted
            )
            request.write_text(
                f'<ivy-module version="2.0"><info organisation="saga" module="{self.name}"/>'
                f"<dependencies>{dependencies}</dependencies></ivy-module>",
                encoding="ascii",
            )
            pattern = str(draft / "jars" / "[artifact]-[revision].[ext]")
            argv = [program, "-jar", str(self._ivy_jar()), "-cache", str(draft / "cache"), "-ivy", str(request)]
            try:
                done = subprocess.run(
                    [*argv, "-retrieve", pattern], capture_output=True, text=True, timeout=_FETCH_TIMEOUT, check=False
                )
            except subprocess.TimeoutExpired:
                raise self.error(f"{self.what} was not downloaded within {_FETCH_TIMEOUT:.0f} s") from None
            if wrong := _mismatched_files(wanted, draft / "jars"):
                there = (draft / "jars" / wrong[0]).exists()
                why = f"its checksum differs from {self.lock_file.name}" if there else _reason(done.stdout)
                raise self.error(f"{self.what} could not be downloaded: {wrong[0]}: {why}")
            shutil.move(draft / "jars", folder)

    def _ivy_jar(self) -> Path:
        spec = importlib.util.find_spec("pyspark")
        jars = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
        if not jars:
            raise self.error(
                f"downloading {self.what} needs PySpark, which is not installed",
                help="pip install 'saga-orchestrator[spark]'",
            )
        return jars[-1]


def _mismatched_files(wanted: list[Jar], folder: Path) -> list[str]:
    return [jar.file for jar in wanted if _sha256(folder / jar.file) != jar.sha256]


def _sha256(file: Path) -> str | None:
    try:
        with file.open("rb") as jar:
            return hashlib.file_digest(jar, "sha256").hexdigest()
    except OSError:
        return None


def _reason(output: str) -> str:
    """The most informative line of Ivy's output."""
    lines = [line.strip(" \t:") for line in output.splitlines()]
    telling = [line for line in lines if "exception" in line.lower() or "refused" in line.lower()]
    return (telling or ["it was not found; check the network"])[0].rstrip(".")


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """One process of this user at a time, because several would download the same files."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
