"""What a run does at the same time: one named asyncio task for each command that takes time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class TaskSet:
    """The tasks of one run. ``crash`` is what broke in the engine itself; it fails the workflow task."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.crash: Exception | None = None

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - handed to the workflow, which fails its task with it
                self.crash = error

        self._tasks[name] = asyncio.create_task(run())

    def __contains__(self, name: str) -> bool:
        return name in self._tasks

    def discard(self, name: str) -> None:
        """The work itself says that it is over, before it tells the machine."""
        self._tasks.pop(name, None)

    def cancel(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    @property
    def busy(self) -> bool:
        """Something other than a timer is going on."""
        return any(not name.startswith("timer ") for name in self._tasks)
