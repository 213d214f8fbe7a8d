"""One participant database, as the protocol of two-phase commit needs it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from saga_activities.durable_commits import make_commits_durable
from saga_activities.guard import commit_wait, result_codec
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.script_transactions import (
    GuardScript,
    ScriptTransactions,
    SentCommit,
    begin_transaction,
)
from saga_activities.guard.stored_values import stored_values
from saga_activities.guard.transaction import GuardTransaction, TransactionLimits
from saga_activities.guard.two_phase import rules
from saga_activities.guard.two_phase.transaction_id import TransactionId
from saga_activities.session_settings import session_arguments
from saga_activities.value_places import result_place
from sagas.errors import InfrastructureError
from sagas.protocol.outcomes import Outcome

StoreResult = Callable[[str | None], Awaitable[None]]
"""Stores the result of a run in the guard, outside the transaction to prepare."""

_STORE_RESULT = text(
    "UPDATE saga_guard SET result = :result"
    " WHERE saga_id = :saga_id AND step = :step AND generation = :generation AND op = :op"
)


class PreparedTransactionBusy(InfrastructureError):
    """Another connection has the prepared transaction; it can be ended once that connection is closed."""


class PreparedTransactions(Protocol):
    """The prepared transactions of a database."""

    transaction_class: Any

    async def is_prepared(self, id: TransactionId) -> bool: ...

    async def end(self, id: TransactionId, *, commit: bool) -> bool: ...


class TwoPhaseParticipant(Protocol):
    """The four operations of the two-phase protocol in the database of a step. Times are seconds since the epoch."""

    async def change_rows(
        self, entry_key: EntryKey, script: GuardScript, scheduled_at: float, deadline: float
    ) -> Outcome:
        """Run ``script`` in a transaction on the guard's rows, and commit it."""
        ...

    async def prepare(
        self, id: TransactionId, run: int, script: GuardScript, scheduled_at: float, deadline: float
    ) -> Outcome:
        """Run ``script`` in a transaction, store its result for ``run`` outside of it, and prepare it."""
        ...

    async def is_prepared(self, id: TransactionId, deadline: float) -> bool:
        """Return whether the transaction is prepared."""
        ...

    async def end_prepared(self, id: TransactionId, deadline: float, *, commit: bool) -> bool:
        """Commit the prepared transaction or roll it back; False: there is none."""
        ...


class DatabaseParticipant:
    """A participant database of a server."""

    def __init__(self, name: str, engine: AsyncEngine, prepared: PreparedTransactions, isolation: str | None) -> None:
        self._prepared = prepared
        self._rows = RowTransactions(name, engine, isolation="READ COMMITTED")
        self._name, self._engine, self._isolation = name, engine, isolation

    async def change_rows(
        self, entry_key: EntryKey, script: GuardScript, scheduled_at: float, deadline: float
    ) -> Outcome:
        return await self._rows.run(entry_key, "do", script, scheduled_at, deadline)

    async def prepare(
        self, id: TransactionId, run: int, script: GuardScript, scheduled_at: float, deadline: float
    ) -> Outcome:
        preparation = Preparation(self._name, self._engine, self._prepared, id, run, self._isolation)
        return await preparation.run(id.entry_key, "do", script, scheduled_at, deadline)

    async def is_prepared(self, id: TransactionId, deadline: float) -> bool:
        async with asyncio.timeout(_seconds_until(deadline)):
            return await self._prepared.is_prepared(id)

    async def end_prepared(self, id: TransactionId, deadline: float, *, commit: bool) -> bool:
        async with asyncio.timeout(_seconds_until(deadline)):
            return await self._prepared.end(id, commit=commit)


class RowTransactions(ScriptTransactions):
    """Short transactions on the guard's rows.

    READ COMMITTED whatever the connection's isolation: what is read after the wait for a lock must be current.
    """

    async def _find_effect(self, sent: SentCommit) -> Outcome | None:
        """Nothing is looked for: the operation continues from whatever is there, so it is simply repeated."""
        return None


class Preparation(ScriptTransactions):
    """The transaction of run ``run`` that prepares the effect of a step."""

    final_statement = "PREPARE"

    def __init__(
        self,
        name: str,
        engine: AsyncEngine,
        prepared: PreparedTransactions,
        id: TransactionId,
        run: int,
        isolation: str | None,
    ) -> None:
        super().__init__(name, engine, isolation=isolation)
        self._prepared, self._id, self._run = prepared, id, run
        self._result: str | None = None

    async def _begin(self, entry_key: EntryKey, limits: TransactionLimits) -> GuardTransaction:
        kind = self._prepared.transaction_class
        tx: Any = await begin_transaction(self.engine, entry_key, limits, kind)
        tx.store_result = lambda result: self._store_result(entry_key, result)
        tx.transaction_id = self._id
        return tx

    async def _store_result(self, entry_key: EntryKey, result: str | None) -> None:
        """Store the result before the effect is prepared: later nobody could tell it to the attempt that follows.

        The connection is not one of the pool, whose connections may all be waiting here.
        """
        self._result = result
        url = self.engine.url
        arguments = session_arguments(url)
        engine = create_async_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=arguments)
        make_commits_durable(engine)
        op = rules.run_op(self._run)
        place = result_place(entry_key.saga_id, entry_key.entry, entry_key.generation, op)
        stored = stored_values(self.engine).encrypt_result(place, result)
        async with engine.connect() as connection:
            if (
                await connection.execute(_STORE_RESULT, {**entry_key.values, "op": op, "result": stored})
            ).rowcount != 1:
                raise InfrastructureError("a later attempt of this step has taken over")

    async def _find_effect(self, sent: SentCommit) -> Outcome | None:
        """After a lost PREPARE: it happened if the transaction is there; if not, it may still come."""
        async with asyncio.timeout(commit_wait.COMMIT_GRACE):
            if await self._prepared.is_prepared(self._id):
                return Outcome.done(result_codec.decode(self._result), attempt=None)
        return None


def _seconds_until(deadline: float) -> float:
    return max(0.05, deadline - time.time())
