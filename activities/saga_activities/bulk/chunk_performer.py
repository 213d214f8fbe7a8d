"""Performs a chunk: equal calls of several sagas in one transaction, each with its own guard rows and outcome.

A transaction that fails for the sake of one item is repeated in ever smaller parts, so that in the end only that item
fails; a lost COMMIT is repeated as it is, and the guard answers for what was committed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from saga_activities.attempt_context import AttemptContext
from saga_activities.bodies.action_bodies import ActionBodies, wrong_arguments
from saga_activities.bodies.python_action import ActionNotRegistered
from saga_activities.bulk.chunk_order import sort_keys
from saga_activities.bulk.chunk_transaction import ChunkTransaction, begin_chunk
from saga_activities.bulk.effects import TIME_FOR_ITEMS, ChunkEffects, NeedsSavepoints, UnansweredItem
from saga_activities.bulk.guard_scripts import EntryScript, make_script, run_scripts
from saga_activities.bulk.result_room import result_size
from saga_activities.concurrency import uncancellable
from saga_activities.guard import commit_wait
from saga_activities.guard.commit_wait import await_commit
from saga_activities.guard.database_errors import (
    ClassifiedError,
    NoFreeConnection,
    classify_database_error,
    is_lock_timeout,
    is_refused_write,
)
from saga_activities.guard.ended_transactions import TransactionVanished
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.guard import Guard
from saga_activities.guard.script_transactions import (
    outcome_of_error,
    refused_write_outcome,
    timeout_outcome,
)
from saga_activities.guard.transaction import BelowWatermark, ChangesKept, LostCommit, TransactionLimits
from saga_activities.json_results import to_json_value
from sagas.errors import Unequipped
from sagas.protocol.outcomes import Failure, Outcome, refused_value
from sagas.protocol.payloads import Invocation
from sagas.text.digests import sha256_hex
from sagas.text.exact_numbers import comparable_json

_REPEATS = 3
"""Attempts of a transaction that deadlocks or cannot be serialised, before it is cut into halves."""

_ACQUIRE_FRACTION = 0.5
"""The fraction of a chunk's time that it may wait for a connection."""

_LEAST_TIME = 0.5
"""Seconds that a chunk must have left to begin one more part."""

_END_OF_READS = 0.8
"""The fraction of a chunk's time at which a call that only reads is interrupted; the results also have to be stored."""

IDLE_GRACE = 5.0
"""Seconds that a transaction may be idle beyond the timeout of its step. An item that computes up to this timeout ends
before the server ends the transaction, and the locks of a frozen worker do not remain until the chunk's time ends."""


class _OutOfTime(Exception):
    """A call was interrupted because the time of its chunk has run out: it is left to the next one."""


@dataclass(slots=True)
class _CallInChunk:
    """One call of the chunk. ``value``: what it has read already, if it only reads.

    ``outcome`` is None if it was not attempted, or its attempt was interrupted and rolled back.

    ``commit_lost``: a COMMIT with its effect was not answered, and may still be carried out.

    ``interrupted``: it was running on its own when its transaction was given up.
    """

    call: Invocation
    args_hash: str | None
    value: Any = None
    outcome: Outcome | None = None
    commit_lost: bool = False
    interrupted: bool = False


@dataclass(slots=True)
class _Progress:
    """The progress of a chunk. ``committed``: bytes of the results of its ended transactions; ``made``: one has ended,
    or a call has failed."""

    committed: int = 0
    made: bool = False


