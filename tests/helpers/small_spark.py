"""One small Spark session for the tests of a process that need one, and tasks of the runner in it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from saga_spark.runner.java import class_archive_options
from saga_spark.runner.task_context import TaskContext
from saga_spark.settings import SparkSettings
from sagas.builtins.spark import STAGING_SQL_CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """For tiny tables: what would make large queries fast takes longer here than it saves."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {class_archive_options()}")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")  # it looks up the caller of each function
        .getOrCreate()
    )
    yield session
    session.stop()


def task_context(spark: SparkSession, settings: SparkSettings) -> TaskContext:
    """A run of the runner in this process, in a new session as the runner would open it."""
    session = spark.newSession()
    for name, value in STAGING_SQL_CONF.items():
        session.conf.set(name, value)
    sessions = SimpleNamespace(open=lambda tag: session, spark_ui=None)
    return TaskContext(1, "test", settings, cast(Any, sessions), lambda _: None)
