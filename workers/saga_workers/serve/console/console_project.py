"""The sources of the console's pages: the sagas of one project, and its files."""

from __future__ import annotations

from dataclasses import dataclass

from saga_workers.location.locator import Locator
from saga_workers.serve.console.visitors import PageNotFound
from saga_workers.serve.project_sagas import ProjectSagas
from sagas.definition.saga_ids import workflow_id_problem
from sagas.errors import UsageError
from sagas.project import Project
from sagas.protocol.saga_view import SagaView
from sagas.settings import Settings


@dataclass(frozen=True, slots=True)
class ConsoleProject:
    """A project as `saga serve` reads it. ``shown``: the sagas that it shows."""

    locator: Locator
    project: Project
    shown: ProjectSagas

    @property
    def settings(self) -> Settings:
        return self.project.settings

    @property
    def task_queue(self) -> str:
        return self.settings.temporal.task_queue

    async def require_shown(self, view: SagaView) -> SagaView:
        """The view of a saga of this project. Raises PageNotFound for any other."""
        try:
            return await self.shown.require(view)
        except UsageError as error:
            raise PageNotFound(error.message) from None


def require_id(saga_id: str) -> str:
    """An id from an address. Raises PageNotFound if no saga can have it: neither Temporal nor a database is asked."""
    if (problem := workflow_id_problem(saga_id)) is not None:
        raise PageNotFound(f"there is no such saga: {problem}")
    return saga_id
