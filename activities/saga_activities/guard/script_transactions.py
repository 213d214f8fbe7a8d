"""Runs a guard script in one transaction and returns an outcome however it ends.

After a lost COMMIT the rows are read on another connection; a stale connection of the pool is replaced once, and an
attempt is repeated once whose connection has lost its prepared statements.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal

import psycopg
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.action_errors import action_failure
from saga_activities.concurrency import uncancellable
from saga_activities.guard import commit_wait, database_errors, rules
from saga_activities.guard.commit_wait import await_commit
from saga_activities.guard.ended_transactions import TransactionEnded, TransactionVanished
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.mysql import MysqlTransaction
from saga_activities.guard.postgresql import PostgresTransaction
from saga_activities.guard.rules import ScriptResult
from saga_activities.guard.sql_session import UnexpectedRows
from saga_activities.guard.sqlalchemy_transaction import SqlAlchemyTransaction
from saga_activities.guard.sqlite import SqliteTransaction
from saga_activities.guard.transaction import (
    BelowWatermark,
    ChangesKept,
    GuardTransaction,
    LostCommit,
    RowOp,
    TransactionLimits,
)
from saga_activities.json_results import UnusableResult
from sagas.errors import (
    AlreadyCompensated,
    DefiniteFailure,
    InfrastructureError,
    NeedsOperator,
    Rejected,
    RowLocked,
    Unavailable,
    UsageError,
)
from sagas.protocol.outcomes import ROW_LOCKED, Failure, Outcome, refused_value, rejection
from sagas.text.author_errors import attribute_of
from sagas.text.author_values import text_of

GuardScript = Callable[[GuardTransaction], Awaitable[ScriptResult]]

ACQUIRE_FRACTION = 0.9
"""The fraction of an attempt's time that it may wait for a connection. The rest is for reporting that none was free,
before Temporal times the attempt out and it counts as unknown."""


@dataclass(frozen=True, slots=True)
class SentCommit:
    """The operation whose COMMIT was sent: after a lost response its rows tell whether it happened."""

    entry_key: EntryKey
    op: RowOp | Literal["seal"]
    scheduled_at: float
    args_hash: str | None


class ScriptTransactions:
    """Runs scripts on the database of one connection."""

    final_statement = "COMMIT"

    def __init__(self, name: str, engine: AsyncEngine, *, isolation: str | None = None) -> None:
        self.name = name
        self.engine = engine
        self.isolation = isolation

    async def run(
        self,
        entry_key: EntryKey,
        op: RowOp | Literal["seal"],
        script: GuardScript,
        scheduled_at: float,
        deadline: float,
        args_hash: str | None = None,
        idle_limit: float | None = None,
        read_only: bool = False,
    ) -> Outcome:
        """Run ``script`` in one transaction and return its outcome; its decision is stored with COMMIT.

        ``read_only``: the database refuses every write, which is an error of the definition.
        """
        if deadline <= time.time():
            return timeout_outcome("the attempt timed out before it began", answered=None)
        limits = TransactionLimits(scheduled_at, deadline, self.isolation, idle_limit, read_only)
        attempt = await self._run_script(entry_key, script, limits)
        if isinstance(attempt, _StaleConnection):  # e.g. the server was restarted; nothing has happened
            attempt = await self._run_script(entry_key, script, limits)
        if isinstance(attempt, _StaleConnection):
            return attempt.outcome
        if isinstance(attempt, Outcome):
            return attempt
        tx, verdict = attempt
        if not verdict.commit:
            await _roll_back(tx)
            return outcome_of_error(ChangesKept("it changes nothing")) if tx.kept_changes else verdict.outcome
        # Once COMMIT is sent, only its response tells the outcome.
        sent = SentCommit(entry_key, op, scheduled_at, args_hash)
        return await uncancellable(self._commit(tx, verdict, sent, deadline))

    async def _begin(self, entry_key: EntryKey, limits: TransactionLimits) -> GuardTransaction:
        return await begin_transaction(self.engine, entry_key, limits)

    async def _run_script(
        self, entry_key: EntryKey, script: GuardScript, limits: TransactionLimits
    ) -> tuple[GuardTransaction, ScriptResult] | Outcome | _StaleConnection:
        """Run the script up to, but not including, COMMIT; an outcome means that it was rolled back."""
        tx: GuardTransaction | None = None
        seconds = limits.deadline - time.time()
        end = asyncio.get_running_loop().time() + seconds
        limit = asyncio.timeout(seconds * ACQUIRE_FRACTION)
        try:
            async with limit:
                tx = await self._begin(entry_key, limits)
                limit.reschedule(end)
                verdict = await script(tx)
                tx.sql.check_statements()
                return tx, verdict
        except Exception as error:  # noqa: BLE001 - whatever an action raises becomes an outcome
            statement_error = None if tx is None else tx.sql.first_error
            is_of_the_action = _is_of_the_action(tx, statement_error)  # before the rollback ends what still runs
            await _roll_back(tx)
            if tx is not None and tx.kept_changes:
                return outcome_of_error(ChangesKept(text_of(error)))
            if limit.expired() and tx is None:
                return outcome_of_error(
                    database_errors.NoFreeConnection(
                        f"no connection of {self.name} was free in time; set pool_size higher, or run more workers"
                    ),
                    None,
                )
            if limit.expired():
                message = "the attempt timed out; the transaction was rolled back"
                return timeout_outcome(message, answered=is_of_the_action)
            if limits.read_only and database_errors.is_refused_write(statement_error or error):
                return refused_write_outcome(statement_error or error)
            classified = database_errors.classify_database_error(error)
            if tx is not None and not tx.answered and classified is not None and classified.connection_lost:
                return _StaleConnection(database_errors.failed_outcome(classified))
            outcome = outcome_of_error(error, statement_error)
            if is_of_the_action and not isinstance(error, SQLAlchemyError | psycopg.Error):
                outcome = replace(outcome, answered=True)
            cause = database_errors.classify_database_error(statement_error or error)
            is_stale = (cause is not None and cause.of_the_connection) or (
                tx is not None and tx.sql.refusal is not None
            )
            return _StaleConnection(outcome) if is_stale else outcome
        except BaseException:  # a cancelled attempt
            await _roll_back(tx)
            raise

    async def _commit(self, tx: GuardTransaction, result: ScriptResult, sent: SentCommit, deadline: float) -> Outcome:
        try:
            stored = await await_commit(tx.commit(result.row_write), deadline, lambda: self._find_effect(sent))
        except (LostCommit, TimeoutError) as error:
            await _roll_back(tx)
            return await self._recheck_commit(sent, error)
        except Exception as error:  # noqa: BLE001 - the database reported it: rolled back for certain
            await _roll_back(tx)
            return outcome_of_error(error, None)
        if stored is not None:
            await _roll_back(tx)  # of a connection whose response is lost
            return stored
        await tx.release()
        return result.outcome

    async def _recheck_commit(self, sent: SentCommit, error: Exception) -> Outcome:
        """After a lost COMMIT: if the effect is there, it happened; if not, the outcome is unknown, since it may
        still."""
        why = f"the response to {self.final_statement} was lost: {database_errors.message_of(error)}"
        try:
            stored = await self._find_effect(sent)
        except Exception as second:  # noqa: BLE001 - the outcome stays unknown, with both reasons
            stored = None
            why = f"{why}; the check of its outcome failed too: {database_errors.message_of(second)}"
        if stored is not None:
            return stored
        failure = Failure("Infrastructure", why)
        return Outcome("unknown", failure=failure, infrastructure=True, answered=False)

    async def _find_effect(self, sent: SentCommit) -> Outcome | None:
        """Read on another connection what the operation has stored; None: nothing, or nothing yet."""
        seconds = commit_wait.COMMIT_GRACE
        limits = TransactionLimits(sent.scheduled_at, time.time() + seconds, self.isolation)
        tx: GuardTransaction | None = None
        try:
            async with asyncio.timeout(seconds):
                tx = await begin_transaction(self.engine, sent.entry_key, limits)
                return rules.stored_outcome(sent.op, await tx.rows(), sent.args_hash)
        finally:
            await _roll_back(tx)


def _is_of_the_action(tx: GuardTransaction | None, statement_error: BaseException | None) -> bool:
    """Return whether the action failed, or took too long, between statements that the database has answered."""
    return tx is not None and tx.answered and not tx.unanswered and statement_error is None


@dataclass(frozen=True, slots=True)
class _StaleConnection:
    """The pool returned a dead connection, one whose prepared statements are gone, or one whose settings allow no
    statement, which a new session may no longer have. The attempt was rolled back.
    """

    outcome: Outcome


async def _roll_back(tx: GuardTransaction | None) -> None:
    """Roll back. If that fails, the connection is gone, and the server rolls back by itself."""
    if tx is None:
        return
    task = asyncio.ensure_future(tx.rollback())
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=commit_wait.COMMIT_GRACE)
        raise


_TRANSACTION_CLASSES = {
    "postgresql": PostgresTransaction,
    "mysql": MysqlTransaction,
    "mariadb": MysqlTransaction,
    "sqlite": SqliteTransaction,
}


async def begin_transaction(
    engine: AsyncEngine,
    entry_key: EntryKey,
    limits: TransactionLimits,
    kind: type[PostgresTransaction | SqlAlchemyTransaction] | None = None,
) -> GuardTransaction:
    """A transaction on a connection of the pool; nothing is sent before its first statement.

    ``kind``: a class other than the database's own.
    """
    kind = kind or _TRANSACTION_CLASSES[engine.dialect.name]
    connection = await engine.connect()
    try:
        return await kind.start(connection, entry_key, limits)
    except BaseException:
        # Also a cancelled attempt must return its connection: the pool has no more than its size.
        await connection.close()
        raise


def outcome_of_error(error: BaseException, statement_error: BaseException | None = None) -> Outcome:
    """The outcome of an attempt that was rolled back because of ``error``.

    ``statement_error`` is the first error of the transaction's statements. If it is an infrastructure error, it wins:
    an action may turn a deadlock into a rejection, but that is not a business decision. An error that a retry cannot
    heal wins over what an action raises instead, unless it has a meaning of its own.
    """
    if isinstance(error, ChangesKept):
        return _unknown_effect(_kept_changes(text_of(error)))
    if isinstance(error, TransactionVanished) or isinstance(statement_error, TransactionVanished):
        return _unknown_effect(text_of(error if statement_error is None else statement_error))
    if isinstance(error, TransactionEnded) and statement_error is not None:
        error = statement_error
    failed_statement = None if statement_error is None else database_errors.classify_database_error(statement_error)
    if failed_statement is not None and failed_statement.infrastructure:
        return database_errors.failed_outcome(failed_statement, statement_error)
    match error:
        case Rejected():
            return rejection(error)
        case AlreadyCompensated():
            return rules.late(text_of(error))
        case BelowWatermark():
            return rules.late(
                "this attempt is older than the watermark of the database, below which guard rows are purged"
            )
        case UnusableResult():
            return Outcome(
                "failed", failure=Failure("UnusableResult", text_of(error), {"cannot_heal": True}), retryable=False
            )
        case DefiniteFailure():
            return Outcome(
                "failed",
                failure=Failure(
                    attribute_of(error, "type", type(error).__name__), text_of(error), attribute_of(error, "details")
                ),
                retryable=False,
            )
        case UnexpectedRows():
            return Outcome("failed", failure=Failure("UnexpectedRows", text_of(error)), conflict=True)
        case UsageError():
            # The action uses the engine in an unsupported way; a retry cannot help.
            return Outcome("failed", failure=refused_value(text_of(error)), retryable=False)
        case InfrastructureError():
            return Outcome(
                "failed",
                failure=Failure("Infrastructure", text_of(error), attribute_of(error, "details")),
                infrastructure=True,
                counted=not isinstance(error, Unavailable),
                answered=not isinstance(error, database_errors.NoFreeConnection | Unavailable),
            )
        case RowLocked():
            # Not counted: the state machine repeats it until the saga has waited long enough.
            failure = Failure(ROW_LOCKED, text_of(error), attribute_of(error, "details"))
            return Outcome("failed", failure=failure, infrastructure=True, counted=False, answered=True)
        case NeedsOperator():
            why = text_of(attribute_of(error, "why", error))
            return Outcome(
                "failed",
                failure=Failure("Parked", why, attribute_of(error, "details")),
                retryable=False,
                park_reason=why,
            )
    if failed_statement is not None and failed_statement.healing is not None:
        return database_errors.failed_outcome(failed_statement, statement_error)
    if (classified := database_errors.classify_database_error(error)) is not None:
        return database_errors.failed_outcome(classified, error)
    return Outcome("failed", failure=action_failure(error))


def _kept_changes(why: str) -> str:
    return (
        "the attempt was rolled back, and the database kept its changes to a table without transactions (warning 1196):"
        f" find the rows that it wrote, and convert the table to InnoDB; rolled back because {why}"
    )


def _unknown_effect(message: str) -> Outcome:
    """The outcome of an attempt that has left changes: a retry would repeat them, and nobody can say that nothing
    happened.
    """
    return Outcome("unknown", failure=Failure("Parked", message[:1000]), retryable=False, park_reason=message[:1000])


def refused_write_outcome(error: BaseException) -> Outcome:
    """A statement of a read writes: a retry cannot help."""
    reason = " ".join(str(getattr(error, "orig", None) or error).split())
    message = f"a step without an effect, a check or a probe only reads, and its SQL writes: {reason}"
    return Outcome("failed", failure=refused_value(message[:500]), retryable=False)


def timeout_outcome(message: str, *, answered: bool | None) -> Outcome:
    """The attempt ran out of time before anything was decided. ``answered``: as that of :class:`Outcome`."""
    return Outcome("failed", failure=Failure("Timeout", message), answered=answered)
