"""Performs an :class:`Invocation` and returns its :class:`Outcome`: finds the action and runs it inside the guard.

Independent of Temporal.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from saga_activities.action_errors import action_failure
from saga_activities.attempt_context import ActionBody, AttemptContext, repeat_heartbeats
from saga_activities.automatic.nested_images import close_nested
from saga_activities.automatic.restoration import check_decision, keep_rows, skip_restoration
from saga_activities.bodies.action_bodies import ActionBodies, wrong_arguments
from saga_activities.bodies.python_action import ActionNotRegistered, InvalidArguments
from saga_activities.bodies.sql_action import with_appended_changes, with_inherited_rows
from saga_activities.conflict_retries import repeat_conflicts
from saga_activities.connections import DatabaseConnections
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.guard import Guard
from saga_activities.guard.rules import ScriptResult
from saga_activities.guard.script_transactions import outcome_of_error
from saga_activities.guard.sql_session import SqlSession
from saga_activities.guard.transaction import GuardTransaction
from saga_activities.http import CallbackAddresses, HttpConnections, read_callback, request_of, run_http
from saga_activities.messaging.kafka_request import REQUEST_ACTIONS, KafkaRequestAction
from saga_activities.messaging.outbox import wait_until_published
from sagas.actions.registry import Absent, Done, Unknown
from sagas.builtins import messaging
from sagas.builtins.automatic import RESTORE
from sagas.builtins.callbacks import CALLBACK, CALLBACK_ACTION
from sagas.errors import (
    AlreadyCompensated,
    InfrastructureError,
    NeedsOperator,
    Rejected,
    Unavailable,
    Unequipped,
    UsageError,
)
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Failure, Outcome, refused_value, rejection
from sagas.protocol.payloads import CLOSE_NESTED, RECORD_RESULT, SKIP_RESTORE, Invocation, arguments_hash
from sagas.protocol.size_limits import limit_size
from sagas.text.author_values import text_of
from sagas.text.masked_texts import mask_in_attempt
from sagas.text.text_search import QUOTED

IDLE_TRANSACTION_TIMEOUT = 30.0
"""Seconds of idleness after which the guarded transaction of a prepared action ends: such an action works outside the
database for minutes, and the attempt that replaces a frozen worker's waits no longer than this."""


