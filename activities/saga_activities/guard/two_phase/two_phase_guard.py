"""The protocol of two-phase commit: do prepares, confirm commits, undo rolls back; no timeout decides by itself.

Each operation can be repeated after a crash between any two of its statements: it reads what is there, and continues.
``rules`` defines what the rows mean.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard import database_errors, result_codec
from saga_activities.guard import rules as guard_rules
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.rules import GuardedBody, ScriptResult
from saga_activities.guard.script_transactions import outcome_of_error
from saga_activities.guard.transaction import GuardTransaction, RowLockTimeout, RowWrite
from saga_activities.guard.two_phase import rules
from saga_activities.guard.two_phase.mysql import MysqlPreparedTransactions
from saga_activities.guard.two_phase.participant import (
    DatabaseParticipant,
    PreparedTransactionBusy,
    TwoPhaseParticipant,
)
from saga_activities.guard.two_phase.postgresql import PostgresPreparedTransactions
from saga_activities.guard.two_phase.transaction_id import TransactionId
from sagas.errors import InfrastructureError, UsageError
from sagas.protocol.outcomes import Outcome

LOCK_WAIT = 2.0
"""Seconds to wait for the lock of ``do`` before the prepared transaction, which may hold it, is looked up again."""

BUSY_WAIT = 0.1
"""Seconds until a prepared transaction that another connection has is tried again."""

Script = Callable[[GuardTransaction, rules.Rows], Awaitable[ScriptResult]]
"""A change of the rows, which are passed as the lock of ``do`` protects them."""


def two_phase_guard(name: str, engine: AsyncEngine, isolation: str | None = None) -> TwoPhaseGuard:
    """The guard of a connection's prepared transactions. Raises :class:`UsageError` for SQLite."""
    match engine.dialect.name:
        case "postgresql":
            prepared = PostgresPreparedTransactions(engine)
        case "mysql" | "mariadb":
            prepared = MysqlPreparedTransactions(engine)
        case other:
            raise UsageError(
                f"connection {name}: {other} has no prepared transactions; use PostgreSQL, MySQL or MariaDB"
            )
    return TwoPhaseGuard(DatabaseParticipant(name, engine, prepared, isolation))


