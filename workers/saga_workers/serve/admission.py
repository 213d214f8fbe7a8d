"""How much the HTTP API does at once, over all its endpoints: further requests wait."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from saga_workers.serve.arriving_callbacks import ArrivingCallbacks
from saga_workers.serve.limits import (
    MAX_CONCURRENT_CALLBACKS,
    MAX_CONCURRENT_OPERATIONS,
    MAX_CONCURRENT_PAGES,
    MAX_CONCURRENT_READS,
    MAX_CONCURRENT_STARTS,
    MAX_OPERATIONS_OF_TOKEN,
    MAX_PAGES_OF_TOKEN,
    MAX_READS_OF_TOKEN,
    MAX_SHARED_STARTS,
    MAX_STARTS_OF_TOKEN,
    REQUEST_TIMEOUT,
)
from saga_workers.serve.waiting_bodies import WaitingBodies


class _Turns:
    """Turns for one kind of request: ``most`` at the same time, and ``most_of_token`` with one token.

    A token waits for its own turns first, so however many requests it sends, a request with another token has no more
    than its ``most_of_token`` before it.
    """

    def __init__(self, most: int, most_of_token: int) -> None:
        self._all = asyncio.Semaphore(most)
        self._of_token = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(most_of_token))

    @asynccontextmanager
    async def take(self, token: str) -> AsyncIterator[None]:
        async with self._of_token[token], self._all:
            yield


class Admission:
    """The places of one process. ``max_waiting``: how many callers may wait for the ends of their sagas.

    ``token`` is the name of the token with which a request was sent. To wait for a turn, and for the answer in it,
    raises TimeoutError if both take too long together.
    """

    def __init__(self, *, max_waiting: int) -> None:
        self.callbacks = ArrivingCallbacks()
        self.bodies = WaitingBodies()
        self.waits = asyncio.Semaphore(max_waiting)
        self._reads = _Turns(MAX_CONCURRENT_READS, MAX_READS_OF_TOKEN)
        self._starts = _Turns(MAX_CONCURRENT_STARTS, MAX_STARTS_OF_TOKEN)
        self._shared_starts = asyncio.Semaphore(MAX_SHARED_STARTS)
        self._callbacks = asyncio.Semaphore(MAX_CONCURRENT_CALLBACKS)
        self._pages = _Turns(MAX_CONCURRENT_PAGES, MAX_PAGES_OF_TOKEN)
        self._operations = _Turns(MAX_CONCURRENT_OPERATIONS, MAX_OPERATIONS_OF_TOKEN)

    @asynccontextmanager
    async def read(self, token: str) -> AsyncIterator[None]:
        """A turn to read a saga."""
        async with asyncio.timeout(REQUEST_TIMEOUT), self._reads.take(token):
            yield

    @asynccontextmanager
    async def start(self, token: str, *, shared: bool = False) -> AsyncIterator[None]:
        """A turn to ask Temporal for a start; ``shared``: for one that shares a workflow."""
        async with asyncio.timeout(REQUEST_TIMEOUT), self._shared_starts if shared else self._starts.take(token):
            yield

    @asynccontextmanager
    async def callback(self) -> AsyncIterator[None]:
        """A turn to hand a callback to its saga."""
        async with asyncio.timeout(REQUEST_TIMEOUT), self._callbacks:
            yield

    @asynccontextmanager
    async def page(self, token: str) -> AsyncIterator[None]:
        """A turn for a page of the console."""
        async with asyncio.timeout(REQUEST_TIMEOUT), self._pages.take(token):
            yield

    @asynccontextmanager
    async def operation(self, token: str) -> AsyncIterator[None]:
        """A turn for the request of an operator. Only the wait for it is limited, since workers have to answer."""
        async with AsyncExitStack() as turn:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                await turn.enter_async_context(self._operations.take(token))
            yield