class Dispatcher:
    """Performs invocations with the actions and connections of one project."""

    def __init__(
        self,
        bodies: ActionBodies,
        databases: DatabaseConnections,
        http: HttpConnections,
        prepared_actions: Mapping[str, PreparedAction] | None = None,
        requests: KafkaRequestAction | None = None,
        image_connections: Callable[[], Collection[str]] = frozenset,
        callbacks: CallbackAddresses | None = None,
    ) -> None:
        """``image_connections`` returns the connections on which the project's sagas have row images."""
        self._bodies = bodies
        self._databases = databases
        self._http = http
        self._prepared_actions = prepared_actions or {}
        self._requests = requests
        self._image_connections = image_connections
        self._callbacks = callbacks or CallbackAddresses()

    async def perform(self, invocation: Invocation, attempt: AttemptContext) -> Outcome:
        """Make one attempt.

        Raises ActionNotRegistered if this worker lacks the action or a connection, ReplyPending if the attempt goes on
        without the worker.
        """
        if invocation.at_most_once and attempt.number > 1:
            message = "an earlier attempt ended without a response, and this participant must not be called twice"
            return Outcome("unknown", failure=Failure("Unknown", message), retryable=False)
        if (wrong := wrong_arguments(invocation)) is not None:
            return wrong
        try:
            if invocation.action not in self._prepared_actions:
                return await self._run_attempt(invocation, attempt)
            with repeat_heartbeats(attempt) as beaten:
                return await self._run_attempt(invocation, beaten)
        except Unequipped as error:
            raise ActionNotRegistered("; ".join(filter(None, (error.message, error.help)))) from error
        except (InvalidArguments, UsageError) as error:
            # Found before anything was called: the definition is wrong, and a retry cannot help.
            return Outcome("failed", failure=refused_value(text_of(error)), retryable=False)

    async def _run_attempt(self, invocation: Invocation, attempt: AttemptContext) -> Outcome:
        if invocation.action == CLOSE_NESTED:
            # A nested saga that was terminated has not reported its connections.
            connections = sorted({*invocation.arguments["connections"], *self._image_connections()})
            request = {**invocation.arguments, "connections": connections}
            clock = {"scheduled_at": attempt.scheduled_at, "deadline": attempt.deadline}
            return await close_nested(self._databases, request, **clock)
        run = self._run_guarded if invocation.guard is not None else self._run_unguarded
        return await repeat_conflicts(run, invocation, attempt)

    async def _run_guarded(self, invocation: Invocation, attempt: AttemptContext) -> Outcome:
        guard_spec = invocation.guard
        assert guard_spec is not None
        if guard_spec.two_phase:
            return await self._run_two_phase(guard_spec, invocation, attempt)
        guard = self._databases.guard(guard_spec.connection)
        address = EntryKey(invocation.saga_id, invocation.entry, invocation.generation)
        clock = {"scheduled_at": attempt.scheduled_at, "deadline": attempt.deadline}
        if invocation.action == RECORD_RESULT:
            result = invocation.arguments.get("result")
            check = None
            if "images" in invocation.arguments:
                check = partial(check_decision, entry_key=address, digest=invocation.arguments["images"])
            elif "closes" in invocation.arguments:
                check = await self._prepare_closing(invocation.arguments["closes"]["action"], invocation, attempt)
            return await guard.record_manual_result(
                address, invocation.op, result, check=check, mode=guard_spec.mode, origin=invocation.origin, **clock
            )
        if invocation.action == SKIP_RESTORE:
            return await guard.skip_undo(address, lambda sql: skip_restoration(sql, address), **clock)
        if invocation.op == "seal":
            return await guard.seal(address, origin=invocation.origin, **clock)
        limits: dict[str, Any] = dict(clock)
        if invocation.action in self._prepared_actions:
            limits["idle_limit"] = IDLE_TRANSACTION_TIMEOUT
            if stored := await self._stored_outcome(guard, address, invocation, attempt):
                return stored
        body = confirmed = None
        try:
            if guard_spec.mode != "mark":
                body = await self._prepare_body(invocation.action, invocation.arguments, invocation, attempt)
            if guard_spec.confirmed == "elsewhere":
                confirmed = "elsewhere"
            elif guard_spec.confirmed is not None:
                confirmed = await self._prepare_body(
                    guard_spec.confirmed[0], guard_spec.confirmed[1], invocation, attempt
                )
                if invocation.action == RESTORE:
                    confirmed = with_inherited_rows(confirmed, invocation)
            if body is not None and invocation.op == "confirm" and guard_spec.images:
                body = with_appended_changes(body, invocation)
        except (InvalidArguments, UsageError, ActionNotRegistered):
            raise
        except Exception as error:  # noqa: BLE001 - becomes an outcome: nothing is visible yet
            return outcome_of_error(error)
        match invocation.op:
            case "undo":
                undone = await guard.undo(
                    address,
                    body,
                    mode=guard_spec.mode,
                    known_done=guard_spec.known_done,
                    forward_hash=guard_spec.forward_hash,
                    confirmed_body=confirmed,
                    origin=invocation.origin,
                    **limits,
                )
                if undone.park_reason is None or invocation.action != RESTORE:
                    return undone
                keep = partial(_keep_rows, undone, address)
                kept = await guard.run(address, "undo", keep, attempt.scheduled_at, attempt.deadline)
                return kept if kept.infrastructure else undone
            case "confirm":
                return await guard.confirm(address, body, mode=guard_spec.mode, origin=invocation.origin, **limits)
            case _:
                assert body is not None
                if invocation.reads:
                    read = await guard.read(address, body, **clock)
                    if read.kind != "done":
                        return read
                    body = returning(read.result)
                hashed = arguments_hash(invocation.arguments)
                stored = await guard.do(address, hashed, body, origin=invocation.origin, room=guard_spec.room, **limits)
                if (
                    stored.kind == "done"
                    and invocation.action == messaging.PUBLISH
                    and invocation.arguments.get("wait") == messaging.UNTIL_PUBLISHED
                ):
                    deadline = time.time() + _time_left(attempt)
                    return await wait_until_published(guard.engine, stored.result, attempt, deadline) or stored
                return stored

    async def _run_two_phase(self, guard_spec: GuardSpec, invocation: Invocation, attempt: AttemptContext) -> Outcome:
        """Prepare, commit or roll back the transaction of a step with `two_phase`."""
        guard = self._databases.two_phase_guard(guard_spec.connection)
        entry_key = EntryKey(invocation.saga_id, invocation.entry, invocation.generation)
        clock = {"scheduled_at": attempt.scheduled_at, "deadline": attempt.deadline}
        if invocation.action == RECORD_RESULT:
            result = invocation.arguments.get("result")
            return await guard.record_manual_result(entry_key, invocation.op, result, origin=invocation.origin, **clock)
        match invocation.op:
            case "seal":
                return await guard.seal(entry_key, origin=invocation.origin, **clock)
            case "undo":
                known_done, hashed = guard_spec.known_done, guard_spec.forward_hash
                return await guard.undo(
                    entry_key, known_done=known_done, forward_hash=hashed, origin=invocation.origin, **clock
                )
            case "confirm":
                return await guard.confirm(entry_key, origin=invocation.origin, **clock)
        body = self._bodies.body(invocation.action, invocation.arguments, invocation, attempt)
        hashed = arguments_hash(invocation.arguments)
        return await guard.do(entry_key, hashed, body, origin=invocation.origin, room=guard_spec.room, **clock)

    async def _stored_outcome(
        self, guard: Guard, address: EntryKey, invocation: Invocation, attempt: AttemptContext
    ) -> Outcome | None:
        """The stored outcome of a prepared action, which saves its preparation; None if it has to be performed."""
        if invocation.op not in ("do", "confirm"):
            return None
        hashed = arguments_hash(invocation.arguments) if invocation.op == "do" else None
        return await guard.lookup(address, invocation.op, hashed, deadline=attempt.deadline, origin=invocation.origin)

    async def _prepare_body(
        self, name: str, arguments: Mapping[str, Any], invocation: Invocation, attempt: AttemptContext
    ) -> ActionBody:
        """The body for the guarded transaction, after the preparation that must not prolong it."""
        performer = self._prepared_actions.get(name)
        if performer is None:
            return self._bodies.body(name, arguments, invocation, attempt)
        return await performer.prepare(name, invocation, attempt)

    async def _prepare_closing(
        self, name: str, invocation: Invocation, attempt: AttemptContext
    ) -> Callable[..., Awaitable[None]]:
        """The body that records an operator's `done` about an undo where the prepared action keeps its effects."""
        performer = self._prepared_actions.get(name)
        if performer is None:
            raise ActionNotRegistered(name)
        body = await performer.prepare(RECORD_RESULT, invocation, attempt)

        async def close(sql: SqlSession, *, inherited: bool = False) -> None:
            await body(sql)

        return close

    async def _run_unguarded(self, invocation: Invocation, attempt: AttemptContext) -> Outcome:
        if invocation.action == CALLBACK_ACTION:
            participant = invocation.arguments.get("connection") or "the participant"
            return read_callback(invocation.arguments, participant)
        if invocation.action == "http":
            request = {name: value for name, value in invocation.arguments.items() if name != "connection"}
            address = None
            if CALLBACK in request:
                address = self._callbacks.address(invocation.saga_id, invocation.key)
                request = request_of(request, address)
                token = address.rpartition("/")[2]
                mask_in_attempt(address, token, token[:QUOTED])  # a participant may quote it anywhere
            return await run_http(
                request,
                key=invocation.key,
                forward_key=invocation.forward_key,
                connection=self._http.get(invocation.arguments.get("connection")),
                timeout=_time_left(attempt),
                attempt=attempt.number,
                op=invocation.op,  # pyright: ignore[reportArgumentType]
                traceparent=attempt.traceparent,
                callback_address=address,
                saga_id=invocation.saga_id,
            )
        if invocation.action in REQUEST_ACTIONS and self._requests is not None:
            return await self._requests.perform(invocation, attempt)
        performer = self._prepared_actions.get(invocation.action)
        if performer is not None:
            try:
                return await run_unguarded(lambda _: performer.read(invocation, attempt), invocation.op)
            except Unavailable as error:
                return outcome_of_error(error)
        body = self._bodies.body(invocation.action, invocation.arguments, invocation, attempt)
        home = self._home(invocation) if invocation.op == "probe" else None
        if home is not None:
            guard = self._databases.guard(home)
            address = EntryKey(invocation.saga_id, invocation.entry, invocation.generation)
            # A Python action may write, to seal the key while it answers.
            run = guard.read if invocation.action == "sql" else guard.run_probe
            outcome = await run(address, body, scheduled_at=attempt.scheduled_at, deadline=attempt.deadline)
            if outcome.kind == "done":
                return probe_outcome(outcome.result)
            # A probe that can never be made waits for a person; any other failure leaves the effect unknown.
            return replace(outcome, kind="unknown") if outcome.retryable else outcome
        return await run_unguarded(body, invocation.op)

    def _home(self, invocation: Invocation) -> str | None:
        """The SQL connection in whose transaction an action runs; None: without a transaction."""
        if invocation.action == "sql":
            return invocation.arguments.get("connection")
        return self._bodies.connection(invocation.action)


