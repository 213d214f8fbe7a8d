"""Runs work for items concurrently, but in order for items with equal keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from saga_activities.concurrency import end_tasks

T = TypeVar("T")


class KeyedExecutor(Generic[T]):
    """Runs ``work`` for each item; items with equal keys in order, at most ``concurrency`` at a time.

    ``work`` must not raise; it has to report failures in another way.
    """

    def __init__(self, work: Callable[[T], Awaitable[None]], concurrency: int) -> None:
        self._work = work
        self._slots = asyncio.Semaphore(concurrency)
        self._waiting: dict[Hashable, deque[T]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[int, T] = {}
        self._item_ended = asyncio.Event()

    @property
    def pending(self) -> int:
        """Items that wait or run."""
        return sum(len(queue) for queue in self._waiting.values()) + len(self._running)

    async def wait_ended(self, predicate: Callable[[T], bool], timeout: float) -> None:
        """Wait until no item that matches is being processed, at most ``timeout`` seconds."""
        deadline = asyncio.get_running_loop().time() + timeout
        while any(predicate(item) for item in self._running.values()):
            remaining_seconds = deadline - asyncio.get_running_loop().time()
            if remaining_seconds <= 0:
                return
            self._item_ended.clear()
            try:
                async with asyncio.timeout(remaining_seconds):
                    await self._item_ended.wait()
            except TimeoutError:
                return

    def submit(self, key: Hashable, item: T) -> None:
        queue = self._waiting.get(key)
        if queue is not None:
            queue.append(item)
            return
        self._waiting[key] = deque((item,))
        task = asyncio.create_task(self._run(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def discard(self, predicate: Callable[[T], bool]) -> None:
        """Drop matching items that have not started."""
        for lane, queue in list(self._waiting.items()):
            self._waiting[lane] = deque(item for item in queue if not predicate(item))

    async def wait_idle(self) -> None:
        """Wait until everything has ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def stop(self) -> None:
        """Cancel what runs and drop the rest."""
        for queue in self._waiting.values():
            queue.clear()
        await end_tasks(self._tasks)

    @contextlib.asynccontextmanager
    async def aside(self) -> AsyncIterator[None]:
        """Entered by the work of an item that waits for long: another item may take its place meanwhile."""
        self._slots.release()
        try:
            yield
        finally:
            await self._slots.acquire()

    async def _run(self, key: Hashable) -> None:
        try:
            while queue := self._waiting[key]:
                async with self._slots:
                    if not (queue := self._waiting[key]):
                        return
                    item = queue.popleft()
                    self._running[id(item)] = item
                    try:
                        await self._work(item)
                    finally:
                        del self._running[id(item)]
                        self._item_ended.set()
        finally:
            del self._waiting[key]
