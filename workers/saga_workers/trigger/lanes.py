"""Many messages at once, but those of one key one after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """Runs ``work`` for each item; items with equal ``lane`` in order, at most ``width`` at a time.

    ``work`` must not raise: what it cannot do it has to say in another way.
    """

    def __init__(self, work: Callable[[T], Awaitable[None]], width: int) -> None:
        self._work = work
        self._places = asyncio.Semaphore(width)
        self._waiting: dict[Hashable, deque[T]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: list[T] = []
        self._one_ended = asyncio.Event()

    @property
    def held(self) -> int:
        """Items that wait or run."""
        return sum(len(queue) for queue in self._waiting.values()) + len(self._running)

    async def ended(self, wanted: Callable[[T], bool], patience: float) -> None:
        """Wait until no such item is worked on, at most ``patience`` seconds."""
        deadline = asyncio.get_running_loop().time() + patience
        while any(wanted(item) for item in self._running):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            self._one_ended.clear()
            try:
                async with asyncio.timeout(left):
                    await self._one_ended.wait()
            except TimeoutError:
                return

    def put(self, lane: Hashable, item: T) -> None:
        queue = self._waiting.get(lane)
        if queue is not None:
            queue.append(item)
            return
        self._waiting[lane] = deque((item,))
        task = asyncio.create_task(self._run(lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drop(self, unwanted: Callable[[T], bool]) -> None:
        """Forget items that have not begun."""
        for lane, queue in list(self._waiting.items()):
            self._waiting[lane] = deque(item for item in queue if not unwanted(item))

    async def idle(self) -> None:
        """Wait until everything has ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def stop(self) -> None:
        """Cancel what runs and forget the rest."""
        for queue in self._waiting.values():
            queue.clear()
        for task in set(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, lane: Hashable) -> None:
        try:
            while queue := self._waiting[lane]:
                async with self._places:
                    if not (queue := self._waiting[lane]):
                        return
                    item = queue.popleft()
                    self._running.append(item)
                    try:
                        await self._work(item)
                    finally:
                        self._running.remove(item)
                        self._one_ended.set()
        finally:
            del self._waiting[lane]
