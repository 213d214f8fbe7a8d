"""Creates the :mod:`class archive of Spark <saga_spark.runner.java>`, once per environment:
`python -m saga_spark.runner.class_data_sharing`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saga_spark.row_fingerprint import fingerprint_aggregates, row_words
from saga_spark.runner.java import QUIET_OPTIONS, spark_class_archive, write_class_archive
from saga_spark.runner.spark_session import ClassicSessions
from saga_spark.settings import SparkSettings
from saga_spark.storage import spark_read_path
from sagas.errors import InfrastructureError, SagaError
from sagas.settings.python_processes import SAFE_PATH, python_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIMEOUT = 300.0
"""Timeout in seconds for the process that writes the archive; it usually takes 40."""

_OPTIONS = " ".join((*QUIET_OPTIONS, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"))


def make_archive(file: Path) -> None:
    """Let a JVM do what jobs and reconciliations do, and archive the classes that it has loaded.

    Raises InfrastructureError if that fails; OSError if the folder is not writable.
    """
    write_class_archive(file, _record_in_subprocess)


def _record_in_subprocess(draft: Path) -> None:
    argv = python_command("saga_spark.runner.class_data_sharing", str(draft))
    env = {**os.environ, **SAFE_PATH, "SAGA_SPARK_SCRATCH": str(draft.parent)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    if not draft.exists():
        output = (done.stderr or done.stdout).strip().splitlines()
        raise InfrastructureError(f"no archive of Spark's classes was written{': ' + output[-1] if output else ''}")


def _record_classes(draft: Path) -> None:
    """Runs in a separate process, because the JVM writes ``draft`` when it exits."""
    conf = {"spark.driver.extraJavaOptions": f'"-XX:ArchiveClassesAtExit={draft}" {_OPTIONS}'}
    sessions = ClassicSessions(SparkSettings(root=draft.parent, master="local[1]", conf=conf))
    _run_sample_workload(sessions.open("classes"), draft.parent)
    sessions.close(_TIMEOUT)


def _run_sample_workload(session: SparkSession, folder: Path) -> None:
    from pyspark.sql import functions as F

    rows: Any = session.range(1000).select(
        "id",
        (F.col("id") % 7).alias("key"),
        F.col("id").cast("decimal(12,2)").alias("amount"),
        F.concat(F.lit("n"), F.col("id")).alias("name"),
        F.to_date(F.lit("2026-01-01")).alias("day"),
    )
    path = str(folder / "rows")
    rows.write.mode("overwrite").parquet(path)
    read = session.read.parquet(spark_read_path(path))
    read.agg(*fingerprint_aggregates(row_words(read.schema))).collect()
    sums = read.groupBy("key").agg(F.sum("amount").alias("amount"), F.collect_set("name").alias("names")).persist()
    joined = read.drop("amount").join(F.broadcast(sums), "key", "left").unionByName(read, allowMissingColumns=True)
    sample = joined.where("key > 2").orderBy(F.desc("id")).limit(10)
    sample.select(F.to_json(F.struct("id", "names"))).collect()
    read.createOrReplaceTempView("rows")
    session.sql("select key, row_number() over (partition by key order by id) as n from rows").count()


def main() -> int:
    """Create the archive if it is missing; with a path as argument, record the classes there. Returns an exit code."""
    if len(sys.argv) > 1:
        _record_classes(Path(sys.argv[1]))
        return 0
    try:
        make_archive(spark_class_archive())
    except (SagaError, OSError, subprocess.TimeoutExpired) as error:
        print(f"the class archive of Spark was not created, so Spark starts more slowly: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
