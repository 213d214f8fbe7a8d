"""Spark steps on a worker: loaded only by projects that have some, because their libraries are large."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from typing import Any

from saga_activities.attempt import Attempt, Body
from saga_activities.connections import Connections
from saga_activities.dispatch import NotServed
from saga_activities.performer import Performer
from sagas.builtins_spark import DISCARD, PUBLISH, SPARK, UNPUBLISH
from sagas.definition.spark_operations import is_spark_job
from sagas.errors import SagaError, UsageError
from sagas.project import Project
from sagas.settings import Settings
from sagas.wire import Invocation

log = logging.getLogger("saga.worker")

PACKAGES = ("pyspark", "pandas", "pyarrow", "pyiceberg")
"""What the extra ``spark`` brings."""


def uses_spark(project: Project) -> bool:
    """True when the settings speak of Spark, or a definition has a step for it."""
    if project.settings.spark or project.settings.catalogs:
        return True
    return any(is_spark_job(step.do.uses) for one in project.definitions.values() for step in one.steps)


def missing_package() -> str | None:
    """The first package of the extra that is not installed."""
    return next((name for name in PACKAGES if importlib.util.find_spec(name) is None), None)


def spark_steps(project: Project, databases: Connections) -> Performer | None:
    """What performs the project's Spark steps; None when it has none. Raises UsageError: the settings are wrong."""
    if not uses_spark(project):
        return None
    if (name := missing_package()) is not None:
        log.warning("%s", _not_installed(name))
        return NotInstalled(_not_installed(name))
    from saga_spark.settings import spark_settings
    from saga_spark.steps import SparkSteps

    return SparkSteps(spark_settings(project.settings), databases)


class NotInstalled:
    """Takes the place of Spark steps on a worker without their packages: they wait for a worker that has them."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    async def prepare(self, action: str, invocation: Invocation, attempt: Attempt) -> Body:
        raise NotServed(self._sentence)

    async def read(self, invocation: Invocation, attempt: Attempt) -> Any:
        raise NotServed(self._sentence)

    async def close(self) -> None:
        """Nothing runs."""


def _not_installed(name: str) -> str:
    return (
        f"Spark steps cannot run here, everything else can: the package {name} is not installed; "
        "pip install 'saga-orchestrator[spark]'"
    )


def why_not_here(settings: Settings) -> str | None:
    """One sentence: why Spark steps of this project cannot run on this machine; None: they can, or there are none."""
    if settings.spark.get("remote"):
        return None
    if not (settings.spark or settings.catalogs or (settings.spark_ledger and has_spark_steps(Project(settings)))):
        return None
    if (name := missing_package()) is not None:
        return _not_installed(name)
    from saga_spark.runner.java import check_java

    try:
        check_java()
    except UsageError as error:
        return f"Spark steps cannot run here, everything else can: {error.message}"
    return None


def has_spark_steps(project: Project) -> bool:
    """The same for who only tells of it: False too where the project cannot be read, which the worker complains of."""
    try:
        return uses_spark(project)
    except SagaError:
        return False


def performers(spark: Performer | None) -> Mapping[str, Performer]:
    """Who performs which built-in action."""
    return {} if spark is None else dict.fromkeys((SPARK, PUBLISH, DISCARD, UNPUBLISH, "reconcile"), spark)
