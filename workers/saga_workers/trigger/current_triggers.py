"""The readers of a project's triggers, as its definitions are now: files may be added and changed meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from saga_workers.runtime.current_definitions import CurrentDefinitions
from saga_workers.runtime.logs import fields
from sagas.definition.model import Definition

log = logging.getLogger("saga.trigger")

INTERVAL = 1.0
"""Seconds between two looks at the definitions."""


@dataclass(frozen=True, slots=True)
class TriggerReader:
    """A reader of one topic for the triggers of one saga. ``run`` reads until its event, and then lets messages in
    process end for so many seconds. ``left`` is called when it has ended, and the process goes on.
    """

    group: str
    run: Callable[[asyncio.Event, float], Coroutine[Any, Any, None]]
    left: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Running:
    definition: Definition
    reader: TriggerReader
    stop: asyncio.Event
    task: asyncio.Task[None] | None = None


class CurrentTriggers:
    """Runs a reader for each trigger. One whose definition has changed ends what it has in process, and begins again.

    ``wanted`` are the definitions of the triggers with their topics, as last read; ``make`` creates the reader of one,
    which stops with the event.
    """

    def __init__(
        self,
        current: CurrentDefinitions,
        wanted: Callable[[], Iterable[tuple[Definition, str]]],
        make: Callable[[Definition, str, asyncio.Event], TriggerReader],
    ) -> None:
        self._current = current
        self._wanted = wanted
        self._make = make
        self._running: dict[tuple[str, str], _Running] = {}
        self._add_missing()

    def _add_missing(self) -> list[tuple[str, str]]:
        added = []
        for definition, topic in self._wanted():
            name = definition.saga, topic
            if name not in self._running:
                stop = asyncio.Event()
                self._running[name] = _Running(definition, self._make(definition, topic, stop), stop)
                added.append(name)
        return added

    async def run(self, stop: asyncio.Event, grace: float) -> None:
        """Run until ``stop``; messages in process then have ``grace`` seconds to end. Raises what a reader raises."""
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                self._begin(grace)
                waited = {stopping, *self._tasks()}
                ended, _ = await asyncio.wait(waited, timeout=INTERVAL, return_when=asyncio.FIRST_COMPLETED)
                for task in ended - {stopping}:
                    task.result()
                if not stop.is_set():
                    await self._follow()
        finally:
            stopping.cancel()
            for running in self._running.values():
                running.stop.set()
            await asyncio.gather(*self._tasks(), return_exceptions=True)
        await asyncio.gather(*self._tasks())

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [running.task for running in self._running.values() if running.task is not None]

    def _begin(self, grace: float) -> None:
        for name, running in self._running.items():
            if running.task is None:
                task = asyncio.create_task(running.reader.run(running.stop, grace), name=running.reader.group)
                self._running[name] = _Running(running.definition, running.reader, running.stop, task)

    async def _follow(self) -> None:
        await self._current.read()
        wanted = {(definition.saga, topic): (definition, topic) for definition, topic in self._wanted()}
        changed = {
            name: running
            for name, running in self._running.items()
            if name not in wanted or not wanted[name][0].is_started_like(running.definition)
        }
        for running in changed.values():
            running.stop.set()
        await asyncio.gather(*(running.task for running in changed.values() if running.task is not None))
        for name, running in changed.items():
            running.reader.left()
            del self._running[name]
        for name in {*self._add_missing(), *changed}:
            what = "reads with the definition as it is now" if name in self._running else "reads no more"
            log.info("the trigger of %s %s", name[0], what, extra=fields(topic=name[1]))
