"""The Java of this machine, and class archives that halve the startup time of its programs.

The archives are class data sharing (JEP 350): a JVM dumps its loaded classes at exit, and later JVMs map the file into
memory. Java ignores a file that does not match, and everything works without one.

Spark's archive belongs to one Java and one PySpark. It lies in the Python environment, is deleted with it, and is
created by :mod:`saga_spark.runner.class_data_sharing`.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sagas.errors import Unequipped

QUIET_OPTIONS = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Suppresses Java's warnings about classes that it cannot share, and about a file that does not match."""


def require_java(what: str = "Spark") -> str:
    """The ``java`` executable that Spark starts. Raises Unequipped, naming ``what`` needs it, if there is none."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    executable = shutil.which(program)
    if executable is None:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "no java is on the PATH"
        raise Unequipped(
            f"{what} needs Java 17 or newer: {where}", help="install a JDK (Debian: openjdk-17-jre-headless)"
        )
    return executable


def java_identity(program: str) -> str:
    """A string that changes when this Java is replaced by another one."""
    executable = Path(program).resolve()
    stat = executable.stat()
    return f"{executable} {stat.st_size} {stat.st_mtime_ns}"


def write_class_archive(file: Path, run: Callable[[Path], None]) -> None:
    """Create an archive unless it exists; ``run`` starts a JVM that writes it with -XX:ArchiveClassesAtExit.

    One process at a time. Other archives in the folder are deleted: they belong to a replaced Java or to replaced jars.
    """
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with (file.parent / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if file.exists():
            return
        for old in file.parent.glob("*.jsa"):
            old.unlink()
        with tempfile.TemporaryDirectory(prefix="draft-", dir=file.parent) as name:
            draft = Path(name, file.name)
            run(draft)
            with suppress(FileNotFoundError):  # an archive that could not be created is not an error
                draft.rename(file)


def class_archive_options() -> str:
    """JVM options for a driver; empty if there is no archive. Raises Unequipped if there is no Java."""
    file = spark_class_archive()
    return f'"-XX:SharedArchiveFile={file}" {" ".join(QUIET_OPTIONS)}' if file.exists() else ""


def spark_class_archive() -> Path:
    """The location of the archive for this Java and PySpark, existing or not. Raises Unequipped if there is no Java."""
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise Unequipped("PySpark is not installed", help="pip install 'saga-orchestrator[spark]'")
    jars = sorted(Path(spark.origin).parent.glob("jars/*.jar"))
    jar_identities = [(str(jar), stat.st_size, stat.st_mtime_ns) for jar in jars for stat in [jar.stat()]]
    fingerprint = f"{java_identity(require_java())} {jar_identities}"
    # A collision is harmless: the JVM compares the jars with those of the archive, and does without another's.
    name = f"spark-{hashlib.sha256(fingerprint.encode()).hexdigest()[:12]}.jsa"
    return Path(sys.prefix, "share", "saga-orchestrator", name)
