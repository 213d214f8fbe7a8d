"""The sagas about which `saga serve` answers: a namespace may hold other workflows, and sagas of other projects."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence

from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.locator import Locator
from saga_workers.runtime.current_definitions import CurrentDefinitions
from sagas.definition.model import Definition
from sagas.definition.saga_ids import SAGA_NAME
from sagas.errors import UsageError
from sagas.project import Project
from sagas.protocol.saga_view import SagaView

_CONCURRENCY = 16
"""Sagas of names without a definition that are looked for at a time."""


class ProjectSagas:
    """The sagas of a project: those of its definitions, and those whose definition it does not have any more."""

    def __init__(self, project: Project, locator: Locator) -> None:
        self._current = CurrentDefinitions(project)
        self._locator = locator
        self._queue = project.settings.temporal.task_queue

    async def definitions(self) -> Mapping[str, Definition]:
        """The definitions of about a second ago."""
        return await self._current.read()

    async def define(self, saga: str) -> bool:
        """True for the name of a saga that the project defines now."""
        return saga in await self._current.read() or saga in await self._current.read_now()

    async def include(self, saga: str, saga_id: str) -> bool:
        """True for a saga of the project, by its name or else by where it runs. Without definitions every run may be
        one whose type is such a name.

        A run keeps the definition it was started with, so it outlives a file that was deleted, and one that this
        process cannot use.
        """
        definitions = await self._current.read()
        if saga in definitions:
            return True
        if re.fullmatch(SAGA_NAME, saga) is None:
            return False
        return not definitions or await self._runs_here(saga_id)

    async def require(self, view: SagaView) -> SagaView:
        """The view of a saga of the project. Raises UsageError for any other."""
        if await self.include(view.saga, view.id):
            return view
        raise UsageError(f"there is no saga with the id {view.id} in this project")

    async def among(self, sagas: Iterable[tuple[str, str]]) -> set[str]:
        """The ids of those that are of the project. ``sagas``: names and ids."""
        asked, places = list(set(sagas)), asyncio.Semaphore(_CONCURRENCY)

        async def include(saga: str, saga_id: str) -> bool:
            async with places:
                return await self.include(saga, saga_id)

        included = await asyncio.gather(*(include(*each) for each in asked))
        return {saga_id for (_, saga_id), is_own in zip(asked, included, strict=True) if is_own}

    async def _runs_here(self, saga_id: str) -> bool:
        """True for a saga that only the ledger of the project has, or whose run is on its task queue."""
        try:
            location = await self._locator.locate(saga_id)
        except LedgerUnavailable:
            location = await self._locator.within_temporal().locate(saga_id)
        return location.is_on(self._queue)


def names_of(definitions: Mapping[str, Definition], views: Iterable[SagaView]) -> Sequence[str]:
    """The names of the sagas for a choice: those of the project, and those that are shown."""
    return sorted({*definitions, *(view.saga for view in views)})