async def _keep_rows(parked: Outcome, entry_key: EntryKey, tx: GuardTransaction) -> ScriptResult:
    """Lock the rows of a parked undo until its saga is final, in a new transaction: that of the undo is rolled back."""
    await tx.rows()
    await keep_rows(tx.sql, entry_key)
    return ScriptResult(parked, commit=True)


def returning(result: Any) -> ActionBody:
    """A body that does nothing and returns ``result``."""

    async def run(_: SqlSession | None) -> Any:
        return result

    return run


_FAILURE_TYPES = {InfrastructureError: "Infrastructure", NeedsOperator: "Parked"}
"""The failure types under which the whole engine reports these errors."""


async def run_unguarded(body: ActionBody, op: str) -> Outcome:
    """Run an action without a guard: any error but Rejected and AlreadyCompensated gives the outcome unknown.

    A wrong use of the engine is not retried, but what the action did before is unknown as well; a probe has no effect.
    ActionNotRegistered, Unavailable and Unequipped propagate.
    """
    try:
        result = await body(None)
    except Rejected as error:
        return rejection(error)
    except AlreadyCompensated as error:
        return Outcome("late", failure=Failure("AlreadyCompensated", text_of(error)), retryable=False)
    except (ActionNotRegistered, Unavailable, Unequipped):
        raise
    except UsageError as error:
        failure = Failure("definition", text_of(error))
        return Outcome("failed" if op == "probe" else "unknown", failure=failure, retryable=False)
    except Exception as error:  # noqa: BLE001 - becomes part of the outcome
        failure = action_failure(error)
        return Outcome("unknown", failure=replace(failure, type=_FAILURE_TYPES.get(type(error), failure.type)))
    return probe_outcome(result) if op == "probe" else Outcome.done(limit_size(result))


