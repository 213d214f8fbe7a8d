"""Performs a chunk: equal calls of several sagas in one transaction, each with its own guard rows and outcome.

A transaction that fails for the sake of one item is repeated in ever smaller parts, so that in the end only that item
fails; a lost COMMIT is repeated as it is, and the guard answers for what was committed.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from saga_activities.action_bodies import ActionBodies
from saga_activities.attempt_context import ActionBody, AttemptContext
from saga_activities.bulk.chunk_transaction import ChunkTransaction, begin_chunk
from saga_activities.bulk.effects import ChunkEffects, NeedsSavepoints
from saga_activities.bulk.guard_scripts import EntryScript, make_script, run_scripts
from saga_activities.cancellation import uncancellable
from saga_activities.guard.database_errors import ClassifiedError, classify_database_error, is_refused_write
from saga_activities.guard.guard import Guard
from saga_activities.guard.result_codec import to_json_value
from saga_activities.guard.tables import EntryKey
from saga_activities.guard.transaction import BelowWatermark, LostCommit
from saga_activities.guard.transaction_runner import (
    COMMIT_GRACE,
    outcome_of_error,
    refused_write_outcome,
    timeout_outcome,
)
from saga_activities.python_action import ActionNotRegistered
from sagas.errors import InfrastructureError, UsageError
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import Invocation

_REPEATS = 3
"""Attempts of a transaction that deadlocks or cannot be serialised, before it is cut into halves."""

_ACQUIRE_FRACTION = 0.5
"""The fraction of a chunk's time that it may wait for a connection."""


