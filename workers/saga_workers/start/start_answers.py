"""Starts the sagas that share a bulk workflow, and answers their callers.

Each caller gets the result that a start of its own would have given. An id that the ledger knows is answered from
there; the bulk workflow claims the others. If no worker does so in time, they do not count as started: it may still
refuse the workflow. A caller that starts one of them again waits for the same workflow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from temporalio.service import RPCError

from saga_activities.ledger.records import Claim
from saga_workers.bulk.acceptance import Acceptance, NotClaimed, wait_accepted
from saga_workers.location.location import BulkMember
from saga_workers.start.gathered_starts import GatheredStarts, WaitingStart
from saga_workers.start.saga_starter import SagaStarter
from saga_workers.start.start_requests import BulkRow, StartResult
from saga_workers.start.unclaimed_starts import UnclaimedStarts
from saga_workers.temporal.refusals import refusal_reason
from sagas.errors import UsageError
from sagas.protocol.payloads import input_digest


class StartAnswers:
    """Answers the starts of one saga."""

    def __init__(self, starter: SagaStarter) -> None:
        self._starter = starter
        self._ledger = starter.locator.ledger
        self._unclaimed = UnclaimedStarts()

    async def answer(self, gathered: GatheredStarts) -> None:
        # A caller that has given up need not be started.
        starts = [start for start in gathered.starts.values() if not start.answer.done()]
        if len(starts) == 1 and not gathered.repeats and self._unclaimed.find(starts[0].id) is None:
            await self._answer_singly(starts[0])  # a bulk workflow of one takes longer than a workflow of its own
            return
        await self._answer_together(starts)
        await self._answer_repeats(gathered.repeats)

    async def _answer_together(self, starts: Sequence[WaitingStart]) -> None:
        claims = await self._claims(starts)
        new: list[WaitingStart] = []
        waiting: dict[str, list[WaitingStart]] = {}
        for start in starts:
            if start.id in claims:
                continue
            unclaimed = self._unclaimed.find(start.id)
            if unclaimed is None:
                new.append(start)
            elif unclaimed.input_digest == input_digest(start.request.input):
                waiting.setdefault(unclaimed.bulk_id, []).append(start)
            else:
                start.fail(NotClaimed(start.id))
        await asyncio.gather(
            self._start_bulk(new),
            self._answer_each([start for start in starts if start.id in claims], claims),
            *(self._wait_accepted(id, some) for id, some in waiting.items()),
        )

    async def _answer_repeats(self, starts: Sequence[WaitingStart]) -> None:
        claims = await self._claims(starts)
        for start in starts:
            if start.id not in claims and self._unclaimed.find(start.id) is not None:
                start.fail(NotClaimed(start.id))
        await self._answer_each([start for start in starts if not start.answer.done()], claims)

    async def _claims(self, starts: Sequence[WaitingStart]) -> dict[str, Claim | None]:
        """The ids that the ledger knows, each with its claim, or with None if the saga has a row."""
        if not starts:
            return {}
        ids = [start.id for start in starts]
        # In this order: the claim of a saga that ends meanwhile becomes a row.
        claims = await self._ledger.claims(ids)
        rows = await self._ledger.states(ids)
        return {**claims, **dict.fromkeys(rows)}

    async def _start_bulk(self, starts: Sequence[WaitingStart]) -> None:
        """Start sagas in a bulk workflow. If Temporal refuses it, each half gets one, until the start that it refuses
        is alone: that must not keep the others from starting.
        """
        if not starts:
            return
        try:
            rows = [BulkRow(start.id, start.request) for start in starts]
            id, accepted = await self._starter.start_bulk_accepted(rows)
        except RPCError as error:
            if refusal_reason(error) is None:
                raise
            if len(starts) == 1:
                await self._answer_singly(starts[0])
                return
            half = len(starts) // 2
            await self._start_bulk(starts[:half])
            await self._start_bulk(starts[half:])
        else:
            await self._answer_accepted(id, accepted, starts)

    async def _wait_accepted(self, bulk_id: str, starts: Sequence[WaitingStart]) -> None:
        handle = self._starter.locator.temporal.get_workflow_handle(bulk_id)
        await self._answer_accepted(bulk_id, await wait_accepted(handle, [start.id for start in starts]), starts)

    async def _answer_accepted(self, bulk_id: str, accepted: Acceptance | None, starts: Sequence[WaitingStart]) -> None:
        """Answer when a worker has accepted the bulk workflow; None if no worker has answered in time, and one may yet
        accept it.
        """
        if accepted is None:
            self._unclaimed.note(starts, bulk_id)
            for start in starts:
                start.fail(NotClaimed(start.id))
            return
        for start in starts:
            self._unclaimed.forget(start.id)
            if (why := accepted.refused.get(start.id)) is not None:
                start.fail(UsageError(why))
            elif start.id not in accepted.elsewhere:
                start.succeed(StartResult(start.id, "", True, bulk_id=bulk_id))
        others = [start for start in starts if start.id in accepted.elsewhere]
        await self._answer_each(others, await self._claims(others))

    async def _answer_each(self, starts: Sequence[WaitingStart], claims: Mapping[str, Claim | None]) -> None:
        """Answer starts one by one. ``claims``: the claims of their ids, as from :meth:`_claims`."""
        claimed = [claim for start in starts if (claim := claims.get(start.id)) is not None]
        members = {member.claim.saga_id: member for member in await self._starter.locator.members(claimed)}
        await asyncio.gather(*(self._answer_singly(start, members.get(start.id)) for start in starts))

    async def _answer_singly(self, start: WaitingStart, member: BulkMember | None = None) -> None:
        """Answer a start by the saga of a bulk workflow that has claimed its id, or by a start of its own."""
        try:
            if member is not None and member.open:
                self._starter.check_claim(member.claim, start.request.input)
                result = StartResult(start.id, "", False, bulk_id=member.bulk_id)
            else:
                result = await self._starter.start(start.request, id=start.id)
        except Exception as error:  # noqa: BLE001 - its caller raises it
            start.fail(error)
        else:
            if not start.answer.done():
                start.succeed(self._unclaimed.confirmed(result))
