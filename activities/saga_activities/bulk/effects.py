"""The effects of a chunk: the actions of all entries whose guard rows are won, in one transaction.

Fastest first: a batch action takes all items; single SQL statements and events are sent together; any other action runs
item by item, each in a savepoint. A statement that changes rows on PostgreSQL is run by the server, each item in its
own subtransaction. If an item of another shared form is rejected or fails, the transaction is given up, and the chunk
is repeated with a savepoint for each item: what one item does is never another one's business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from sqlalchemy.exc import DBAPIError

from saga_activities.attempt_context import AttemptContext
from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.bodies.sql_action import SharedStatement, has_one_statement, run_for_all
from saga_activities.bulk.chunk_transaction import ChunkTransaction, PostgresChunk
from saga_activities.bulk.guard_scripts import BodyRun, EntryScript
from saga_activities.bulk.result_room import MAX_RESULTS_BYTES, result_size
from saga_activities.bulk.statement_block import BlockCall, BlockEnd, run_block
from saga_activities.guard.database_errors import classify_database_error, is_lock_timeout
from saga_activities.guard.ended_transactions import TransactionVanished
from saga_activities.guard.keep_alive import keep_alive
from saga_activities.guard.sql_session import StatementResult
from saga_activities.guard.transaction import ChangesKept
from saga_activities.messaging.outbox import PreparedEvents, insert_prepared
from sagas.actions.registry import Action
from sagas.builtins import messaging
from sagas.errors import Rejected, UsageError
from sagas.sql_text.sql_results import returns_no_rows
from sagas.sql_text.sql_statements import parse_guarded

TIME_FOR_ITEMS = 0.6
"""The fraction of a chunk's time after which no further item begins: the others are left to the next chunk."""

END_OF_ITEMS = 0.95
"""The fraction of a chunk's time at which an item is interrupted, so that what the others did can be committed."""

TIME_TOGETHER = 0.5
"""The fraction of a chunk's time for a shared form. An item that hangs in it has time for an attempt on its own then:
a chunk has at least twice the timeout of its step."""


class NeedsSavepoints(Exception):
    """An item of a shared statement was rejected or failed: the chunk has to be repeated with savepoints."""


class UnansweredItem(TimeoutError):
    """The time of an item was over before the database had answered its statement."""


