"""The schedules of a project in its embedded stack."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sagas.errors import SagaError
from sagas.project import Project
from sagas.settings import Settings, load_settings
from sagas.text.shell import saga_command

Report = Callable[[str], object]


def set_up_stack_schedules(settings: Settings, report: Report) -> None:
    """Create and update the schedules of the definitions in the embedded Temporal, which is ready."""
    current = load_settings(settings.root, settings.config_file)
    project = Project(current)
    if not _has_schedules(project, report):
        return
    from saga_workers.schedules.schedule_setup import set_up_schedules
    from saga_workers.temporal.temporal_client import connect

    async def set_up() -> None:
        await set_up_schedules(
            await connect(current),
            project,
            done=lambda saga, change: report(f"schedule of {saga} {change}"),
            failed=lambda saga, why: report(f"schedule of {saga} not set up: {why}"),
        )

    asyncio.run(set_up())


def report_missing_setup(settings: Settings, report: Report) -> None:
    """Say what makes the schedules in a Temporal that is not the stack's own."""
    if _has_schedules(Project(settings), report):
        report(f"the schedules of the definitions are set up there by: {saga_command('setup')}")


def _has_schedules(project: Project, report: Report) -> bool:
    """Return whether a definition has a schedule. A project with mistakes has none yet, and its servers start."""
    from saga_workers.schedules.schedule_status import uses_schedules

    try:
        return uses_schedules(project)
    except SagaError as error:
        report(f"no schedules are set up: {error.message}")
        return False
