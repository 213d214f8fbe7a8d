"""The concurrent work of a run: one named asyncio task for each long-running command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from sagas.protocol.messages import Call, MachineEvent, StartSaga, UndoSaga
from sagas.workflow.limits import PayloadThrottle
from sagas.workflow.operator_pause import OperatorPause
from sagas.workflow.waits import wait_until


class TaskSet:
    """The tasks of one run. ``crash`` is an unexpected exception of the engine; it fails the workflow task."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.crash: Exception | None = None

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[name] = asyncio.create_task(work)
        task.add_done_callback(self._note_crash)

    def _note_crash(self, task: asyncio.Task[None]) -> None:
        """The workflow raises an exception of a task and so fails its workflow task."""
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.crash = error

    async def wait(self, condition: Callable[[], bool], cancelled: Callable[[], None]) -> None:
        """Wait for a condition; a native cancel is passed to ``cancelled`` and does not interrupt the wait.

        Raises the crash of a task in the workflow task of the crash, whatever the run waits for.
        """
        while self.crash is None and not condition():
            try:
                await wait_until(lambda: self.crash is not None or condition())
            except asyncio.CancelledError:
                cancelled()
        if self.crash is not None:
            raise self.crash

    def __contains__(self, name: str) -> bool:
        return name in self._tasks

    def is_current(self, name: str) -> bool:
        """True in the task that was started last under this name."""
        return self._tasks.get(name) is asyncio.current_task()

    def discard(self, name: str) -> None:
        """Remove a task; called by the work itself before it reports its end to the machine."""
        self._tasks.pop(name, None)

    def cancel(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    @property
    def names(self) -> frozenset[str]:
        """The names of the tasks that are running."""
        return frozenset(self._tasks)

    @property
    def busy(self) -> bool:
        """True when a task other than a timer is running."""
        return any(not name.startswith("timer ") for name in self._tasks)


@dataclass(frozen=True, slots=True)
class CommandContext:
    """The parts that execute the commands of a run: its tasks, throttle and pause, and ``report``, which passes events
    on.
    """

    tasks: TaskSet
    throttle: PayloadThrottle
    pause: OperatorPause
    report: Callable[[MachineEvent], None]

    async def wait_to_send(self, command: Call | StartSaga | UndoSaga, size: int, unless: Callable[[], bool]) -> None:
        """Wait until a command of ``size`` bytes has room in the workflow task, and the saga is not paused."""
        await self.throttle.wait_for_room(size)
        while await self.pause.wait(command.id, command.entry, unless):
            await self.throttle.wait_for_room(size)  # others have also waited