class TwoPhaseGuard:
    """The operations of a step with ``two_phase``. Times are seconds since the epoch, as in :class:`Guard`.

    No method raises for errors of a database or an action: they are part of the outcome.
    """

    def __init__(self, participant: TwoPhaseParticipant) -> None:
        self.participant = participant

    async def do(
        self,
        entry_key: EntryKey,
        arguments_hash: str | None,
        body: GuardedBody,
        *,
        scheduled_at: float,
        deadline: float,
        origin: str | None = None,
        room: int | None = None,
    ) -> Outcome:
        """Prepare the effect of ``body`` once; later attempts get its stored result. ``origin`` is stored with it.

        ``room``: see :mod:`sagas.protocol.result_room`.
        """
        return await _as_outcome(self._do(entry_key, arguments_hash, body, origin, room, scheduled_at, deadline))

    async def confirm(
        self, entry_key: EntryKey, *, scheduled_at: float, deadline: float, origin: str | None = None
    ) -> Outcome:
        """Commit the prepared transaction; ``late`` if the step is not done or was undone."""
        return await _as_outcome(self._confirm(entry_key, scheduled_at, deadline, origin))

    async def undo(
        self,
        entry_key: EntryKey,
        *,
        known_done: bool = False,
        forward_hash: str | None = None,
        scheduled_at: float,
        deadline: float,
        origin: str | None = None,
    ) -> Outcome:
        """Roll back the prepared transaction, and refuse every later attempt. Markers as of :meth:`Guard.undo`."""
        return await _as_outcome(self._undo(entry_key, known_done, forward_hash, None, scheduled_at, deadline, origin))

    async def seal(
        self, entry_key: EntryKey, *, scheduled_at: float, deadline: float, origin: str | None = None
    ) -> Outcome:
        """Find out whether the effect is prepared or committed; if not, make sure that it never is.

        Outcomes as of :meth:`Guard.seal`.
        """
        return await _as_outcome(self._seal(entry_key, scheduled_at, deadline, origin))

    async def record_manual_result(
        self,
        entry_key: EntryKey,
        op: str,
        result: object,
        *,
        scheduled_at: float,
        deadline: float,
        origin: str | None = None,
    ) -> Outcome:
        """Record an operator's decision that ``op`` (do, undo or confirm) is done with ``result``.

        What is prepared or stored wins. Raises ``ValueError`` for any other ``op``.
        """
        encoded = ManualResult(result_codec.encode(result))
        match op:
            case "do":
                recorded = self._record_do(entry_key, encoded, scheduled_at, deadline, origin)
            case "undo":
                recorded = self._undo(entry_key, True, None, encoded, scheduled_at, deadline, origin)
            case "confirm":
                recorded = self._confirm(entry_key, scheduled_at, deadline, origin, encoded)
            case _:
                raise ValueError(f"an operator can record a result of do, undo or confirm, not {op}")
        return await _as_outcome(recorded)

    async def _do(
        self,
        entry_key: EntryKey,
        args_hash: str | None,
        body: GuardedBody,
        origin: str | None,
        room: int | None,
        scheduled_at: float,
        deadline: float,
    ) -> Outcome:
        run, id = 0, None

        async def begin(tx: GuardTransaction, rows: rules.Rows) -> ScriptResult:
            nonlocal run, id
            if stored := rules.do_outcome(rows, args_hash, origin):
                return ScriptResult(stored)
            marker = rows["do"].result if "do" in rows else rules.new_marker()
            run, id = rules.current_run(rows) + 1, rules.transaction_id(entry_key, marker)
            for earlier in rules.earlier_runs(rows):
                await tx.delete(rules.run_op(earlier))
            first = {"args_hash": args_hash, "result": marker, "origin": origin}
            if "do" not in rows and not await tx.insert("do", "do", **first):
                raise InfrastructureError("another attempt has begun this step at the same time")
            await tx.insert(rules.run_op(run), "do")
            return ScriptResult(Outcome.done(attempt=None), commit=True)

        async def prepared(rows: rules.Rows) -> Outcome | None:
            if stored := rules.do_outcome(rows, args_hash, origin):
                return stored
            return await self._prepared_result(entry_key, rows, args_hash, scheduled_at, deadline)

        begun = await self._decide(entry_key, prepared, begin, scheduled_at, deadline)
        if begun.kind != "done" or id is None:
            return begun

        async def apply(tx: GuardTransaction) -> ScriptResult:
            await tx.lock_do()
            rows = await tx.rows(locked=False)
            if stored := rules.do_outcome(rows, args_hash, origin):
                return ScriptResult(stored)
            if not rules.may_prepare(rows, run) or not await tx.insert(rules.COMMITTED, "do"):
                raise InfrastructureError("a later attempt of this step has taken over")
            result = result_codec.encode(await body(tx.sql), room)
            outcome = Outcome.done(result_codec.decode(result), attempt=None)
            return ScriptResult(outcome, commit=True, row_write=RowWrite("do", result))

        return await self.participant.prepare(id, run, apply, scheduled_at, deadline)

    async def _confirm(
        self,
        entry_key: EntryKey,
        scheduled_at: float,
        deadline: float,
        origin: str | None,
        manual: ManualResult | None = None,
    ) -> Outcome:
        async def commit(rows: rules.Rows) -> Outcome | None:
            if stored := rules.confirm_outcome(rows, origin):
                return stored
            if not rules.is_committed(rows):
                await self._end_prepared(entry_key, rows, deadline, commit=True)
            return None

        async def record(tx: GuardTransaction, rows: rules.Rows) -> ScriptResult:
            if stored := rules.confirm_outcome(rows, origin):
                return ScriptResult(stored)
            if not rules.is_committed(rows) and manual is None:
                return ScriptResult(rules.lost_transaction())
            result = None if manual is None else manual.encoded
            await tx.insert("confirm", "confirm", result=result)
            return ScriptResult(Outcome.done(result_codec.decode(result), attempt=None), commit=True)

        return await self._decide(entry_key, commit, record, scheduled_at, deadline)

    async def _undo(
        self,
        entry_key: EntryKey,
        known_done: bool,
        forward_hash: str | None,
        manual: ManualResult | None,
        scheduled_at: float,
        deadline: float,
        origin: str | None = None,
    ) -> Outcome:
        rolled_back = False

        def stored_outcome(rows: rules.Rows) -> Outcome | None:
            if manual is not None and guard_rules.is_of_another(rows, origin):
                return guard_rules.nothing_to_undo()
            if manual is not None and "undo" not in rows:
                return None
            return rules.undo_outcome(rows, known_done, forward_hash, origin)

        async def roll_back(rows: rules.Rows) -> Outcome | None:
            nonlocal rolled_back
            if stored := stored_outcome(rows):
                return stored
            if await self._end_prepared(entry_key, rows, deadline, commit=False):
                rolled_back = True
            return None

        async def record(tx: GuardTransaction, rows: rules.Rows) -> ScriptResult:
            if stored := stored_outcome(rows):
                return ScriptResult(stored)
            if manual is None and not known_done and not rolled_back:
                return await _refuse(tx, rows, guard_rules.nothing_to_undo())
            result = None if manual is None else manual.encoded
            await _refuse_attempts(tx, rows)
            await tx.insert("confirm", "undo")
            await tx.insert("undo", "undo", result=result)
            return ScriptResult(Outcome.done(result_codec.decode(result), attempt=None), commit=True)

        return await self._decide(entry_key, roll_back, record, scheduled_at, deadline)

    async def _seal(self, entry_key: EntryKey, scheduled_at: float, deadline: float, origin: str | None) -> Outcome:
        async def prepared(rows: rules.Rows) -> Outcome | None:
            if stored := rules.seal_outcome(rows, origin):
                return stored
            return await self._prepared_result(entry_key, rows, None, scheduled_at, deadline)

        async def record(tx: GuardTransaction, rows: rules.Rows) -> ScriptResult:
            if stored := rules.seal_outcome(rows, origin):
                return ScriptResult(stored)
            return await _refuse(tx, rows, guard_rules.sealed())

        return await self._decide(entry_key, prepared, record, scheduled_at, deadline)

    async def _record_do(
        self, entry_key: EntryKey, manual: ManualResult, scheduled_at: float, deadline: float, origin: str | None
    ) -> Outcome:
        async def prepared(rows: rules.Rows) -> Outcome | None:
            if stored := rules.do_outcome(rows, None, origin):
                return stored
            return await self._prepared_result(entry_key, rows, None, scheduled_at, deadline)

        async def record(tx: GuardTransaction, rows: rules.Rows) -> ScriptResult:
            if stored := rules.do_outcome(rows, None, origin):
                return ScriptResult(stored)
            for earlier in rules.earlier_runs(rows):
                await tx.delete(rules.run_op(earlier))
            await tx.insert("do", "do", result=rules.new_marker(), origin=origin)
            await tx.insert(rules.COMMITTED, "do", result=manual.encoded)
            return ScriptResult(Outcome.done(result_codec.decode(manual.encoded), attempt=None), commit=True)

        return await self._decide(entry_key, prepared, record, scheduled_at, deadline)

    async def _end_prepared(self, entry_key: EntryKey, rows: rules.Rows, deadline: float, *, commit: bool) -> bool:
        id = _transaction_id(entry_key, rows)
        return id is not None and await self.participant.end_prepared(id, deadline, commit=commit)

    async def _prepared_result(
        self, entry_key: EntryKey, rows: rules.Rows, args_hash: str | None, scheduled_at: float, deadline: float
    ) -> Outcome | None:
        """``done`` with the stored result if the effect is prepared; None if it is not."""
        id = _transaction_id(entry_key, rows)
        if id is None or not await self.participant.is_prepared(id, deadline):
            return None
        latest = await self._read(entry_key, scheduled_at, deadline)  # the result was stored before the PREPARE
        if isinstance(latest, Outcome):
            return latest
        return rules.do_outcome(latest, args_hash) or rules.result_of(latest)

    async def _decide(
        self,
        entry_key: EntryKey,
        look: Callable[[rules.Rows], Awaitable[Outcome | None]],
        change: Script,
        scheduled_at: float,
        deadline: float,
    ) -> Outcome:
        """Repeat {``look`` at what is stored and prepared; ``change`` the rows with `do` locked} until one decides.

        The lock may be held by an attempt, which then prepares or ends, or by a prepared transaction.
        """
        while True:
            rows = await self._read(entry_key, scheduled_at, deadline)
            if isinstance(rows, Outcome):
                return rows
            try:
                if decided := await look(rows):
                    return decided
            except PreparedTransactionBusy:
                if deadline - time.time() < BUSY_WAIT:
                    raise
                await asyncio.sleep(BUSY_WAIT)
                continue
            locked = False

            async def with_lock(tx: GuardTransaction) -> ScriptResult:
                nonlocal locked
                current = await tx.rows(locked=False)
                if "do" in current:
                    try:
                        await tx.lock_do()
                    except RowLockTimeout:
                        locked = True
                        raise
                    current = await tx.rows(locked=False)
                return await change(tx, current)

            wait = min(deadline, time.time() + LOCK_WAIT)
            outcome = await self.participant.change_rows(entry_key, with_lock, scheduled_at, wait)
            if not locked or deadline - time.time() < LOCK_WAIT / 2:
                return outcome

    async def _read(self, entry_key: EntryKey, scheduled_at: float, deadline: float) -> rules.Rows | Outcome:
        """The rows without waiting for a lock; an outcome if they cannot be read."""
        rows: rules.Rows = {}

        async def read(tx: GuardTransaction) -> ScriptResult:
            nonlocal rows
            rows = await tx.rows(locked=False)
            return ScriptResult(Outcome.done(attempt=None))

        outcome = await self.participant.change_rows(entry_key, read, scheduled_at, deadline)
        return rows if outcome.kind == "done" else outcome