def _time_left(attempt: AttemptContext) -> float:
    """Seconds for a request: a little less than the attempt has, so that it ends before Temporal times it out."""
    remaining = attempt.deadline - time.time()
    return max(remaining - min(0.5, remaining / 10), 0.05)


def probe_outcome(result: Any) -> Outcome:
    """The outcome of a probe action. Any other result is evaluated by the probe's own expressions."""
    match result:
        case Done():
            return Outcome.done({"probe": "done", "result": result.result})
        case Absent():
            return Outcome.done({"probe": "absent"}, marker="absent")
        case Unknown():
            return Outcome.done({"probe": "unknown", "message": text_of(result.message)})
    return Outcome.done(result)


# Interface for built-in actions of other packages, with long work outside their guarded transaction.
class PreparedAction(Protocol):
    """Performs one or more built-in actions, selected by ``action``: ``invocation.action``, a ``confirmed`` action, or
    RECORD_RESULT, an operator's `done` about the undo, with the decision in the argument ``closes``.

    ``prepare`` does the work that may take long, before the guard's transaction, so that no lock is held meanwhile. It
    is not called for an operation whose guard row exists. The body it returns runs inside the transaction once the
    guard has decided that the operation may happen. Both may raise Rejected, NeedsOperator (an operator has to
    decide), InfrastructureError (retry) or any other error (failed); whatever they raise, nothing may have become
    visible. The caller keeps repeating the attempt's last heartbeat.
    """

    async def prepare(self, action: str, invocation: Invocation, attempt: AttemptContext) -> ActionBody:
        """The work before the transaction."""
        ...

    async def read(self, invocation: Invocation, attempt: AttemptContext) -> Any:
        """Perform an action without an effect and without a guard; returns its JSON result."""
        ...

    async def close(self) -> None:
        """Stop everything that still runs; called when the worker stops."""
        ...
