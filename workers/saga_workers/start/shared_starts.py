"""Starts of one saga that arrive while others are under way share a bulk workflow."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque

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

_OVERTAKING = 8
"""A group that is so many times larger than all that is under way does not wait for it."""

_LONGEST_PAUSE = 0.1
_PAUSE = 0.01
_MAX_STILL = 4
"""Seconds, seconds until the next look, and how often that may see no new start: the callers of sagas that have just
ended often start their next ones, one after another. Without a pause the first of them would be a group of their own,
for which all others wait."""


class SharedStarts:
    """Starts the first saga at once, in a workflow of its own, and those that arrive while it is under way together in
    a bulk workflow, at most ``limit``; see :class:`StartAnswers`. ``wait``: seconds after which a saga that has been
    claimed counts as under way no longer, so that nobody waits for a saga that takes long.

    Two groups at once would have half of the starts each, and cost as much each as one with all of them. So the next
    one waits for those that are under way, unless these are few beside it. ``callers_return``: who has waited for the
    end of a saga often starts the next one then, so the next group waits a little for them.
    """

    def __init__(
        self,
        starter: SagaStarter,
        *,
        limit: int = MAX_SHARED,
        wait: float = USUAL_WAIT,
        callers_return: bool = False,
    ) -> None:
        self._starter = starter
        self._answers = StartAnswers(starter)
        self._limit, self._wait, self._callers_return = limit, wait, callers_return
        self._waiting: deque[GatheredStarts] = deque()
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, request: StartRequest, *, id: str | None = None) -> StartResult:
        """Start a saga as :meth:`SagaStarter.start` does, with the same errors, and NotClaimed."""
        given = request.id if id is None else id
        saga_id = self._starter.new_id() if given is None else self._starter.check_id(given, request)
        size = shared_size(request, len(encode_json([saga_id, request.input, dict(request.labels)])))
        if size > MAX_SHARED_INPUTS // 2:
            return await self._starter.start(request, id=saga_id)
        start = WaitingStart(saga_id, request, asyncio.get_running_loop().create_future())
        self._gather(start, size)
        asyncio.get_running_loop().call_soon(self._start_next)  # after other starts that are there already
        return await start.answer

    def _gather(self, start: WaitingStart, size: int) -> None:
        last = self._waiting[-1] if self._waiting else None
        if last is None or len(last) >= self._limit or last.size + size > MAX_SHARED_INPUTS:
            self._waiting.append(last := GatheredStarts())
        last.add(start, size)

    def _start_next(self) -> None:
        """Start the groups that need not wait any more."""
        while self._waiting and len(self._waiting[0]) >= _OVERTAKING * self._under_way:
            gathered = self._waiting.popleft()
            self._under_way += len(gathered)
            task = asyncio.create_task(self._start_gathered(gathered))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _start_gathered(self, gathered: GatheredStarts) -> None:
        answering = asyncio.create_task(self._answers.answer(gathered))
        try:
            try:
                await asyncio.wait({answering}, timeout=_CLAIMED_WITHIN)
                if answering.done():
                    await self._wait_for_ends(gathered)
                    if self._callers_return and len(gathered) > 1:
                        await self._wait_for_next(len(gathered))
            finally:
                self._under_way -= len(gathered)
                self._start_next()
            await answering
        except Exception as error:  # noqa: BLE001 - each caller raises it
            for start in gathered:
                start.fail(error)
        finally:
            for start in gathered:
                start.answer.cancel()

    async def _wait_for_next(self, ended: int) -> None:
        """Wait for the next starts of the callers of so many sagas, as long as some arrive."""
        still = before = 0
        until = time.monotonic() + _LONGEST_PAUSE
        while still < _MAX_STILL and before < ended and time.monotonic() < until:
            await asyncio.sleep(_PAUSE)
            waiting = sum(map(len, self._waiting))
            still = still + 1 if waiting == before else 0
            before = waiting

    async def _wait_for_ends(self, gathered: GatheredStarts) -> None:
        """Wait until the workflows that these starts have begun have ended, but not for long."""
        results = [result for start in gathered if (result := start.result) is not None and result.started]
        ids = {result.bulk_id or result.id for result in results}
        workflows = [self._starter.locator.temporal.get_workflow_handle(id) for id in ids]
        ends = [asyncio.ensure_future(workflow.result()) for workflow in workflows]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait):
                await asyncio.gather(*ends, return_exceptions=True)