class ChunkEffects:
    """Runs the actions of one attempt of a chunk.

    ``isolated``: each item in a savepoint. ``values`` are the results of items that only read, by the index of their
    script. ``idle_limit``: seconds of idleness after which the server ends the transaction. ``committed``: bytes of the
    results that this chunk has had in earlier transactions.
    """

    def __init__(
        self,
        tx: ChunkTransaction,
        bodies: ActionBodies,
        attempt: AttemptContext,
        began: float,
        all_scripts: Sequence[EntryScript],
        *,
        isolated: bool,
        values: Mapping[int, Any],
        idle_limit: float,
        committed: int,
    ) -> None:
        self._tx = tx
        self._bodies = bodies
        self._attempt = attempt
        self._stop_at, self._end_at = (
            began + part * (attempt.deadline - began) for part in (TIME_FOR_ITEMS, END_OF_ITEMS)
        )
        self._together_until = began + TIME_TOGETHER * (attempt.deadline - began)
        self._isolated = isolated
        self._values = values
        self._idle_limit = idle_limit
        self._all_scripts = all_scripts
        self._committed = committed
        self._taken = 0
        self._savepoints = 0
        self.alone: EntryScript | None = None
        """The item that runs on its own right now, or was interrupted."""

    async def run(self, scripts: Sequence[EntryScript]) -> None:
        """End the request of each script: with the result of its action, or with its exception."""
        self._taken = self._committed + sum(map(result_size, self._all_scripts))  # of calls that were done before
        await self._tx.note_settings()
        unshared: list[EntryScript] = []
        shared: dict[str, list[EntryScript]] = {}
        for script in scripts:
            if id(script) in self._values:
                script.go_on(self._values[id(script)])
                if not self._has_room(script):
                    script.postpone()
                continue
            action = _request(script).action
            if not self._isolated and self._is_shared(script):
                shared.setdefault(action, []).append(script)
            else:
                unshared.append(script)
        for action, together in shared.items():
            unshared += await self._run_together(action, together)
        for script in unshared:
            self.alone = script
            await self._run_alone(script)
        self.alone = None

    def _is_shared(self, script: EntryScript) -> bool:
        request = _request(script)
        if request.action == "sql":
            return isinstance(self._tx, PostgresChunk) and has_one_statement(request.arguments)
        return request.action in messaging.EMITTERS or self._bodies.batch_action(request.action) is not None

    async def _run_together(self, action: str, scripts: Sequence[EntryScript]) -> Sequence[EntryScript]:
        """Returns those that still have to run, on their own, so that their errors are the driver's."""
        batch = self._bodies.batch_action(action)
        await self._tx.reset_settings()
        try:
            async with asyncio.timeout(self._together_until - time.time()):
                if batch is not None:
                    await self._run_batch_action(batch, scripts)
                elif action == "sql":
                    await self._run_statements(scripts)
                else:
                    await self._emit(scripts)
        except TimeoutError as error:  # one of them hangs, or together they take too long
            raise NeedsSavepoints from error
        failed = [script for script in scripts if isinstance(script.request, BodyRun)]
        if not all(self._has_room(script) for script in scripts if not isinstance(script.request, BodyRun)):
            raise NeedsSavepoints
        return failed

    def _has_room(self, script: EntryScript) -> bool:
        """Count the result of an item. False: there is no room for it, so the item must go into the next chunk."""
        size = result_size(script)
        if self._taken and self._taken + size > MAX_RESULTS_BYTES:
            self._taken = max(self._taken, MAX_RESULTS_BYTES)
            return False
        self._taken += size
        return True

    # --- forms -------------------------------------------------------------------------------------------------

    async def _run_batch_action(self, action: Action, scripts: Sequence[EntryScript]) -> None:
        calls = [(script.invocation, _request(script).arguments) for script in scripts]
        items = self._bodies.batch_items(action, calls, self._attempt)
        session = self._tx.new_session()
        # It takes all items, so it may work for longer between two statements than the step's timeout for one item.
        run = keep_alive(lambda sql: self._bodies.run_batch(action, items, self._attempt, sql), self._idle_limit)
        try:
            results = await run(session)
            session.check_statements()
            done = [
                (s, i) for s, i, result in zip(scripts, items, results, strict=True) if not isinstance(result, Rejected)
            ]
            events = [self._bodies.prepared(item, script.invocation, self._attempt) for script, item in done]
        except Exception as error:
            _raise_if_transaction_lost(session.first_error or error)
            raise NeedsSavepoints from error  # each item on its own, so that only the one at fault fails
        finally:
            await session.close()
        await insert_prepared(self._tx.new_session(), events)
        for script, result in zip(scripts, results, strict=True):
            if isinstance(result, Rejected):
                script.fail(result)
            else:
                _take_result(script, result)

    async def _run_statements(self, scripts: Sequence[EntryScript]) -> None:
        """Run one statement for all items, each judged by its own row count. An item that has failed in a block keeps
        its request.
        """
        assert isinstance(self._tx, PostgresChunk)
        try:
            statements = [SharedStatement.of(_request(script).arguments) for script in scripts]
            first = statements[0]
            if any(statement.text != first.text for statement in statements):
                raise NeedsSavepoints
            parsed = parse_guarded(first.text, "postgresql")
            exact = await self._tx.new_session().exact(parsed, [statement.parameters for statement in statements])
            if returns_no_rows(first.text):
                calls = [
                    BlockCall(parameters, statement.expected_rows)
                    for statement, parameters in zip(statements, exact.parameters, strict=True)
                ]
                if (ends := await run_block(self._tx, exact.statement, calls)) is not None:
                    _take_ends(scripts, statements, ends)
                    return
            returned = await run_for_all(self._tx.raw, exact.statement, exact.parameters, self._tx.own_settings)
            results = [statement.judge(rows) for statement, rows in zip(statements, returned, strict=True)]
        except (psycopg.Error, DBAPIError, Rejected, UsageError) as error:
            _raise_if_transaction_lost(error)
            raise NeedsSavepoints from error
        for script, result in zip(scripts, results, strict=True):
            _take_result(script, result)

    async def _emit(self, scripts: Sequence[EntryScript]) -> None:
        prepared: list[PreparedEvents] = []
        for script in scripts:
            try:
                events = self._bodies.emitted(_request(script).arguments, script.invocation, self._attempt)
            except Exception as error:  # noqa: BLE001 - becomes the outcome of this item
                script.fail(error)
                continue
            prepared.append(events)
            _take_result(script, {"events": events.names})
        await insert_prepared(self._tx.new_session(), prepared)

    async def _run_alone(self, script: EntryScript) -> None:
        """One item in a savepoint: whatever it does, the others are not touched."""
        first = self._savepoints == 0
        if (time.time() >= self._stop_at and not first) or self._taken >= MAX_RESULTS_BYTES:
            script.postpone()
            return
        request = _request(script)
        try:
            body = self._bodies.body(request.action, request.arguments, script.invocation, self._attempt)
        except Exception as error:  # noqa: BLE001 - becomes the outcome of this item
            script.fail(error)
            return
        await self._tx.next_savepoint(first=first)
        self._savepoints += 1
        session = self._tx.new_session()
        remaining = self._end_at - time.time()
        limit = asyncio.timeout(min(script.invocation.timeout, remaining))
        try:
            async with limit:
                result = await body(session)
            session.check_statements()
        except Exception as error:
            statement_error, unanswered = session.first_error, session.unanswered
            await session.close()
            if statement_error is not None or not isinstance(
                error, TimeoutError
            ):  # that of an action is not the database's
                _raise_if_transaction_lost(statement_error or error)
            # After a timeout `statement_error` is the cancellation of a statement.
            own = isinstance(error, Rejected | TimeoutError) and not is_lock_timeout(statement_error or error)
            cause = error if statement_error is None or own else statement_error
            if session.ended:
                raise cause from error  # there is no savepoint any more: the chunk is repeated in parts
            await self._tx.back_to_savepoint()
            if self._tx.kept_changes:
                script.fail(ChangesKept(str(error)))
                return
            if limit.expired() and remaining < script.invocation.timeout and not first:
                script.postpone()  # the time of the chunk has run out, not its own; the first one gets all there is
                return
            script.fail(UnansweredItem() if unanswered and isinstance(cause, TimeoutError) else cause)
            return
        await session.close()
        script.go_on(result)
        if script.error is not None:
            await self._tx.back_to_savepoint()  # the guard cannot store the result, so the effect must not stay
        elif not self._has_room(script):
            await self._tx.back_to_savepoint()
            script.postpone()
            if self._tx.kept_changes:
                script.postponed, script.error = False, ChangesKept("its result is too large for this chunk")


def _take_result(script: EntryScript, result: Any) -> None:
    """Give the script its result. Raises NeedsSavepoints if it cannot be stored: then its effect must not stay."""
    script.go_on(result)
    if script.error is not None:
        raise NeedsSavepoints


def _take_ends(scripts: Sequence[EntryScript], statements: Sequence[SharedStatement], ends: Sequence[BlockEnd]) -> None:
    """Give each script the end of its statement, unless that has failed."""
    for script, statement, end in zip(scripts, statements, ends, strict=True):
        if end.rows is None:
            continue
        try:
            result = statement.judge(StatementResult(None, end.rows))
        except Rejected as rejection:
            script.fail(rejection)
        else:
            _take_result(script, result)
        if end.kept != (script.error is None):
            raise NeedsSavepoints


def _raise_if_transaction_lost(error: BaseException) -> None:
    """Raise an error that no savepoint can contain: the connection or the whole transaction is lost."""
    classified = classify_database_error(error)
    is_lost = classified is not None and classified.infrastructure and not is_lock_timeout(error)
    if is_lost or isinstance(error, TransactionVanished):
        raise error


def _request(script: EntryScript) -> BodyRun:
    assert isinstance(script.request, BodyRun)
    return script.request
