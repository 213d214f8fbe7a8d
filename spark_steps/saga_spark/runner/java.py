"""The Java of this machine, and archives of classes with which its programs start in half the time.

They are Java's own class data sharing (JEP 350): a JVM writes down at its end what it has loaded, and later ones map
the file into their memory. Java itself passes over a file that does not fit, and without one all works as well.
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

from saga_spark.job_errors import Unequipped

QUIET_OPTIONS = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Java warns of each class that it cannot share, and of a file that does not fit."""


def require_java(what: str = "Spark") -> str:
    """The program that Spark starts, or whatever else needs it. Raises Unequipped: there is no Java, so no ``what``."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    found = shutil.which(program)
    if found is None:
        where = f"JAVA_HOME is {home}, and there is no bin/java in it" if home else "there is none on the PATH"
        raise Unequipped(
            f"{what} needs Java 17 or newer: {where}", help="install a JDK (Debian: openjdk-17-jre-headless)"
        )
    return found


def java_identity(program: str) -> str:
    """The same as long as this Java is not replaced by another one."""
    found = Path(program).resolve()
    stat = found.stat()
    return f"{found} {stat.st_size} {stat.st_mtime_ns}"


def write_class_archive(file: Path, run: Callable[[Path], None]) -> None:
    """Make an archive, unless it is there: ``run`` lets a JVM write it where it is told, by -XX:ArchiveClassesAtExit.

    One maker at a time. Others in the folder go: they are of a Java, or of jars, that have been replaced.
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
            with suppress(FileNotFoundError):  # an archive that could not be made is no error
                draft.rename(file)


# The archive of Spark's classes: of one Java and one PySpark. It lies in the Python environment, goes with it, and is
# made by :mod:`saga_spark.runner.class_data_sharing`.


def class_archive_options() -> str:
    """Options for the JVM of a driver; none where there is no file. Raises Unequipped: there is no Java."""
    file = spark_class_archive()
    return f'"-XX:SharedArchiveFile={file}" {" ".join(QUIET_OPTIONS)}' if file.exists() else ""


def spark_class_archive() -> Path:
    """Where the file of this Java and this PySpark is, or would be. Raises Unequipped: there is no Java."""
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise Unequipped("there is no PySpark here", help="pip install 'saga-orchestrator[spark]'")
    jars = sorted(Path(spark.origin).parent.glob("jars/*.jar"))
    found = [(str(jar), stat.st_size, stat.st_mtime_ns) for jar in jars for stat in [jar.stat()]]
    fingerprint = f"{java_identity(require_java())} {found}"  # Java itself compares the same
    name = f"spark-{hashlib.sha256(fingerprint.encode()).hexdigest()[:12]}.jsa"
    return Path(sys.prefix, "share", "saga-orchestrator", name)
