"""Spark steps on a worker: loaded only by projects that have some, because their libraries are large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from activities.connections import Connections
from activities.performer import Performer
from sagas.builtins_spark import DISCARD, PUBLISH, SPARK, UNPUBLISH
from sagas.definition.spark_operations import is_spark_job
from sagas.errors import SagaError, UsageError
from sagas.project import Project
from sagas.settings import Settings

if TYPE_CHECKING:
    from spark_steps.steps import SparkSteps


def uses_spark(project: Project) -> bool:
    """True when the settings speak of Spark, or a definition has a step for it."""
    if project.settings.spark or project.settings.catalogs:
        return True
    return any(is_spark_job(step.do.uses) for one in project.definitions.values() for step in one.steps)


def spark_steps(project: Project, databases: Connections) -> SparkSteps | None:
    """What performs the project's Spark steps; None when it has none. Raises UsageError: a package is missing."""
    if not uses_spark(project):
        return None
    try:
        from spark_steps.settings import spark_settings
        from spark_steps.steps import SparkSteps
    except ModuleNotFoundError as error:
        raise UsageError(
            f"The project has Spark steps, and the package {error.name} is not installed.",
            help="pip install 'saga-orchestrator[spark]'",
        ) from None
    return SparkSteps(spark_settings(project.settings), databases)


def why_not_here(settings: Settings) -> str | None:
    """One sentence: why Spark steps of this project cannot run on this machine; None: they can, or there are none."""
    if settings.spark.get("remote"):
        return None
    if not (settings.spark or settings.catalogs or (settings.spark_ledger and has_spark_steps(Project(settings)))):
        return None
    from spark_steps.runner.session import check_java

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


def performers(spark: SparkSteps | None) -> Mapping[str, Performer]:
    """Who performs which built-in action."""
    return {} if spark is None else dict.fromkeys((SPARK, PUBLISH, DISCARD, UNPUBLISH, "reconcile"), spark)
