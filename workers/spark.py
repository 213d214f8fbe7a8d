"""Spark steps on a worker: loaded only by projects that have some, because their libraries are large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from activities.connections import Connections
from activities.performer import Performer
from sagas.builtins_spark import DISCARD, PUBLISH, SPARK, UNPUBLISH
from sagas.definition.spark_operations import is_spark_job
from sagas.errors import UsageError
from sagas.project import Project

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


def performers(spark: SparkSteps | None) -> Mapping[str, Performer]:
    """Who performs which built-in action."""
    return {} if spark is None else dict.fromkeys((SPARK, PUBLISH, DISCARD, UNPUBLISH, "reconcile"), spark)