class ChunkPerformer:
    """Performs chunks on the database of one connection."""

    def __init__(self, guard: Guard, bodies: ActionBodies) -> None:
        self._guard = guard
        self._bodies = bodies

    async def perform(self, calls: Sequence[Invocation], attempt: AttemptContext) -> list[Outcome | None]:
        """The outcome of each call, in order; None if it had no effect, because the chunk had no time or no room for
        it.

        No error of an item raises: the others' outcomes are known by then, and some of them may be committed.
        """
        texts = [comparable_json(call.arguments) for call in calls]
        items = [
            _CallInChunk(call, sha256_hex(text) if call.op == "do" else None, outcome=wrong_arguments(call))
            for call, text in zip(calls, texts, strict=True)
        ]
        runnable = [index for index, item in enumerate(items) if item.outcome is None]
        keys = await sort_keys([calls[index] for index in runnable], self._guard.engine.dialect.name)
        order = {index: (key, texts[index]) for index, key in zip(runnable, keys, strict=True)}
        part = [items[index] for index in sorted(runnable, key=order.__getitem__)]
        if part and part[0].call.reads:
            part = await self._read(part, attempt)
        if part:
            await self._perform_part(part, attempt, _Progress(), isolated=False)
        return [item.outcome for item in items]

    async def _perform_part(
        self, part: Sequence[_CallInChunk], attempt: AttemptContext, progress: _Progress, *, isolated: bool
    ) -> None:
        outcome, concerns_all = timeout_outcome("the attempt timed out before it began", answered=None), True
        for repeat in range(1, _REPEATS + 1):
            try:
                await self._perform_once(part, attempt, progress, isolated=isolated)
                return
            except NeedsSavepoints:
                await self._perform_part(part, attempt, progress, isolated=True)
                return
            except LostCommit as error:
                failure = Failure("Infrastructure", f"the response to COMMIT was lost: {error}")
                outcome = Outcome("unknown", failure=failure, infrastructure=True, answered=False)
                concerns_all = True
                for item in part:
                    item.commit_lost = True
                if attempt.deadline - time.time() < _LEAST_TIME:
                    break
            except NoFreeConnection as error:  # a part would wait for the rest of the time, and find none either
                outcome, concerns_all = outcome_of_error(error), True
                break
            except TimeoutError:
                message = "the attempt timed out; the transaction was rolled back"
                outcome, concerns_all = timeout_outcome(message, answered=False), True
                # Only that of the item that hangs, if it is known; the others are left to the next chunk.
                part = [item for item in part if item.interrupted or item.commit_lost] or part
                break
            except Exception as error:  # noqa: BLE001 - becomes an outcome
                outcome, classified = outcome_of_error(error), classify_database_error(error)
                concerns_all = (
                    isinstance(error, BelowWatermark | ChangesKept | TransactionVanished)
                    or (classified or _NO_ERROR).connection_lost
                )
                if classified is None or not classified.infrastructure or is_lock_timeout(error):
                    break
            await asyncio.sleep(random.uniform(0.0, 0.05 * repeat))  # noqa: S311 - spreads repetitions
        if concerns_all or len(part) == 1:
            _end_all(part, outcome)
            progress.made = True
            return
        middle = len(part) // 2
        for half in (part[:middle], part[middle:]):
            if attempt.deadline - time.time() < _LEAST_TIME:
                # Left to the next chunk, unless this one would have no outcome at all, so that no attempt counts.
                _end_all([item for item in half if item.commit_lost or not progress.made], outcome)
                continue
            await self._perform_part(half, attempt, progress, isolated=isolated)

    async def _perform_once(
        self, part: Sequence[_CallInChunk], attempt: AttemptContext, progress: _Progress, *, isolated: bool
    ) -> None:
        """One transaction. Raises NeedsSavepoints, LostCommit, BelowWatermark or the error that rolled it back."""
        began = time.time()
        running: list[tuple[_CallInChunk, EntryScript]] = []
        for item in part:
            try:
                running.append((item, make_script(item.call, item.args_hash)))
            except ValueError as error:
                item.outcome = Outcome("failed", failure=refused_value(str(error)), retryable=False)
        if not running:
            return
        scripts = [script for _, script in running]
        values = {id(script): item.value for item, script in running} if part[0].call.reads else {}
        tx = effects = None
        try:
            tx = await self._begin(scripts[0].key, attempt, _idle_limit(part[0].call))
            async with asyncio.timeout(max(0.05, attempt.deadline - time.time())):
                effects = ChunkEffects(
                    tx,
                    self._bodies,
                    attempt,
                    began,
                    scripts,
                    isolated=isolated,
                    values=values,
                    idle_limit=_idle_limit(part[0].call),
                    committed=progress.committed,
                )
                await run_scripts(scripts, tx, effects.run)
        except BaseException as error:
            for item, script in running:
                item.interrupted = effects is not None and script is effects.alone
                script.coroutine.close()
            if tx is not None:
                await _roll_back(tx)
                if tx.kept_changes and isinstance(error, Exception):
                    raise ChangesKept("the chunk of this entry failed") from error
            raise
        await uncancellable(self._commit(tx, attempt, scripts))
        progress.made = True
        for item, script in running:
            item.outcome = _outcome_of(script)
            progress.committed += result_size(script)

    async def _commit(self, tx: ChunkTransaction, attempt: AttemptContext, scripts: Sequence[EntryScript]) -> None:
        """Raises LostCommit also if only the response is lost: the repetition then finds what is stored."""
        try:
            committed = await await_commit(
                tx.commit(None), attempt.deadline, lambda: self._find_inserted_row(attempt, scripts)
            )
            if committed:
                raise LostCommit("its effect is there")
        except BaseException:
            await _roll_back(tx)
            raise
        await tx.release()

    async def _find_inserted_row(self, attempt: AttemptContext, scripts: Sequence[EntryScript]) -> bool | None:
        """Read on another connection a row that the transaction has inserted; None if it is not there, or not yet."""
        rows = [(script.key, op) for script in scripts if script.commits for op in script.inserted]
        if not rows:
            return None
        key, op = rows[0]
        async with asyncio.timeout(commit_wait.COMMIT_GRACE):
            tx = await self._begin(key, attempt, IDLE_GRACE)
            try:
                return op in await tx.rows() or None
            finally:
                await _roll_back(tx)

    async def _begin(
        self, key: EntryKey, attempt: AttemptContext, idle_limit: float, *, read_only: bool = False
    ) -> ChunkTransaction:
        limits = TransactionLimits(attempt.scheduled_at, attempt.deadline, self._guard.isolation, idle_limit, read_only)
        try:
            async with asyncio.timeout((attempt.deadline - time.time()) * _ACQUIRE_FRACTION):
                return await begin_chunk(self._guard.engine, key, limits)
        except TimeoutError:
            raise NoFreeConnection("no connection to the database was free in time") from None

    # --- calls that only read ----------------------------------------------------------------------------------

    async def _read(self, part: Sequence[_CallInChunk], attempt: AttemptContext) -> list[_CallInChunk]:
        """Run the statements in a transaction that refuses writes; returns the calls whose results are to be stored."""
        first, began, done = part[0].call, time.time(), 0
        stop_at, end_at = (began + share * (attempt.deadline - began) for share in (TIME_FOR_ITEMS, _END_OF_READS))
        key = EntryKey(first.saga_id, first.entry, first.generation)
        try:
            tx = await self._begin(key, attempt, _idle_limit(first), read_only=True)
        except Exception as error:  # noqa: BLE001 - becomes the outcome of all calls
            _end_all(part, outcome_of_error(error))
            return []
        try:
            await tx.check_watermark()
            await tx.note_settings()
            for item in part:
                if done and time.time() >= stop_at:
                    break
                await self._read_one(tx, item, attempt, end_at, first=done == 0)
                done += 1
        except _OutOfTime:
            pass
        except Exception as error:  # noqa: BLE001 - becomes the outcome of all calls
            _end_all(part, outcome_of_error(error))
        finally:
            await _roll_back(tx)
        return [item for item in part[:done] if item.outcome is None]

    async def _read_one(
        self, tx: ChunkTransaction, item: _CallInChunk, attempt: AttemptContext, end_at: float, *, first: bool
    ) -> None:
        """Raises _OutOfTime if not the time of the call but that of the chunk ends it."""
        await tx.next_savepoint(first=first)
        session = tx.new_session()
        call = item.call
        seconds = end_at - time.time()
        limit = asyncio.timeout(min(call.timeout, seconds))
        try:
            body = self._bodies.body(call.action, call.arguments, call, attempt)
            async with limit:
                item.value = to_json_value(await body(session))
        except Exception as error:
            if limit.expired() and seconds < call.timeout and not first:
                raise _OutOfTime from error
            cause = session.first_error or error
            classified = classify_database_error(cause)
            if classified is not None and classified.infrastructure and not is_refused_write(cause):
                raise
            if session.ended:
                raise cause from error
            await tx.back_to_savepoint()
            refused = is_refused_write(cause)
            item.outcome = refused_write_outcome(cause) if refused else _outcome_of_error(error, session.first_error)
        finally:
            await session.close()


