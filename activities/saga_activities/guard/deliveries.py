"""One delivery of a question to a guard: a script run in one transaction, told as an outcome however it ends.

A lost COMMIT is asked about on another connection; a connection that was dead already is tried once more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard import errors, protocol
from saga_activities.guard.address import Address
from saga_activities.guard.outcomes import outcome_of, timed_out
from saga_activities.guard.protocol import Verdict
from saga_activities.guard.sql_handle import Sql
from saga_activities.guard.transaction import LostCommit, RowOp, Transaction
from saga_activities.guard.transactions import begin
from sagas.errors import Infrastructure
from sagas.outcomes import Failure, Outcome

Script = Callable[[Transaction], Awaitable[Verdict]]

ROOM = 0.9
"""The part of an attempt's time that it may wait for a connection: the rest is for saying that none was free, before
the platform calls the attempt unknown."""

ANSWER_TIME = 10.0
"""Seconds a COMMIT may take beyond its attempt's deadline, and a re-read after a lost one. The effect is made by
then, so an answer is worth more than punctuality."""


class Deliveries:
    """Runs scripts on the database of one connection."""

    def __init__(self, name: str, engine: AsyncEngine, *, isolation: str | None = None) -> None:
        self.name = name
        self.engine = engine
        self._isolation = isolation

    async def run(
        self,
        address: Address,
        op: RowOp | Literal["seal"],
        script: Script,
        scheduled_at: float,
        deadline: float,
        args_hash: str | None = None,
        idle_limit: float | None = None,
    ) -> Outcome:
        """Run ``script`` in one transaction and say how that ended; what it decided is saved with COMMIT."""
        if deadline <= time.time():
            return timed_out("the attempt's time was over before it began")
        attempt = await self._try(address, script, scheduled_at, deadline, idle_limit)
        if isinstance(attempt, _Stale):  # the server was restarted; nothing of ours has run yet
            attempt = await self._try(address, script, scheduled_at, deadline, idle_limit)
        if isinstance(attempt, _Stale):
            return errors.failed(attempt.trouble)
        if isinstance(attempt, Outcome):
            return attempt
        tx, verdict = attempt
        if not verdict.commit:
            await _roll_back(tx)
            return verdict.outcome
        return await _finish(self._commit(tx, verdict, address, op, scheduled_at, args_hash))

    async def _try(
        self, address: Address, script: Script, scheduled_at: float, deadline: float, idle_limit: float | None
    ) -> tuple[Transaction, Verdict] | Outcome | _Stale:
        """Run the script up to, not including, COMMIT; an outcome means it was rolled back."""
        tx: Transaction | None = None
        left = deadline - time.time()
        limit, room = asyncio.timeout(left), asyncio.timeout(left * ROOM)
        try:
            async with limit:
                async with room:
                    tx = await begin(
                        self.engine,
                        address,
                        scheduled_at=scheduled_at,
                        deadline=deadline,
                        isolation=self._isolation,
                        idle_limit=idle_limit,
                    )
                verdict = await script(tx)
                _refuse_doomed(tx.sql)
                return tx, verdict
        except Exception as error:  # noqa: BLE001 - whatever an action raises is an outcome, never a crash
            doom = None if tx is None else tx.sql.error
            await _roll_back(tx)
            if room.expired():
                return outcome_of(Infrastructure("no connection to the database was free in time"), None)
            if limit.expired():
                return timed_out("the attempt's time was over; the transaction was rolled back")
            trouble = errors.classify(error)
            if tx is not None and not tx.answered and trouble is not None and trouble.lost:
                return _Stale(trouble)
            return outcome_of(error, doom)
        except BaseException:  # a cancelled attempt
            await _roll_back(tx)
            raise

    async def _commit(
        self,
        tx: Transaction,
        verdict: Verdict,
        address: Address,
        op: RowOp | Literal["seal"],
        scheduled_at: float,
        args_hash: str | None,
    ) -> Outcome:
        try:
            async with asyncio.timeout(ANSWER_TIME):
                await tx.commit(verdict.save)
        except (LostCommit, TimeoutError) as error:
            await _roll_back(tx)
            return await self._ask_again(address, op, scheduled_at, args_hash, error)
        except Exception as error:  # noqa: BLE001 - a definite answer of the database: it was rolled back
            await _roll_back(tx)
            return outcome_of(error, None)
        await tx.release()
        return verdict.outcome

    async def _ask_again(
        self,
        address: Address,
        op: RowOp | Literal["seal"],
        scheduled_at: float,
        args_hash: str | None,
        error: Exception,
    ) -> Outcome:
        """After a lost COMMIT: the row is there, so it happened; it is not, so nobody knows yet."""
        deadline = time.time() + ANSWER_TIME
        tx: Transaction | None = None
        told: Outcome | None = None
        why = f"the answer to COMMIT got lost: {error}"
        try:
            async with asyncio.timeout(ANSWER_TIME):
                tx = await begin(
                    self.engine, address, scheduled_at=scheduled_at, deadline=deadline, isolation=self._isolation
                )
                told = protocol.told_again(op, await tx.rows(), args_hash)
        except Exception as second:  # noqa: BLE001 - the outcome stays unknown, and says both reasons
            why = f"{why}; asking again failed too: {second}"
        finally:
            await _roll_back(tx)
        if told is not None:
            return told
        return Outcome("unknown", failure=Failure("Infrastructure", why), infrastructure=True)


@dataclass(frozen=True, slots=True)
class _Stale:
    """The pool gave a connection that was dead already."""

    trouble: errors.Trouble


async def _finish(commit: Awaitable[Outcome]) -> Outcome:
    """Wait for a COMMIT through any cancellation: once it is sent, only its answer is the truth."""
    task = asyncio.ensure_future(commit)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
    return task.result()


async def _roll_back(tx: Transaction | None) -> None:
    """Take everything back. If even that fails, the connection is gone, and the server rolls back by itself."""
    if tx is None:
        return
    task = asyncio.ensure_future(tx.rollback())
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=ANSWER_TIME)
        raise


def _refuse_doomed(sql: Sql) -> None:
    """An action that swallowed a statement's error must not commit what is left of its effect."""
    if sql.error is not None:
        raise sql.error
