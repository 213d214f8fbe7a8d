"""How much the HTTP API does at once, over all its endpoints: further requests wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from saga_workers.serve.arriving_callbacks import ArrivingCallbacks
from saga_workers.serve.limits import (
    MAX_CONCURRENT_OPERATIONS,
    MAX_CONCURRENT_PAGES,
    MAX_CONCURRENT_REQUESTS,
    MAX_SHARED_STARTS,
    REQUEST_TIMEOUT,
)
from saga_workers.serve.waiting_bodies import WaitingBodies


class Admission:
    """The places of one process. ``max_waiting``: how many callers may wait for the ends of their sagas."""

    def __init__(self, *, max_waiting: int) -> None:
        self.callbacks = ArrivingCallbacks()
        self.bodies = WaitingBodies()
        self.waits = asyncio.Semaphore(max_waiting)
        self._requests = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
        self._pages = asyncio.Semaphore(MAX_CONCURRENT_PAGES)
        self._operations = asyncio.Semaphore(MAX_CONCURRENT_OPERATIONS)
        self._shared_starts = asyncio.Semaphore(MAX_SHARED_STARTS)

    @asynccontextmanager
    async def request(self, *, shared: bool = False) -> AsyncIterator[None]:
        """A turn to ask Temporal; ``shared``: for a start that shares a workflow.

        Raises TimeoutError if the wait for it and the answer take too long together.
        """
        async with asyncio.timeout(REQUEST_TIMEOUT), self._shared_starts if shared else self._requests:
            yield

    @asynccontextmanager
    async def page(self) -> AsyncIterator[None]:
        """A turn for a page of the console. Raises TimeoutError like :meth:`request`."""
        async with asyncio.timeout(REQUEST_TIMEOUT), self._pages:
            yield

    @asynccontextmanager
    async def operation(self) -> AsyncIterator[None]:
        """A turn for the request of an operator. Raises TimeoutError if the wait for it takes too long."""
        async with asyncio.timeout(REQUEST_TIMEOUT):
            await self._operations.acquire()
        try:
            yield
        finally:
            self._operations.release()
