"""What `saga doctor` looks at in a project with Spark steps: what the first job would miss. Spark is not started."""

from __future__ import annotations

import os
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version

from saga_spark.settings import SparkSettings, spark_settings
from saga_workers.asking import PATIENCE, asked
from saga_workers.finding import Finding
from sagas.errors import SagaError, UsageError
from sagas.settings import Settings

JAVA = 17
"""The oldest Java that Spark starts with."""

_INSTALL = "pip install 'saga-orchestrator[spark]'"


async def examine_spark(settings: Settings) -> list[Finding]:
    """Settings, packages, Java, the ledger, the stage area, each catalog."""
    packages = _packages()
    try:
        spark = spark_settings(settings)
    except SagaError as error:
        return [Finding("spark", False, error.message, error.help), packages]
    findings = [packages, await asked("java", lambda: _java(spark)), _ledger(settings)]
    if packages.ok:
        findings.append(await asked("spark stage", lambda: _stage(spark)))
        findings += [await asked(f"catalog {name}", lambda name=name: _catalog(spark, name)) for name in spark.catalogs]
    return findings


def _packages() -> Finding:
    found, absent = [], []
    for name in ("pyspark", "pyiceberg", "pyarrow"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            absent.append(name)
    if absent:
        return Finding("spark packages", False, f"not installed: {', '.join(absent)}", _INSTALL)
    return Finding("spark packages", True, ", ".join(found))


def _java(spark: SparkSettings) -> str:
    from saga_spark.runner.java import check_java

    if spark.remote:
        return f"none is needed here: Spark runs at {spark.remote}"
    program = check_java()
    told = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=PATIENCE, check=False).stderr
    number = re.search(r'version "(?:1\.)?(\d+)', told)
    if number is None:
        raise UsageError(
            f"{program} does not tell its version: {told.strip().partition(chr(10))[0] or 'it says nothing'}"
        )
    if int(number[1]) < JAVA:
        raise UsageError(
            f"{program} is Java {number[1]}, and Spark needs {JAVA} or newer", help="set JAVA_HOME to another one"
        )
    return f"{program}, Java {number[1]}"


def _ledger(settings: Settings) -> Finding:
    name = settings.spark_ledger
    help = 'ledger = "NAME" under [spark] in saga.toml'
    if name is None:
        return Finding("spark ledger", False, "no connection keeps the rows of Spark steps", help)
    connection = settings.connections.get(name)
    if connection is None or connection.kind != "sql":
        return Finding("spark ledger", False, f"there is no SQL connection {name}", help)
    return Finding("spark ledger", True, f"connection {name}")


def _stage(spark: SparkSettings) -> str:
    from saga_spark.sinks.files import probe_folder

    try:
        probe_folder(spark.stage)
    except (OSError, ValueError) as error:
        # Arrow's own sentence repeats the path, twice.
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else str(error).strip().partition("\n")[0]
        raise UsageError(
            f"{spark.stage} cannot be written: {reason}", help="stage under [spark] in saga.toml"
        ) from None
    return f"{spark.stage} is writable from here"


def _catalog(spark: SparkSettings, name: str) -> str:
    from saga_spark.sinks.iceberg_catalogs import ask

    return ask(spark, name)
