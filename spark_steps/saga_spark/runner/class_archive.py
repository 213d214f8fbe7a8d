"""The archive of Spark's classes: of one Java and one PySpark. It lies in the Python environment, goes with it, and is
made by :mod:`saga_spark.runner.archiving`."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path

from saga_spark.errors import Unequipped
from saga_spark.runner.java import QUIET, check_java, identity


def options() -> str:
    """Options for the JVM of a driver; none where there is no file. Raises Unequipped: there is no Java."""
    file = archive()
    return f'"-XX:SharedArchiveFile={file}" {" ".join(QUIET)}' if file.exists() else ""


def archive() -> Path:
    """Where the file of this Java and this PySpark is, or would be. Raises Unequipped: there is no Java."""
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise Unequipped("there is no PySpark here", help="pip install 'saga-orchestrator[spark]'")
    jars = sorted(Path(spark.origin).parent.glob("jars/*.jar"))
    found = [(str(jar), stat.st_size, stat.st_mtime_ns) for jar in jars for stat in [jar.stat()]]
    mark = f"{identity(check_java())} {found}"  # Java itself compares the same
    name = f"spark-{hashlib.sha256(mark.encode()).hexdigest()[:12]}.jsa"
    return Path(sys.prefix, "share", "saga-orchestrator", name)
