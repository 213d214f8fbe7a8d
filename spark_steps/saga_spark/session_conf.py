"""Properties of a Spark session: those of a step, and those that the engine changes for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from saga_spark.job_errors import to_job_error
from sagas.builtins.spark import SESSION_ZONE
from sagas.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def apply_conf(spark: SparkSession, conf: Mapping[str, Any]) -> None:
    """Set the `conf` of a step. Raises UsageError."""
    for name, value in conf.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        try:
            spark.conf.set(name, text)
        except Exception as error:
            if "CANNOT_MODIFY" in str(error):
                raise UsageError(
                    f"conf: {name} applies to the whole Spark session and cannot be set by a step",
                    help="put it under [spark.conf] in saga.toml",
                ) from None
            raise to_job_error(error, f"conf {name}") from error


@contextmanager
def changed_conf(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Frames created inside the block have this property of the session, whenever they run.

    Only for properties that a classic session fixes when a frame is created, as the time zone and ANSI mode; Spark
    Connect decides when the frame runs.
    """
    before = spark.conf.get(name)
    assert before is not None  # it has a default
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


@contextmanager
def in_utc(spark: SparkSession) -> Iterator[str]:
    """Return what the engine evaluates itself is in UTC, whatever zone the step has given its job. Yields that zone."""
    zone = spark.conf.get(SESSION_ZONE) or "UTC"
    with changed_conf(spark, SESSION_ZONE, "UTC"):
        yield zone
