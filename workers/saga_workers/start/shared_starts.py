"""Starts of one saga that arrive while others are under way share a bulk workflow."""

from __future__ import annotations

import asyncio
import contextlib

from saga_workers.start.gathered_starts import GatheredStarts, WaitingStart
from saga_workers.start.saga_starter import SagaStarter
from saga_workers.start.start_answers import StartAnswers
from saga_workers.start.start_limits import MAX_SHARED_INPUTS, shared_size
from saga_workers.start.start_requests import StartRequest, StartResult
from sagas.text.exact_json import encode_json

MAX_SHARED = 500
"""Sagas that share a workflow. Callers wait for all of them to be claimed."""

USUAL_WAIT = 0.25
_CLAIMED_WITHIN = 1.0
"""Seconds after which a bulk workflow counts as under way no longer, although no worker has claimed it: nobody waits
for a worker that is not there."""


class SharedStarts:
    """Starts the first saga at once, in a workflow of its own, and those that arrive while it is under way together in
    a bulk workflow, at most ``limit``; see :class:`StartAnswers`. ``wait``: seconds after which a saga that has been
    claimed counts as under way no longer, so that nobody waits for a saga that takes long.
    """

    def __init__(self, starter: SagaStarter, *, limit: int = MAX_SHARED, wait: float = USUAL_WAIT) -> None:
        self._starter = starter
        self._answers = StartAnswers(starter)
        self._limit, self._wait = limit, wait
        self._open: GatheredStarts | None = None
        self._under_way = asyncio.Lock()
        """Held while one bulk workflow is under way. Two at once would have half of the starts each, and cost as much
        each as one with all of them."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, request: StartRequest, *, id: str | None = None) -> StartResult:
        """Start a saga as :meth:`SagaStarter.start` does, with the same errors, and NotClaimed."""
        given = request.id if id is None else id
        saga_id = self._starter.new_id() if given is None else self._starter.check_id(given, request)
        size = shared_size(request, len(encode_json([saga_id, request.input, dict(request.labels)])))
        if size > MAX_SHARED_INPUTS // 2:
            return await self._starter.start(request, id=saga_id)
        start = WaitingStart(saga_id, request, asyncio.get_running_loop().create_future())
        self._gathered_for(size).add(start, size)
        return await start.answer

    def _gathered_for(self, size: int) -> GatheredStarts:
        gathered = self._open
        if gathered is None or len(gathered) >= self._limit or gathered.size + size > MAX_SHARED_INPUTS:
            gathered = self._open = GatheredStarts()
            task = asyncio.create_task(self._start_gathered(gathered))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return gathered

    async def _start_gathered(self, gathered: GatheredStarts) -> None:
        try:
            async with self._under_way:
                if self._open is gathered:
                    self._open = None
                answering = asyncio.create_task(self._answers.answer(gathered))
                await asyncio.wait({answering}, timeout=_CLAIMED_WITHIN)
                if answering.done():
                    await self._wait_for_ends(gathered)
            await answering
        except Exception as error:  # noqa: BLE001 - each caller raises it
            for start in gathered:
                start.fail(error)
        finally:
            for start in gathered:
                start.answer.cancel()

    async def _wait_for_ends(self, gathered: GatheredStarts) -> None:
        """Wait until the workflows that these starts have begun have ended, but not for long."""
        results = [result for start in gathered if (result := start.result) is not None and result.started]
        ids = {result.bulk_id or result.id for result in results}
        workflows = [self._starter.locator.temporal.get_workflow_handle(id) for id in ids]
        ends = [asyncio.ensure_future(workflow.result()) for workflow in workflows]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait):
                await asyncio.gather(*ends, return_exceptions=True)
