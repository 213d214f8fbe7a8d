"""The concurrent work of a run: one named asyncio task for each long-running command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from sagas.protocol.messages import MachineEvent
from sagas.workflow.limits import PayloadThrottle


class TaskSet:
    """The tasks of one run. ``crash`` is an unexpected exception of the engine; it fails the workflow task."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.crash: Exception | None = None

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - the workflow raises it and so fails its workflow task
                self.crash = error

        self._tasks[name] = asyncio.create_task(run())

    def __contains__(self, name: str) -> bool:
        return name in self._tasks

    def discard(self, name: str) -> None:
        """Remove a task; called by the work itself before it reports its end to the machine."""
        self._tasks.pop(name, None)

    def cancel(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    @property
    def busy(self) -> bool:
        """True when a task other than a timer is running."""
        return any(not name.startswith("timer ") for name in self._tasks)


@dataclass(frozen=True, slots=True)
class CommandContext:
    """What executes the commands of a run: its tasks, its throttle, and ``report``, which passes events on."""

    tasks: TaskSet
    throttle: PayloadThrottle
    report: Callable[[MachineEvent], None]
