"""The jars of the embedded Kafka: downloaded once per user, and verified by checksum at each use.

Ivy, which is part of PySpark, downloads exactly the jars in ``kafka.lock``, without their dependencies.
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

_LOCK_FILE = Path(__file__).with_name("kafka.lock")
_FETCH_TIMEOUT = 600.0


class KafkaUnavailableError(SagaError):
    """The embedded Kafka is not available on this machine."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the lock file."""

    organisation: str
    module: str
    revision: str
    sha256: str

    @property
    def file(self) -> str:
        return f"{self.module}-{self.revision}.jar"


def locked_jars() -> list[Jar]:
    lines = _LOCK_FILE.read_text(encoding="ascii").splitlines()
    return [Jar(*line.split()) for line in lines if line and not line.startswith("#")]


def cache_folder() -> Path:
    """The folder of this user's jars; a changed lock file means another folder."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "saga" / f"kafka-{hashlib.sha256(_LOCK_FILE.read_bytes()).hexdigest()[:12]}"


def find_java() -> str:
    """The Java that runs Kafka. Raises KafkaUnavailableError if there is none."""
    try:
        return require_java("the embedded Kafka")
    except SagaError as error:
        raise KafkaUnavailableError(error.message, help=error.help) from None


def fetch_jars(report: Callable[[str], Any]) -> list[Path]:
    """The jars in class path order. ``report`` is called if they have to be downloaded first.

    Raises:
        KafkaUnavailableError: Java or PySpark is missing, the download fails, or a checksum differs.
    """
    program, wanted, folder = find_java(), locked_jars(), cache_folder() / "jars"
    if not folder.is_dir():
        with _exclusive(folder.parent):
            if not folder.is_dir():
                report("downloading the embedded Kafka, once for this user (44 MB)")
                _fetch(program, wanted, folder)
    if wrong := _mismatched_files(wanted, folder):
        raise KafkaUnavailableError(
            f"the embedded Kafka is damaged: the checksum of {wrong[0]} differs from kafka.lock",
            help=f"delete {folder.parent}; it is downloaded again",
        )
    return [folder / jar.file for jar in wanted]


def _mismatched_files(wanted: list[Jar], folder: Path) -> list[str]:
    return [jar.file for jar in wanted if _sha256(folder / jar.file) != jar.sha256]


def _sha256(file: Path) -> str | None:
    try:
        with file.open("rb") as jar:
            return hashlib.file_digest(jar, "sha256").hexdigest()
    except OSError:
        return None


def _fetch(program: str, wanted: list[Jar], folder: Path) -> None:
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
            '<ivy-module version="2.0"><info organisation="saga" module="kafka"/>'
            f"<dependencies>{dependencies}</dependencies></ivy-module>",
            encoding="ascii",
        )
        pattern = str(draft / "jars" / "[artifact]-[revision].[ext]")
        argv = [program, "-jar", str(_ivy_jar()), "-cache", str(draft / "cache"), "-ivy", str(request)]
        try:
            done = subprocess.run(
                [*argv, "-retrieve", pattern], capture_output=True, text=True, timeout=_FETCH_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            raise KafkaUnavailableError(
                f"the embedded Kafka was not downloaded within {_FETCH_TIMEOUT:.0f} s"
            ) from None
        if wrong := _mismatched_files(wanted, draft / "jars"):
            there = (draft / "jars" / wrong[0]).exists()
            why = "its checksum differs from kafka.lock" if there else _reason(done.stdout)
            raise KafkaUnavailableError(f"the embedded Kafka could not be downloaded: {wrong[0]}: {why}")
        shutil.move(draft / "jars", folder)


def _reason(output: str) -> str:
    """The most informative line of Ivy's output."""
    lines = [line.strip(" \t:") for line in output.splitlines()]
    telling = [line for line in lines if "exception" in line.lower() or "refused" in line.lower()]
    return (telling or ["it was not found; check the network"])[0].rstrip(".")


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not found:
        raise KafkaUnavailableError(
            "downloading the embedded Kafka needs PySpark, which is not installed",
            help="pip install 'saga-orchestrator[spark]'",
        )
    return found[-1]


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """One process of this user at a time, because several would download the same files."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


__all__ = ["Jar", "KafkaUnavailableError", "cache_folder", "fetch_jars", "find_java", "locked_jars"]