def _idle_limit(call: Invocation) -> float:
    return call.timeout + IDLE_GRACE


def _end_all(part: Sequence[_CallInChunk], outcome: Outcome) -> None:
    for item in part:
        # Nothing was learned after a lost COMMIT, so its effect may be there.
        item.outcome = replace(outcome, kind="unknown", retryable=True) if item.commit_lost else outcome


_NO_ERROR = ClassifiedError("", infrastructure=False)


def _outcome_of(script: EntryScript) -> Outcome | None:
    if script.postponed:
        return None
    if script.error is not None:
        if isinstance(script.error, TimeoutError):
            answered = not isinstance(script.error, UnansweredItem)
            return timeout_outcome("the attempt timed out; what it did was rolled back", answered=answered)
        return _outcome_of_error(script.error)
    assert script.result is not None
    return script.result.outcome


def _outcome_of_error(error: BaseException, statement_error: BaseException | None = None) -> Outcome:
    if isinstance(error, ActionNotRegistered | Unequipped):
        return outcome_without_worker(error)
    return outcome_of_error(error, statement_error)


def outcome_without_worker(error: ActionNotRegistered | Unequipped) -> Outcome:
    """The outcome of an attempt that was not made, because this worker lacks the action or something that it needs.

    An earlier attempt of the chunk hides `not_started` from the saga, which still must not count this one.
    """
    return Outcome("failed", failure=Failure("NotFoundError", str(error)), not_started=True, counted=False)


async def _roll_back(tx: ChunkTransaction) -> None:
    await uncancellable(tx.rollback())
