"""The activities `saga.lock` and `saga.release`: a request for locks, and the release of what a saga holds.

Independent of Temporal: ``signal`` lets a waiting saga know that it has been granted its locks.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from sqlalchemy.exc import SQLAlchemyError

from saga_activities.attempt_context import AttemptContext
from saga_activities.automatic import row_locks
from saga_activities.automatic.row_changes import end_scope
from saga_activities.connections import DatabaseConnections
from saga_activities.guard.script_transactions import outcome_of_error
from saga_activities.locks.lock_table import Answer, Granted, LockTable
from saga_activities.locks.parked_holders import IsParked, reported_blockers
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import LOCK_ACTIVITY, RELEASE_ACTIVITY

log = logging.getLogger("saga.locks")

LOCK_ACTIVITIES = (LOCK_ACTIVITY, RELEASE_ACTIVITY)

SignalResult = Literal["signalled", "gone"]
SignalGranted = Callable[[str], Awaitable[SignalResult]]
"""Signals a workflow; ``gone``: it has ended. Raises the client's errors if the server does not answer."""

ObserveWait = Callable[[str, float], None]
"""Called with the name of the saga, and the seconds that it waited for its locks."""


async def _nobody_knows(saga_id: str) -> bool:
    return False


class LockActivities:
    """The lock requests and releases that one worker carries out."""

    def __init__(
        self,
        databases: DatabaseConnections,
        signal: SignalGranted,
        observe_wait: ObserveWait = lambda saga, seconds: None,
        is_parked: IsParked | None = None,
    ) -> None:
        self._databases = databases
        self._signal = signal
        self._observe_wait = observe_wait
        self._is_parked = is_parked or _nobody_knows
        self._tables: dict[str, LockTable] = {}

    async def perform(
        self, activity: str, request: Mapping[str, Any], attempt: AttemptContext, workflow_id: str
    ) -> Outcome:
        """Make one attempt. Its result is what :mod:`sagas.workflow.lock_calls` reads.

        Raises UsageError for an unknown connection, and what ``signal`` raises.
        """
        if activity == LOCK_ACTIVITY:
            return await self._acquire(request, attempt, workflow_id)
        return await self._release(request, attempt)

    async def _acquire(self, request: Mapping[str, Any], attempt: AttemptContext, workflow_id: str) -> Outcome:
        outcome = await self._table(request["connection"]).acquire(
            request["keys"],
            owner=request["owner"],
            holder=request["holder"],
            workflow_id=workflow_id,
            waits=request["waits"],
            scheduled_at=attempt.scheduled_at,
            deadline=attempt.deadline,
            start=request["start"],
        )
        if outcome.kind == "late":  # older than the watermark of the database
            return Outcome.done({"answer": "late"}, attempt=None)
        if outcome.kind != "done":
            return outcome
        answer: Answer = outcome.result
        if answer.waited is not None:
            self._observe_wait(attempt.saga, answer.waited)
        blockers = await reported_blockers(answer.blockers, self._is_parked)
        return Outcome.done({"answer": answer.answer, "blockers": blockers}, attempt=None)

    async def _release(self, request: Mapping[str, Any], attempt: AttemptContext) -> Outcome:
        owner = request["owner"]
        for connection in request.get("row_locks", ()):
            try:
                engine = self._databases.engine(connection)
                if scope := request.get("undo_scope"):
                    await end_scope(engine, owner, scope)
                else:
                    await row_locks.release(engine, owner, request["start"])
            except (SQLAlchemyError, OSError) as error:
                return outcome_of_error(error)
        connection = request.get("connection")
        if connection is None:
            return Outcome.done({}, attempt=None)
        outcome = await self.release(
            connection,
            owner,
            request["holder"],
            scheduled_at=attempt.scheduled_at,
            deadline=attempt.deadline,
            start=request["start"],
        )
        return outcome if outcome.kind != "done" else Outcome.done({}, attempt=None)

    async def release(
        self, connection: str, owner: str, holder: str, *, scheduled_at: float, deadline: float, start: str = ""
    ) -> Outcome:
        """Release the locks of a holder, and signal the sagas that have been granted theirs."""
        table, released, gone = self._table(connection), 0, [(owner, holder, start)]
        while gone:
            owner, holder, start = gone.pop()
            outcome = await table.release(
                owner=owner, holder=holder, scheduled_at=scheduled_at, deadline=deadline, start=start
            )
            if outcome.kind != "done":
                return outcome
            released += 1
            granted: list[Granted] = outcome.result
            # One that was terminated while it waited has not begun, so nobody needs its locks.
            gone = [
                (grant.owner, grant.holder, "") for grant in granted if await self._signal(grant.workflow_id) == "gone"
            ]
        return Outcome.done(released, attempt=None)

    def _table(self, connection: str) -> LockTable:
        if connection not in self._tables:
            self._tables[connection] = LockTable(connection, self._databases.engine(connection))
        return self._tables[connection]