class ChunkRunner:
    """Performs chunks on the database of one connection."""

    def __init__(self, guard: Guard, bodies: ActionBodies) -> None:
        self._guard = guard
        self._bodies = bodies

    async def perform(self, calls: Sequence[Invocation], attempt: AttemptContext) -> list[Outcome | None]:
        """The outcome of each call, in order; None: it was not attempted, because the time of the chunk ran out.

        Raises ActionNotRegistered if this worker does not know the action, UsageError for an unknown connection.
        """
        outcomes: list[Outcome | None] = [None] * len(calls)
        # Sorted by their arguments, so that concurrent chunks lock the rows of a table in the same order.
        order = sorted(range(len(calls)), key=lambda at: _canonical(calls[at].arguments))
        values: dict[int, Any] = {}
        if calls[0].reads:
            order = await self._read(calls, order, outcomes, values, attempt)
        if order:
            await self._perform_part(calls, order, outcomes, values, attempt, isolated=False)
        return outcomes

    async def _perform_part(
        self,
        calls: Sequence[Invocation],
        part: Sequence[int],
        outcomes: list[Outcome | None],
        values: Mapping[int, Any],
        attempt: AttemptContext,
        *,
        isolated: bool,
    ) -> None:
        outcome, concerns_all = timeout_outcome("the attempt timed out before it began"), True
        for repeat in range(1, _REPEATS + 1):
            try:
                ended = await self._perform_once(
                    [calls[at] for at in part], [values.get(at, _NO_VALUE) for at in part], attempt, isolated=isolated
                )
            except NeedsSavepoints:
                await self._perform_part(calls, part, outcomes, values, attempt, isolated=True)
                return
            except (ActionNotRegistered, UsageError):
                raise
            except LostCommit as error:
                failure = Failure("Infrastructure", f"the response to COMMIT was lost: {error}")
                outcome, concerns_all = Outcome("unknown", failure=failure, infrastructure=True), True
            except TimeoutError:
                outcome, concerns_all = timeout_outcome("the attempt timed out; the transaction was rolled back"), True
                break
            except Exception as error:  # noqa: BLE001 - becomes an outcome
                outcome, classified = outcome_of_error(error), classify_database_error(error)
                concerns_all = isinstance(error, BelowWatermark) or (classified or _NO_ERROR).connection_lost
                if classified is None or not classified.infrastructure:
                    break
            else:
                for at, one in zip(part, ended, strict=True):
                    outcomes[at] = one
                return
            await asyncio.sleep(random.uniform(0.0, 0.05 * repeat))  # noqa: S311 - spreads repetitions
        if concerns_all or len(part) == 1:
            self._end_all(part, outcomes, outcome)
            return
        middle = len(part) // 2
        for half in (part[:middle], part[middle:]):
            await self._perform_part(calls, half, outcomes, values, attempt, isolated=isolated)

    def _end_all(self, part: Sequence[int], outcomes: list[Outcome | None], outcome: Outcome) -> None:
        for at in part:
            outcomes[at] = outcome

    async def _perform_once(
        self, calls: Sequence[Invocation], values: Sequence[Any], attempt: AttemptContext, *, isolated: bool
    ) -> list[Outcome | None]:
        """One transaction. Raises NeedsSavepoints, LostCommit, BelowWatermark or the error that rolled it back."""
        began = time.time()
        outcomes: list[Outcome | None] = [None] * len(calls)
        scripts: list[EntryScript | None] = []
        for at, call in enumerate(calls):
            try:
                scripts.append(make_script(call))
            except ValueError as error:
                outcomes[at] = Outcome("failed", failure=Failure("definition", str(error)), retryable=False)
                scripts.append(None)
        running = [script for script in scripts if script is not None]
        if not running:
            return outcomes
        known = {
            id(script): value
            for script, value in zip(scripts, values, strict=True)
            if script is not None and value is not _NO_VALUE
        }
        tx = await self._begin(running[0].key, attempt)
        try:
            async with asyncio.timeout(max(0.05, attempt.deadline - time.time())):
                effects = ChunkEffects(tx, self._bodies, attempt, began, isolated=isolated, values=known)
                await run_scripts(running, tx, effects.run)
        except BaseException:
            for script in running:
                script.coroutine.close()
            await _roll_back(tx)
            raise
        await uncancellable(_commit(tx))
        for at, script in enumerate(scripts):
            if script is not None:
                outcomes[at] = _outcome_of(script)
        return outcomes

    async def _begin(self, key: EntryKey, attempt: AttemptContext, *, read_only: bool = False) -> ChunkTransaction:
        left = attempt.deadline - time.time()
        try:
            async with asyncio.timeout(left * _ACQUIRE_FRACTION):
                return await begin_chunk(
                    self._guard.engine,
                    key,
                    scheduled_at=attempt.scheduled_at,
                    deadline=attempt.deadline,
                    isolation=self._guard.isolation,
                    idle_limit=None,
                    read_only=read_only,
                )
        except TimeoutError:
            raise InfrastructureError("no connection to the database was free in time") from None

    # --- calls that only read ----------------------------------------------------------------------------------

    async def _read(
        self,
        calls: Sequence[Invocation],
        order: Sequence[int],
        outcomes: list[Outcome | None],
        values: dict[int, Any],
        attempt: AttemptContext,
    ) -> list[int]:
        """Run the statements in a transaction that refuses writes; returns the calls whose results are to be stored."""
        first = calls[order[0]]
        try:
            tx = await self._begin(EntryKey(first.saga_id, first.entry, first.generation), attempt, read_only=True)
        except Exception as error:  # noqa: BLE001 - becomes the outcome of all calls
            self._end_all(order, outcomes, outcome_of_error(error))
            return []
        try:
            await tx.check_watermark()
            for number, at in enumerate(order):
                outcomes[at] = await self._read_one(tx, calls[at], values, at, attempt, first=number == 0)
        except Exception as error:  # noqa: BLE001 - becomes the outcome of all calls
            self._end_all(order, outcomes, outcome_of_error(error))
            values.clear()
        finally:
            await _roll_back(tx)
        return [at for at in order if at in values]

    async def _read_one(
        self,
        tx: ChunkTransaction,
        call: Invocation,
        values: dict[int, Any],
        at: int,
        attempt: AttemptContext,
        *,
        first: bool,
    ) -> Outcome | None:
        await tx.next_savepoint(first=first)
        session = tx.new_session()
        try:
            body: ActionBody = self._bodies.body(call.action, call.arguments, call, attempt)
            async with asyncio.timeout(call.timeout):
                values[at] = to_json_value(await body(session))
        except Exception as error:
            doom = session.first_error or error
            classified = classify_database_error(doom)
            if classified is not None and classified.infrastructure and not is_refused_write(doom):
                raise
            await tx.back_to_savepoint()
            return (
                refused_write_outcome(doom) if is_refused_write(doom) else outcome_of_error(error, session.first_error)
            )
        finally:
            await session.close()
        return None


_NO_VALUE = object()
_NO_ERROR = ClassifiedError("", infrastructure=False)


def _canonical(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True, separators=(",", ":"))


def _outcome_of(script: EntryScript) -> Outcome | None:
    if script.postponed:
        return None
    if script.error is not None:
        if isinstance(script.error, TimeoutError):
            return timeout_outcome("the attempt timed out; what it did was rolled back")
        return outcome_of_error(script.error)
    assert script.result is not None
    return script.result.outcome


async def _commit(tx: ChunkTransaction) -> None:
    try:
        async with asyncio.timeout(COMMIT_GRACE):
            await tx.commit(None)
    except TimeoutError as error:
        await _roll_back(tx)
        raise LostCommit("no response in time") from error
    except BaseException:
        await _roll_back(tx)
        raise
    await tx.release()


async def _roll_back(tx: ChunkTransaction) -> None:
    await uncancellable(tx.rollback())