class ManualResult:
    """The encoded result that an operator has given."""

    def __init__(self, encoded: str | None) -> None:
        self.encoded = encoded


def _transaction_id(entry_key: EntryKey, rows: rules.Rows) -> TransactionId | None:
    """The id of the transaction of this entry; None if no attempt has begun."""
    return rules.transaction_id(entry_key, rows["do"].result) if "do" in rows else None


async def _refuse(tx: GuardTransaction, rows: rules.Rows, outcome: Outcome) -> ScriptResult:
    """Seal the step: nothing was prepared, and nothing ever will be."""
    await _refuse_attempts(tx, rows)
    await guard_rules.seal_other_rows(tx)
    return ScriptResult(outcome, commit=True)


async def _refuse_attempts(tx: GuardTransaction, rows: rules.Rows) -> None:
    if "do" in rows:
        await tx.refuse_do()
    elif not await tx.insert("do", "undo"):
        raise InfrastructureError("an attempt has begun this step at the same time")


async def _as_outcome(operation: Awaitable[Outcome]) -> Outcome:
    """The outcome of an operation; errors outside its transactions also become one."""
    try:
        return await operation
    except Exception as error:  # noqa: BLE001 - becomes an outcome
        classified = database_errors.classify_database_error(error)
        if classified is not None and classified.connection_lost:
            outcome = database_errors.failed_outcome(classified, error)
            return Outcome("unknown", failure=outcome.failure, infrastructure=True, answered=outcome.answered)
        return outcome_of_error(error)
