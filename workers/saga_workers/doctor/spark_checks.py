"""The checks of `saga doctor` for a project with Spark steps: what the first job needs. Spark is not started."""

from __future__ import annotations

import os
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version

from saga_spark.job_errors import first_line
from saga_spark.runner.cluster_watch import ConnectServer, master_addresses, require_master
from saga_spark.settings import SparkSettings, spark_settings
from saga_workers.doctor.doctor_result import CHECK_TIMEOUT, DoctorResult, timed_check
from sagas.errors import SagaError, UsageError
from sagas.settings import Settings

MIN_JAVA_VERSION = 17
"""The oldest Java version that Spark supports."""

_INSTALL_HELP = "pip install 'saga-orchestrator[spark]'"


async def check_spark(settings: Settings) -> list[DoctorResult]:
    """Settings, packages, Java, the output records, the cluster, the stage area, and each catalog."""
    packages = _check_packages()
    try:
        spark = spark_settings(settings)
    except SagaError as error:
        return [DoctorResult("spark", False, error.message, error.help), packages]
    findings = [packages, await timed_check("java", lambda: _check_java(spark)), _check_output_records(settings)]
    if packages.ok and (spark.remote or master_addresses(spark.master)):
        findings.append(await timed_check("spark cluster", lambda: _check_cluster(spark)))
    if packages.ok:
        findings.append(await timed_check("spark stage", lambda: _check_stage(spark)))
        findings += [
            await timed_check(f"catalog {name}", lambda name=name: _check_catalog(spark, name))
            for name in spark.catalogs
        ]
    return findings


def has_packages() -> bool:
    """Return whether the packages of Spark steps are installed."""
    return _check_packages().ok is True


def _check_packages() -> DoctorResult:
    present, absent = [], []
    for name in ("pyspark", "pyiceberg", "pyarrow"):
        try:
            present.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            absent.append(name)
    if absent:
        return DoctorResult("spark packages", False, f"not installed: {', '.join(absent)}", _INSTALL_HELP)
    return DoctorResult("spark packages", True, ", ".join(present))


def _check_java(spark: SparkSettings) -> str:
    from saga_spark.runner.java import require_java

    if spark.remote:
        return f"not needed here: Spark runs at {spark.remote}"
    program = require_java()
    output = subprocess.run(
        [program, "-version"], capture_output=True, text=True, timeout=CHECK_TIMEOUT, check=False
    ).stderr
    number = re.search(r'version "(?:1\.)?(\d+)', output)
    if number is None:
        raise UsageError(
            f"{program} does not report its version: {output.strip().partition(chr(10))[0] or 'it printed nothing'}"
        )
    if int(number[1]) < MIN_JAVA_VERSION:
        raise UsageError(
            f"{program} is Java {number[1]}, but Spark needs {MIN_JAVA_VERSION} or newer",
            help="set JAVA_HOME to a newer Java",
        )
    return f"{program}, Java {number[1]}"


def _check_cluster(spark: SparkSettings) -> str:
    """Return whether the Connect server, or a master of the standalone cluster, answers. Other clusters are
    not asked.
    """
    if not spark.remote:
        require_master(spark.master)
        return f"{spark.master} accepts connections"
    from pyspark.errors import PySparkException

    server = ConnectServer(spark.remote)
    try:
        server.require()
    except ImportError as error:
        raise UsageError(
            f"Spark Connect needs packages that are not installed: {first_line(error)}",
            help="pip install 'saga-orchestrator[spark-connect]'",
        ) from None
    except PySparkException as error:
        raise UsageError(f"`remote` under [spark] is not an address: {first_line(error)}") from None
    return f"{server.address} answers"


def _check_output_records(settings: Settings) -> DoctorResult:
    name = settings.spark_ledger
    help = 'ledger = "NAME" under [spark] in saga.toml'
    if name is None:
        return DoctorResult("spark ledger", False, "no connection is configured for the rows of Spark steps", help)
    connection = settings.connections.get(name)
    if connection is None or connection.kind != "sql":
        return DoctorResult("spark ledger", False, f"there is no SQL connection {name}", help)
    return DoctorResult("spark ledger", True, f"connection {name}")


def _check_stage(spark: SparkSettings) -> str:
    from saga_spark.storage import probe_folder

    try:
        probe_folder(spark.stage)
    except (OSError, ValueError) as error:
        # Arrow's own message repeats the path twice.
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else first_line(error)
        raise UsageError(
            f"{spark.stage} cannot be written: {reason}",
            help="set `stage` under [spark] in saga.toml to a folder to which this user can write",
        ) from None
    return f"{spark.stage} is writable from here"


def _check_catalog(spark: SparkSettings, name: str) -> str:
    from saga_spark.sinks.iceberg.catalog import describe_catalog

    return describe_catalog(spark, name)
