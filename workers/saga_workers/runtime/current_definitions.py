"""The definitions of a project in a process that runs for long: files may be added and changed meanwhile."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping

from sagas.definition.diagnostics import Diagnostic
from sagas.definition.model import Definition
from sagas.errors import SagaError
from sagas.project import Project

log = logging.getLogger("saga.definitions")

_INTERVAL = 1.0
"""Seconds between two looks at the files."""


def log_diagnostics(diagnostics: Iterable[Diagnostic]) -> None:
    """Log what is wrong with the definitions, each finding with its severity."""
    for diagnostic in diagnostics:
        level = logging.ERROR if diagnostic.severity == "error" else logging.WARNING
        log.log(level, "%s:%s %s %s", diagnostic.file, diagnostic.line, diagnostic.code, diagnostic.message)


class CurrentDefinitions:
    """Reads the definitions of ``project`` again when their files have changed; all who use the project see that."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._looked_at = -_INTERVAL
        self._looking = asyncio.Lock()
        self._last_error: str | None = None

    async def read(self) -> Mapping[str, Definition]:
        """The definitions as they were about a second ago, or later."""
        if time.monotonic() - self._looked_at >= _INTERVAL:
            await self.read_now()
        return self.project.definitions

    async def read_now(self) -> Mapping[str, Definition]:
        """The definitions as they are now; callers share a look, and wait until the last one is a second old."""
        asked_at = time.monotonic()
        async with self._looking:
            if self._looked_at < asked_at:
                await asyncio.sleep(self._looked_at + _INTERVAL - time.monotonic())
                self._looked_at = time.monotonic()
                await self._look()
        return self.project.definitions

    async def _look(self) -> None:
        error = None
        try:
            logged = set(self.project.diagnostics)
            await asyncio.to_thread(self.project.read_again)
            log_diagnostics(each for each in self.project.diagnostics if each not in logged)
        except (SagaError, OSError) as failed:
            error = str(failed)
            if error != self._last_error:
                log.warning("the definitions cannot be read again, so those read before are used: %s", error)
        self._last_error = error
