"""A participant database in memory whose operations stop before each statement, so that they can be interleaved.

The protocol is the real one; locks, transactions and prepared transactions are those of PostgreSQL, except that a wait
for a lock ends at once with its timeout.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.script_transactions import GuardScript, outcome_of_error
from saga_activities.guard.transaction import GuardRow, RowLockTimeout, RowReason, RowWrite
from saga_activities.guard.two_phase import rules
from saga_activities.guard.two_phase.transaction_id import TransactionId
from sagas.errors import InfrastructureError
from sagas.protocol.outcomes import Outcome


class NextStatement:
    """Awaited before each statement: the caller of the operation decides when it goes on."""

    def __await__(self) -> Generator[None]:
        yield


@dataclass(eq=False)
class MemoryTransaction:
    """An open transaction: its own rows (None: deleted), and the effect of the action."""

    database: MemoryDatabase
    rows_written: dict[str, GuardRow | None] = field(default_factory=dict)
    effect: str | None = None
    lost: bool = False
    answered: bool = True
    unanswered: bool = False
    kept_changes: bool = False

    @property
    def sql(self) -> Any:
        return self

    async def insert(
        self,
        op: str,
        reason: RowReason,
        *,
        args_hash: str | None = None,
        result: str | None = None,
        origin: str | None = None,
    ) -> bool:
        await self._statement()
        if any(other is not self and op in other.rows_written for other in self.database.open_transactions):
            raise RowLockTimeout("another transaction has inserted this row")
        if op in self._current():
            return False
        self.rows_written[op] = GuardRow(reason, args_hash, result)
        return True

    async def check_watermark(self) -> None: ...

    async def rows(self, *, locked: bool = True) -> Mapping[str, GuardRow]:
        await self._statement()
        return self._current()

    async def lock_do(self) -> None:
        await self._statement()
        if self.database.lock_holder not in (None, self):
            raise RowLockTimeout("another transaction has locked this row")
        self.database.lock_holder = self

    async def refuse_do(self) -> None:
        await self._statement()
        self.rows_written["do"] = replace(self._current()["do"], reason="undo")

    async def delete(self, op: str) -> None:
        await self._statement()
        self.rows_written[op] = None

    async def commit(self, row_write: RowWrite | None) -> None:
        raise NotImplementedError

    async def rollback(self) -> None: ...

    async def release(self) -> None: ...

    async def _statement(self) -> None:
        await NextStatement()
        if self.lost:
            raise InfrastructureError("the server has ended this transaction")

    def _current(self) -> dict[str, GuardRow]:
        merged = {**self.database.rows, **self.rows_written}
        return {op: row for op, row in merged.items() if row is not None}


@dataclass
class MemoryDatabase:
    """A database in memory: committed rows, the committed effects by their result, and the prepared transaction."""

    rows: dict[str, GuardRow] = field(default_factory=dict)
    effects: list[str] = field(default_factory=list)
    prepared: MemoryTransaction | None = None
    lock_holder: MemoryTransaction | None = None
    open_transactions: list[MemoryTransaction] = field(default_factory=list)

    def begin(self) -> MemoryTransaction:
        transaction = MemoryTransaction(self)
        self.open_transactions.append(transaction)
        return transaction

    def end(self, transaction: MemoryTransaction, *, commit: bool) -> None:
        """Commit or roll back; a transaction that has ended already stays as it is."""
        if transaction not in self.open_transactions:
            return
        self.open_transactions.remove(transaction)
        transaction.lost = True
        if self.lock_holder is transaction:
            self.lock_holder = None
        if self.prepared is transaction:
            self.prepared = None
        if commit:
            self.rows = transaction._current()
            if transaction.effect is not None:
                self.effects.append(transaction.effect)


class MemoryParticipant:
    """The participant of one operation; ``transactions`` are those it has open."""

    def __init__(self, database: MemoryDatabase, name: str) -> None:
        self.database = database
        self.transactions: list[MemoryTransaction] = []
        self.name = name

    async def change_rows(
        self, entry_key: EntryKey, script: GuardScript, scheduled_at: float, deadline: float
    ) -> Outcome:
        transaction = self._begin()
        try:
            verdict = await script(transaction)
            if verdict.commit:
                await transaction._statement()
            self.database.end(transaction, commit=verdict.commit)
            await NextStatement()  # its acknowledgement
            return verdict.outcome
        except InfrastructureError as error:
            self.database.end(transaction, commit=False)
            return outcome_of_error(error)

    async def prepare(
        self, id: TransactionId, run: int, script: GuardScript, scheduled_at: float, deadline: float
    ) -> Outcome:
        transaction = self._begin()
        try:
            verdict = await script(transaction)
            if verdict.commit:
                assert verdict.row_write is not None
                await self._store_result(run, verdict.row_write.result)
                await transaction._statement()
                assert self.database.prepared is None, "two transactions with the same id"
                self.database.prepared = transaction
                self.transactions.remove(transaction)
                await NextStatement()  # its acknowledgement
            else:
                self.database.end(transaction, commit=False)
            return verdict.outcome
        except InfrastructureError as error:
            self.database.end(transaction, commit=False)
            return outcome_of_error(error)

    async def _store_result(self, run: int, result: str | None) -> None:
        await NextStatement()
        op = rules.run_op(run)
        if op not in self.database.rows:
            raise InfrastructureError("a later attempt of this step has taken over")
        self.database.rows[op] = replace(self.database.rows[op], result=result)

    async def is_prepared(self, id: TransactionId, deadline: float) -> bool:
        await NextStatement()
        return self.database.prepared is not None

    async def end_prepared(self, id: TransactionId, deadline: float, *, commit: bool) -> bool:
        await NextStatement()
        transaction = self.database.prepared
        if transaction is not None:
            self.database.end(transaction, commit=commit)
        await NextStatement()  # its acknowledgement
        return transaction is not None

    def lose_transactions(self) -> None:
        """The server ends the open transactions of this operation: its worker is dead, or idle for too long."""
        for transaction in self.transactions:
            self.database.end(transaction, commit=False)

    def _begin(self) -> MemoryTransaction:
        transaction = self.database.begin()
        self.transactions.append(transaction)
        return transaction
