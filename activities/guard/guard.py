"""The guard: a step's effect happens exactly once, or provably never. One guard per database.

It keeps a row for every operation of a step in the same local transaction as the effect (a sub-transaction
barrier with memory). What the rows mean is in ``protocol``; this file runs a script in a transaction and says
in an :class:`~sagas.outcomes.Outcome` how that ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncEngine

from activities.guard import errors, protocol
from activities.guard.address import Address
from activities.guard.codec import UnusableResult
from activities.guard.keeping import kept_alive
from activities.guard.protocol import Body, Mode, Verdict
from activities.guard.sql_handle import Sql
from activities.guard.transaction import BelowWatermark, LostCommit, RowOp, Transaction
from activities.guard.transactions import begin
from sagas.errors import AlreadyCompensated, Infrastructure, Parked, Rejected
from sagas.outcomes import Failure, Outcome

Script = Callable[[Transaction], Awaitable[Verdict]]

ROOM = 0.9
"""The part of an attempt's time that it may wait for a connection: the rest is for saying that none was free, before
the platform calls the attempt unknown."""

ANSWER_TIME = 10.0
"""Seconds a COMMIT may take beyond its attempt's deadline, and a re-read after a lost one. The effect is made by
then, so an answer is worth more than punctuality."""


_OPEN = object()


class Guard:
    """The guard of one connection. All times are seconds since the epoch.

    ``scheduled_at`` is when the platform scheduled the attempt (the watermark is compared with it), ``deadline``
    when the attempt ends: no transaction outlives it. No method raises for what a participant, a database or an
    action does: that is in the outcome. A cancelled call rolls back first, unless COMMIT is on its way.

    ``idle_limit`` (seconds) is for bodies that are busy elsewhere for long: the server ends the transaction of a
    process that has frozen by then, and while the body works something is said often enough. None: such a
    transaction ends with its attempt.
    """

    def __init__(self, name: str, engine: AsyncEngine, *, isolation: str | None = None) -> None:
        self.name = name
        self.engine = engine
        self._isolation = isolation

    async def do(
        self,
        address: Address,
        arguments_hash: str | None,
        body: Body,
        *,
        scheduled_at: float,
        deadline: float,
        idle_limit: float | None = None,
    ) -> Outcome:
        """Run ``body`` once; later deliveries get its stored result."""
        body = kept_alive(body, idle_limit)
        return await self._run(
            address,
            "do",
            lambda tx: protocol.do(tx, arguments_hash, body),
            scheduled_at,
            deadline,
            arguments_hash,
            idle_limit,
        )

    async def undo(
        self,
        address: Address,
        body: Body | None,
        *,
        mode: Mode = "decide",
        known_done: bool = False,
        confirmed_body: Body | Literal["elsewhere"] | None = None,
        scheduled_at: float,
        deadline: float,
        idle_limit: float | None = None,
    ) -> Outcome:
        """Undo the step, or see to it that it never happens; see :class:`sagas.machine.commands.Guard`.

        Markers: ``nothing_to_undo``, ``elsewhere`` (mode ``mark``), ``confirmed`` (done: decided, and what undoes it
        lives elsewhere; else with ``parks``) and ``unknown_effect`` (with ``parks``). ``confirmed_body`` undoes a
        confirmed step.
        """
        op: RowOp = "own_undo" if mode == "own" else "undo"
        body = body and kept_alive(body, idle_limit)
        if callable(confirmed_body):
            confirmed_body = kept_alive(confirmed_body, idle_limit)
        return await self._run(
            address,
            op,
            lambda tx: protocol.undo(tx, body, confirmed_body, known_done, mode),
            scheduled_at,
            deadline,
            idle_limit=idle_limit,
        )

    async def confirm(
        self,
        address: Address,
        body: Body | None,
        *,
        mode: Mode = "decide",
        scheduled_at: float,
        deadline: float,
        idle_limit: float | None = None,
    ) -> Outcome:
        """Confirm a step that is done; ``late`` when it was not done or has been undone."""
        op: RowOp = "own_confirm" if mode == "own" else "confirm"
        body = body and kept_alive(body, idle_limit)
        return await self._run(
            address, op, lambda tx: protocol.confirm(tx, body, mode), scheduled_at, deadline, idle_limit=idle_limit
        )

    async def seal(self, address: Address, *, scheduled_at: float, deadline: float) -> Outcome:
        """Marker ``sealed``: it never happened and never will; ``done`` with the stored result; or ``late``."""
        return await self._run(address, "seal", protocol.seal, scheduled_at, deadline)

    async def settle(
        self,
        address: Address,
        op: str,
        result: object,
        *,
        mode: Mode = "decide",
        scheduled_at: float,
        deadline: float,
    ) -> Outcome:
        """Write what a person says: ``op`` (do, undo or confirm) is done with ``result``. A row there wins."""

        async def said(_: Sql) -> object:
            return result

        if op == "do":
            return await self.do(address, None, said, scheduled_at=scheduled_at, deadline=deadline)
        if op == "undo":
            return await self.undo(
                address, said, mode=mode, confirmed_body=said, scheduled_at=scheduled_at, deadline=deadline
            )
        if op == "confirm":
            return await self.confirm(address, said, mode=mode, scheduled_at=scheduled_at, deadline=deadline)
        raise ValueError(f"a person can settle do, undo or confirm, not {op}")

    async def settle_held(self, address: Address, *, committed: bool, scheduled_at: float, deadline: float) -> Outcome:
        """Decide about the held events of an entry that nobody else decides about: released when its saga is past the
        commit point (``committed``), dropped when it ended without it. What has been decided already stays so."""
        script = protocol.release_held if committed else protocol.drop_held
        return await self._run(address, "confirm", script, scheduled_at, deadline)

    async def known(
        self, address: Address, op: RowOp, args_hash: str | None = None, *, deadline: float
    ) -> Outcome | None:
        """What the rows already say about an operation, without deciding anything; None: it is open.

        Saves the work before a transaction that would only find a stored result. Trouble is an answer too.
        """

        async def script(tx: Transaction) -> Verdict:
            told = protocol.told_again(op, await tx.rows(), args_hash)
            return Verdict(told or Outcome.done(_OPEN, attempt=None))

        told = await self._run(address, op, script, time.time(), deadline)
        return None if told.kind == "done" and told.result is _OPEN else told

    async def ask(self, address: Address, body: Body, *, scheduled_at: float, deadline: float) -> Outcome:
        """Run a probe's ``body`` in a transaction of its own that keeps no row; below the watermark it is ``late``."""

        async def script(tx: Transaction) -> Verdict:
            await tx.rows()
            return Verdict(Outcome.done(await body(tx.sql), attempt=None), commit=True)

        return await self._run(address, "do", script, scheduled_at, deadline)

    async def _run(
        self,
        address: Address,
        op: RowOp | Literal["seal"],
        script: Script,
        scheduled_at: float,
        deadline: float,
        args_hash: str | None = None,
        idle_limit: float | None = None,
    ) -> Outcome:
        if deadline <= time.time():
            return _timed_out("the attempt's time was over before it began")
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
                return _timed_out("the attempt's time was over; the transaction was rolled back")
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


