"""Starts of one saga that arrive while others are under way share a bulk workflow.

Each caller gets the result that a start of its own would have given.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.service import RPCError

from saga_activities.ledger.records import Claim
from saga_workers.bulk.acceptance import Acceptance, NotClaimed, wait_accepted
from saga_workers.start.saga_starter import SagaStarter
from saga_workers.start.start_limits import MAX_SHARED_INPUTS, shared_size
from saga_workers.start.start_requests import BulkRow, StartRequest, StartResult
from saga_workers.temporal.refusals import refusal_reason
from sagas.definition.saga_ids import check_saga_id
from sagas.errors import RefusedError, UsageError
from sagas.protocol.payloads import input_digest
from sagas.text.exact_json import encode_json

MAX_SHARED = 500
"""Sagas that share a workflow. Callers wait for all of them to be claimed."""

USUAL_WAIT = 0.25
_CLAIMED_WITHIN = 1.0
"""Seconds after which a bulk workflow counts as under way no longer, although no worker has claimed it: nobody waits
for a worker that is not there."""

_MAX_UNCLAIMED = 10_000
_UNCLAIMED_FOR = timedelta(seconds=60)
"""How many ids that no worker has claimed in time are kept in memory, and how long."""


@dataclass(slots=True)
class _Start:
    id: str
    request: StartRequest
    result: asyncio.Future[StartResult]


@dataclass(slots=True)
class _GatheredStarts:
    """The starts that will share a workflow. ``repeats``: those whose id is already among ``starts``. ``size``: the
    bytes of all of them.
    """

    starts: dict[str, _Start] = field(default_factory=dict)
    repeats: list[_Start] = field(default_factory=list)
    size: int = 0

    @property
    def count(self) -> int:
        return len(self.starts) + len(self.repeats)


class SharedStarts:
    """Starts the first saga at once, in a workflow of its own, and those that arrive while it is under way together in
    a bulk workflow, at most ``limit``. ``wait``: seconds after which one that has been claimed counts as under way no
    longer, so that nobody waits for a saga that takes long.

    An id that the ledger knows is answered from there; the workflow claims the others. If no worker does so in time,
    they do not count as started: it may still refuse the workflow. A caller that starts one of them again waits
    for the same workflow.
    """

    def __init__(self, starter: SagaStarter, *, limit: int = MAX_SHARED, wait: float = USUAL_WAIT) -> None:
        self._starter = starter
        self._ledger = starter.locator.ledger
        self._limit, self._wait = limit, wait
        self._open: _GatheredStarts | None = None
        self._under_way = asyncio.Lock()
        """Held while one bulk workflow is under way. Two at once would have half of the starts each, and cost as much
        each as one with all of them."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._unclaimed: OrderedDict[str, Claim] = OrderedDict()

    async def start(self, request: StartRequest, *, id: str | None = None) -> StartResult:
        """Start a saga as :meth:`SagaStarter.start` does, with the same errors, and NotClaimed."""
        given = request.id if id is None else id
        saga_id = check_saga_id(self._starter.new_id() if given is None else given)
        size = shared_size(request, len(encode_json([saga_id, request.input, dict(request.labels)])))
        if size > MAX_SHARED_INPUTS // 2:
            return await self._starter.start(request, id=saga_id)
        gathered = self._gathered_for(size)
        own = _Start(saga_id, request, asyncio.get_running_loop().create_future())
        if saga_id in gathered.starts:
            gathered.repeats.append(own)
        else:
            gathered.starts[saga_id] = own
        gathered.size += size
        return await own.result

    # --- gathering ---------------------------------------------------------------------------------------------

    def _gathered_for(self, size: int) -> _GatheredStarts:
        gathered = self._open
        if gathered is None or gathered.count >= self._limit or gathered.size + size > MAX_SHARED_INPUTS:
            gathered = self._open = _GatheredStarts()
            self._run(self._start_gathered(gathered))
        return gathered

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start_gathered(self, gathered: _GatheredStarts) -> None:
        try:
            async with self._under_way:
                if self._open is gathered:
                    self._open = None
                answering = asyncio.create_task(self._answer_gathered(gathered))
                await asyncio.wait({answering}, timeout=_CLAIMED_WITHIN)
                if answering.done():
                    await self._wait_for_ends(gathered.starts.values())
            await answering
        except Exception as error:  # noqa: BLE001 - each caller raises it
            _fail([*gathered.starts.values(), *gathered.repeats], error)
        finally:
            for waiting in (*gathered.starts.values(), *gathered.repeats):
                waiting.result.cancel()

    async def _wait_for_ends(self, starts: Iterable[_Start]) -> None:
        """Wait until the workflows that these starts have begun have ended, but not for long."""
        results = [result for start in starts if (result := _result(start)) is not None and result.started]
        ids = {result.bulk_id or result.id for result in results}
        workflows = [self._starter.locator.temporal.get_workflow_handle(id) for id in ids]
        ends = [asyncio.ensure_future(workflow.result()) for workflow in workflows]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait):
                await asyncio.gather(*ends, return_exceptions=True)

    # --- starting ----------------------------------------------------------------------------------------------

    async def _answer_gathered(self, gathered: _GatheredStarts) -> None:
        # A caller that has given up need not be started.
        starts = [start for start in gathered.starts.values() if not start.result.done()]
        if len(starts) == 1 and not gathered.repeats and self._noted(starts[0].id) is None:
            await self._answer_alone(starts[0])  # a bulk workflow of one takes longer than a workflow of its own
            return
        await self._answer(starts)
        await self._answer_repeats(gathered.repeats)

    async def _answer(self, starts: Sequence[_Start]) -> None:
        claims = await self._known(starts)
        new: list[_Start] = []
        waiting: dict[str, list[_Start]] = {}
        for start in starts:
            if start.id in claims:
                continue
            noted = self._noted(start.id)
            if noted is None or noted.bulk_id is None:
                new.append(start)
            elif noted.input_digest == input_digest(start.request.input):
                waiting.setdefault(noted.bulk_id, []).append(start)
            else:
                _fail([start], NotClaimed(start.id))
        await asyncio.gather(
            self._start_bulk(new),
            self._answer_each([start for start in starts if start.id in claims], claims),
            *(self._wait_accepted(id, some) for id, some in waiting.items()),
        )

    async def _answer_repeats(self, starts: Sequence[_Start]) -> None:
        claims = await self._known(starts)
        unclaimed = [start for start in starts if start.id not in claims and self._noted(start.id) is not None]
        for start in unclaimed:
            _fail([start], NotClaimed(start.id))
        await self._answer_each([start for start in starts if not start.result.done()], claims)

    async def _known(self, starts: Sequence[_Start]) -> dict[str, Claim | None]:
        """The ids that the ledger knows, each with its claim, or with None if the saga has a row."""
        if not starts:
            return {}
        ids = [start.id for start in starts]
        # In this order: the claim of a saga that ends meanwhile becomes a row.
        claims = await self._ledger.claims(ids)
        rows = await self._ledger.states(ids)
        return {**claims, **dict.fromkeys(rows)}

    async def _start_bulk(self, starts: Sequence[_Start]) -> None:
        if not starts:
            return
        try:
            id, accepted = await self._starter.start_bulk_accepted(
                [BulkRow(start.id, start.request) for start in starts]
            )
        except RPCError as error:
            if refusal_reason(error) is None:
                raise
            await self._start_parts(starts)
            return
        await self._answer_accepted(id, accepted, starts)

    async def _start_parts(self, starts: Sequence[_Start]) -> None:
        """Find the start that Temporal refuses: it must not keep the others from starting."""
        if len(starts) == 1:
            await self._answer_each(starts, {})
            return
        half = len(starts) // 2
        await self._start_bulk(starts[:half])
        await self._start_bulk(starts[half:])

    async def _wait_accepted(self, bulk_id: str, starts: Sequence[_Start]) -> None:
        handle = self._starter.locator.temporal.get_workflow_handle(bulk_id)
        await self._answer_accepted(bulk_id, await wait_accepted(handle, [start.id for start in starts]), starts)

    async def _answer_accepted(self, bulk_id: str, accepted: Acceptance | None, starts: Sequence[_Start]) -> None:
        """Answer when a worker has accepted the bulk workflow. Without an answer in time nobody knows whether one will:
        who starts the saga again waits for the same workflow."""
        if accepted is None:
            self._note_unclaimed(starts, bulk_id)
            for start in starts:
                _fail([start], NotClaimed(start.id))
            return
        for start in starts:
            self._unclaimed.pop(start.id, None)
            if (why := accepted.refused.get(start.id)) is not None:
                _fail([start], UsageError(why))
            elif start.id not in accepted.elsewhere:
                self._succeed(start, StartResult(start.id, "", True, bulk_id=bulk_id))
        others = [start for start in starts if start.id in accepted.elsewhere]
        await self._answer_each(others, await self._known(others))

    def _noted(self, saga_id: str) -> Claim | None:
        """Return what this process has started under the id, if nobody has claimed it in time."""
        noted = self._unclaimed.get(saga_id)
        return None if noted is None or noted.claimed_at < datetime.now(UTC) - _UNCLAIMED_FOR else noted

    def _note_unclaimed(self, starts: Sequence[_Start], bulk_id: str) -> None:
        saga = self._starter.definition.saga
        for start in starts:
            digest = input_digest(start.request.input)
            self._unclaimed[start.id] = Claim(start.id, bulk_id, saga, digest, datetime.now(UTC), start.request.labels)
        while len(self._unclaimed) > _MAX_UNCLAIMED:
            self._unclaimed.popitem(last=False)

    async def _answer_each(self, starts: Sequence[_Start], claims: Mapping[str, Claim | None]) -> None:
        """Answer starts one by one. ``claims``: the claims of their ids, as from :meth:`_known`."""
        claimed = [claim for start in starts if (claim := claims.get(start.id)) is not None]
        members = {member.claim.saga_id: member for member in await self._starter.locator.members(claimed)}
        for start in starts:
            member = members.get(start.id)
            if member is not None and member.open:
                self._answer_running(start, member.claim, member.bulk_id)
        others = [start for start in starts if not start.result.done()]
        await asyncio.gather(*(self._answer_alone(other) for other in others))

    def _answer_running(self, start: _Start, claim: Claim, bulk_id: str | None) -> None:
        try:
            self._starter.check_claim(claim, start.request.input)
        except RefusedError as error:
            _fail([start], error)
        else:
            self._succeed(start, StartResult(start.id, "", False, bulk_id=bulk_id))

    async def _answer_alone(self, start: _Start) -> None:
        try:
            self._succeed(start, await self._starter.start(start.request, id=start.id))
        except Exception as error:  # noqa: BLE001 - its caller raises it
            _fail([start], error)

    def _succeed(self, start: _Start, result: StartResult) -> None:
        if start.result.done():
            return
        noted = self._unclaimed.pop(start.id, None)
        # What this process started and could not confirm: it counts as started now.
        late = noted is not None and result.bulk_id in (None, noted.bulk_id)
        start.result.set_result(replace(result, started=True) if late else result)


def _result(start: _Start) -> StartResult | None:
    """The result of a start that has been answered with one."""
    result = start.result
    return result.result() if result.done() and not result.cancelled() and result.exception() is None else None


def _fail(starts: Sequence[_Start], error: Exception) -> None:
    for start in starts:
        if not start.result.done():
            start.result.set_exception(error)
