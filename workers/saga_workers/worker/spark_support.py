"""Spark steps on a worker. Their large libraries are imported only for projects that have such steps."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from typing import Any

from saga_activities.attempt_context import ActionBody, AttemptContext
from saga_activities.bodies.python_action import ActionNotRegistered
from saga_activities.connections import DatabaseConnections
from saga_activities.dispatcher import PreparedAction
from sagas.builtins.registry import is_spark_job
from sagas.builtins.spark import DISCARD, PUBLISH, REVERT, SPARK
from sagas.errors import SagaError, UsageError
from sagas.project import Project
from sagas.protocol.payloads import Invocation
from sagas.settings import Settings

log = logging.getLogger("saga.worker")

SPARK_PACKAGES = ("pyspark", "pandas", "pyarrow", "pyiceberg")
"""The packages of the extra ``spark``."""


def uses_spark(project: Project) -> bool:
    """Return whether the settings configure Spark or a definition has a Spark step."""
    if project.settings.spark.model_fields_set or project.settings.catalogs:
        return True
    return any(is_spark_job(step.do.uses) for definition in project.definitions.values() for step in definition.steps)


def missing_package() -> str | None:
    """The first package of the extra that is not installed."""
    return next((name for name in SPARK_PACKAGES if importlib.util.find_spec(name) is None), None)


def make_spark_performer(project: Project, databases: DatabaseConnections) -> PreparedAction | None:
    """The implementation of the project's Spark steps, if it has any. Raises UsageError if the settings are invalid."""
    if not uses_spark(project):
        return None
    if (name := missing_package()) is not None:
        log.warning("%s", _missing_package_message(name))
        return SparkUnavailable(_missing_package_message(name))
    from saga_spark.actions import SparkSteps
    from saga_spark.settings import spark_settings

    return SparkSteps(spark_settings(project.settings), databases)


class SparkUnavailable:
    """Replaces Spark steps on a worker without their packages; they wait for a worker that has them."""

    def __init__(self, message: str) -> None:
        self._message = message

    async def prepare(self, action: str, invocation: Invocation, attempt: AttemptContext) -> ActionBody:
        raise ActionNotRegistered(self._message)

    async def read(self, invocation: Invocation, attempt: AttemptContext) -> Any:
        raise ActionNotRegistered(self._message)

    async def close(self) -> None:
        """Close nothing: without Spark there is no runner."""


def _missing_package_message(name: str) -> str:
    return (
        f"Spark steps cannot run on this worker: the package {name} is not installed; "
        "pip install 'saga-orchestrator[spark]'"
    )


def spark_unavailable_reason(settings: Settings) -> str | None:
    """Why Spark steps of this project cannot run on this machine, as a message; None if they can or there are none."""
    if settings.spark.remote:
        return None
    is_used = settings.spark.model_fields_set or settings.catalogs
    if not is_used and not (settings.spark_ledger and has_spark_steps(Project(settings))):
        return None
    if (name := missing_package()) is not None:
        return _missing_package_message(name)
    from saga_spark.runner.java import require_java

    try:
        require_java()
    except UsageError as error:
        return f"Spark steps cannot run on this worker: {error.message}"
    return None


def has_spark_steps(project: Project) -> bool:
    """Return :func:`uses_spark`, but False if the project cannot be read, which the worker reports."""
    try:
        return uses_spark(project)
    except SagaError:
        return False


def spark_performers(spark: PreparedAction | None) -> Mapping[str, PreparedAction]:
    """The implementations of the built-in Spark actions, by action."""
    return {} if spark is None else dict.fromkeys((SPARK, PUBLISH, DISCARD, REVERT, "reconcile"), spark)
