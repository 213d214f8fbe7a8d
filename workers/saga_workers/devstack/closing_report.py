"""The end of `saga dev up`: names what is missing or wrong although everything runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection

from saga_workers.worker.spark_support import has_spark_steps
from sagas.errors import SagaError
from sagas.project import Project
from sagas.settings import Settings, load_settings
from sagas.text.shell import saga_command
from sagas.text.shortening import counted, join_names

_MAX_FILES = 3
_READERS = {"worker", "trigger"}
"""Processes that leave out definitions with errors."""


def report_what_is_missing(settings: Settings, started: Collection[str], report: Callable[[str], object]) -> None:
    """Report databases without tables, and definitions that the ``started`` services leave out."""
    project = Project(load_settings(settings.root, settings.config_file))
    _report_missing_setup(project, report)
    if not _READERS.isdisjoint(started):
        _report_wrong_definitions(project, report)


def _report_missing_setup(project: Project, report: Callable[[str], object]) -> None:
    """Name the databases that are not the stack's own and that `saga setup` has not changed yet."""
    others = [connection for connection in project.settings.sql_connections() if not connection.embedded]
    if not others:
        return
    from saga_workers.runtime.databases import why_setup_is_needed

    spark = has_spark_steps(project)
    for connection in others:
        if why := asyncio.run(why_setup_is_needed(connection, spark=spark)):
            report(f"the connection {connection.name} is not set up: {why}")


def _report_wrong_definitions(project: Project, report: Callable[[str], object]) -> None:
    try:
        errors = [diagnostic for diagnostic in project.diagnostics if diagnostic.severity == "error"]
    except SagaError as error:
        report(f"the definitions cannot be checked: {error.message}")
        return
    if not errors:
        return
    files = list(dict.fromkeys(os.path.relpath(error.file, project.settings.root) for error in errors))
    what = counted(len(errors), "error") + f" in {join_names(files, _MAX_FILES)}"
    report(f"{what}: no saga with an error starts; {saga_command('validate')} lists the errors")