def outcome_of(error: BaseException, doom: BaseException | None = None) -> Outcome:
    """The outcome of an attempt that was rolled back because of ``error``.

    ``doom`` is the first error of the transaction's statements: an action may dress a deadlock up as a rejection,
    and trouble of the infrastructure is never a business answer.
    """
    if doom is not None and (trouble := errors.classify(doom)) is not None and trouble.infrastructure:
        return errors.failed(trouble, doom)
    match error:
        case Rejected():
            return Outcome("rejected", failure=Failure("Rejected", error.message, error.details), retryable=False)
        case AlreadyCompensated():
            return protocol.late(str(error))
        case BelowWatermark():
            return protocol.late("this attempt is older than anything the database still remembers")
        case UnusableResult():
            return Outcome("failed", failure=Failure("UnusableResult", str(error)), retryable=False)
        case Infrastructure():
            return Outcome("failed", failure=Failure("Infrastructure", str(error)), infrastructure=True)
        case Parked():
            return Outcome(
                "failed", failure=Failure("Parked", error.why, error.details), retryable=False, parks=error.why
            )
    if (trouble := errors.classify(error)) is not None:
        return errors.failed(trouble, error)
    details = getattr(error, "details", None)
    name = type(error).__name__
    return Outcome("failed", failure=Failure(name, str(error) or name, details if isinstance(details, dict) else {}))


def _timed_out(message: str) -> Outcome:
    return Outcome("failed", failure=Failure("Timeout", message))
