"""From an invocation to its outcome: finds who performs an action, and puts the guard around it.

Knows nothing of Temporal: it takes an :class:`Invocation` and answers with an :class:`Outcome`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from saga_activities.attempt import Attempt, Body
from saga_activities.beating import beating
from saga_activities.connections import Connections
from saga_activities.emitting import emit_body, insert_events, nothing, refuses_hold, sql_body, wait_until_published
from saga_activities.guard.address import Address
from saga_activities.guard.guard import Guard
from saga_activities.guard.outcomes import outcome_of
from saga_activities.guard.sql_handle import Sql
from saga_activities.http import HttpConnections, run_http
from saga_activities.outbox import MAX_MESSAGE_BYTES
from saga_activities.performer import Performer
from saga_activities.python_action import BadArguments, bind, run_action
from saga_activities.request.performing import REQUEST_ACTIONS, Requests
from sagas import builtins_messaging as messaging
from sagas.actions import Action, Actions
from sagas.errors import AlreadyCompensated, Rejected, Unavailable, UsageError
from sagas.outcomes import Failure, Outcome
from sagas.probing import Absent, Done, Unknown
from sagas.step import Step
from sagas.wire import Invocation, arguments_hash

SETTLE = "saga.done"
"""A person's `done`: writes the row of the operation with the given result."""

RESULT_LIMIT = 2 * 1024 * 1024 - 64 * 1024
FROZEN_AFTER = 30.0
"""Seconds without a word after which the guarded transaction of a performer ends: it works elsewhere for minutes, and
whoever goes on in the place of a frozen worker waits no longer than this."""

THREADS = 100
"""Plain `def` actions at once, as many as a Temporal worker runs activities: none waits while its timeout runs."""


_BUILT_IN: Mapping[str, Callable[[Mapping[str, Any], Invocation, int, str | None], Body]] = {
    "sql": sql_body,
    messaging.EMIT: emit_body,
    messaging.PUBLISH: emit_body,
    messaging.RELEASE: lambda *_: nothing,
    messaging.DROP: lambda *_: nothing,
}


class NotServed(Exception):
    """This worker cannot perform the action, and has not tried: another one may. One sentence."""


class Dispatcher:
    """Performs invocations with the actions and connections of one project."""

    def __init__(
        self,
        actions: Actions,
        databases: Connections,
        http: HttpConnections,
        performers: Mapping[str, Performer] | None = None,
        requests: Requests | None = None,
        *,
        max_event_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._actions = actions
        self._databases = databases
        self._http = http
        self._performers = performers or {}
        self._requests = requests
        self._max_event_bytes = max_event_bytes
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="saga-action")

    async def perform(self, invocation: Invocation, attempt: Attempt) -> Outcome:
        """Make one attempt. Raises NotServed when this worker does not know the action, AwaitsReply when the attempt
        goes on without it."""
        if invocation.at_most_once and attempt.number > 1:
            sentence = "an earlier attempt ended without an answer, and this participant must not be asked twice"
            return Outcome("unknown", failure=Failure("Unknown", sentence), retryable=False)
        try:
            if invocation.action not in self._performers:
                return await self._make(invocation, attempt)
            async with beating(attempt) as beaten:
                return await self._make(invocation, beaten)
        except (BadArguments, UsageError) as error:
            # Found before anything was called: the definition is wrong, and trying again cannot help.
            return Outcome("failed", failure=Failure("definition", str(error)), retryable=False)

    async def _make(self, invocation: Invocation, attempt: Attempt) -> Outcome:
        return await (self._guarded if invocation.guard is not None else self._unguarded)(invocation, attempt)

    async def _guarded(self, invocation: Invocation, attempt: Attempt) -> Outcome:
        asked = invocation.guard
        assert asked is not None
        guard = self._databases.guard(asked.connection)
        address = Address(invocation.saga_id, invocation.step, invocation.generation)
        clock = {"scheduled_at": attempt.scheduled_at, "deadline": attempt.deadline}
        if invocation.action == SETTLE:
            result = invocation.arguments.get("result")
            return await guard.settle(address, invocation.op, result, mode=asked.mode, **clock)
        if invocation.op == "seal":
            return await guard.seal(address, **clock)
        limits: dict[str, Any] = dict(clock)
        if invocation.action in self._performers:
            limits["idle_limit"] = FROZEN_AFTER
            if told := await self._prepared(guard, address, invocation, attempt):
                return told
        body = confirmed = None
        try:
            if asked.mode != "mark":
                body = await self._guarded_body(invocation.action, invocation.arguments, invocation, attempt)
            if asked.confirmed == "elsewhere":
                confirmed = "elsewhere"
            elif asked.confirmed is not None:
                confirmed = await self._guarded_body(asked.confirmed[0], asked.confirmed[1], invocation, attempt)
        except (BadArguments, UsageError, NotServed):
            raise
        except Exception as error:  # noqa: BLE001 - an outcome like any other: nothing of it is visible
            return outcome_of(error)
        match invocation.op:
            case "undo":
                return await guard.undo(
                    address,
                    body,
                    mode=asked.mode,
                    known_done=asked.known_done,
                    confirmed_body=confirmed,
                    **limits,
                )
            case "confirm":
                return await guard.confirm(address, body, mode=asked.mode, **limits)
            case _:
                assert body is not None
                told = await guard.do(address, arguments_hash(invocation.arguments), body, **limits)
                if (
                    told.kind == "done"
                    and invocation.action == messaging.PUBLISH
                    and invocation.arguments.get("wait") == messaging.UNTIL_PUBLISHED
                ):
                    deadline = time.time() + _time_left(attempt)
                    return await wait_until_published(guard.engine, told.result, attempt, deadline) or told
                return told

    async def _prepared(
        self, guard: Guard, address: Address, invocation: Invocation, attempt: Attempt
    ) -> Outcome | None:
        """The stored answer of an action whose preparation is long; None: it has to be done."""
        if invocation.op not in ("do", "confirm"):
            return None
        hashed = arguments_hash(invocation.arguments) if invocation.op == "do" else None
        return await guard.known(address, invocation.op, hashed, deadline=attempt.deadline)

    async def _guarded_body(
        self, name: str, arguments: Mapping[str, Any], invocation: Invocation, attempt: Attempt
    ) -> Body:
        """What runs inside the guarded transaction, after the work that must not hold it up."""
        performer = self._performers.get(name)
        if performer is None:
            return self._body(name, arguments, invocation, attempt)
        return await performer.prepare(name, invocation, attempt)

    def _body(self, name: str, arguments: Mapping[str, Any], invocation: Invocation, attempt: Attempt) -> Body:
        """The action as something that runs inside (or, with None, outside) a guarded transaction."""
        if name in _BUILT_IN:
            return _BUILT_IN[name](arguments, invocation, self._max_event_bytes, attempt.traceparent)
        action = self._actions.get(name)
        if action is None:
            raise NotServed(f"no action called {name} is registered on this worker")
        bound = bind(action, arguments)

        async def run(sql: Sql | None) -> Any:
            step = Step(
                key=invocation.key,
                forward_key=invocation.forward_key,
                saga_id=invocation.saga_id,
                id=invocation.step,
                op=invocation.op,
                attempt=invocation.earlier_attempts + attempt.number,
                generation=invocation.generation,
                logger=attempt.logger,
                _heartbeat=attempt.heartbeat,
                _sql=sql if sql is None or action.asynchronous else sql.sync(),
                _refuses_hold=_refuses_hold(action, invocation),
            )
            try:
                result = await run_action(action, step, bound, self._threads)
            except (Rejected, AlreadyCompensated):
                raise
            except Exception:
                # The outcome keeps one sentence of it; whoever looks for the bug wants to see the place.
                attempt.logger.debug("%s raised an error", name, exc_info=True)
                raise
            if sql is not None:
                await insert_events(sql, step.events, invocation, self._max_event_bytes, attempt.traceparent)
            return result

        return run

    async def _unguarded(self, invocation: Invocation, attempt: Attempt) -> Outcome:
        if invocation.action == "http":
            return await run_http(
                {name: value for name, value in invocation.arguments.items() if name != "connection"},
                key=invocation.key,
                undoes=invocation.forward_key if invocation.op == "undo" else None,
                connection=self._http.get(invocation.arguments.get("connection")),
                timeout=_time_left(attempt),
                attempt=attempt.number,
                op=invocation.op,  # pyright: ignore[reportArgumentType]
                traceparent=attempt.traceparent,
            )
        if invocation.action in REQUEST_ACTIONS and self._requests is not None:
            return await self._requests.perform(invocation, attempt)
        performer = self._performers.get(invocation.action)
        if performer is not None:
            try:
                return await unguarded(lambda _: performer.read(invocation, attempt), invocation.op)
            except Unavailable as error:
                return outcome_of(error)
        body = self._body(invocation.action, invocation.arguments, invocation, attempt)
        home = self._home(invocation) if invocation.op == "probe" else None
        if home is not None:
            guard = self._databases.guard(home)
            address = Address(invocation.saga_id, invocation.step, invocation.generation)
            told = await guard.ask(address, body, scheduled_at=attempt.scheduled_at, deadline=attempt.deadline)
            return probed(told.result) if told.kind == "done" else replace(told, kind="unknown")
        return await unguarded(body, invocation.op)

    def _home(self, invocation: Invocation) -> str | None:
        """The SQL connection in whose transaction an action works; None: in none."""
        action = self._actions.get(invocation.action)
        if action is not None:
            return action.connection
        return invocation.arguments.get("connection") if invocation.action == "sql" else None


async def unguarded(body: Body, op: str) -> Outcome:
    """Run an action without a guard: whatever it does not say itself is unknown."""
    try:
        result = await body(None)
    except Rejected as error:
        return Outcome("rejected", failure=Failure("Rejected", error.message, error.details), retryable=False)
    except AlreadyCompensated as error:
        return Outcome("late", failure=Failure("AlreadyCompensated", str(error)), retryable=False)
    except (NotServed, Unavailable):
        raise
    except Exception as error:  # noqa: BLE001 - the outcome carries it; nothing is swallowed
        return Outcome("unknown", failure=Failure(type(error).__name__, str(error) or type(error).__name__))
    if op == "probe":
        return probed(result)
    size = len(json.dumps(result))
    if size > RESULT_LIMIT:
        return Outcome.done({"omitted": "size", "bytes": size})
    return Outcome.done(result)


def _refuses_hold(action: Action, invocation: Invocation) -> str | None:
    if not action.holds:
        return f"the action {action.name} holds an event: declare it with @action(…, holds=True)"
    return refuses_hold(invocation)


def _time_left(attempt: Attempt) -> float:
    """Seconds for a request: a little less than the attempt has, so that our answer comes before the platform's."""
    left = attempt.deadline - time.time()
    return max(left - min(0.5, left / 10), 0.05)


def probed(answer: Any) -> Outcome:
    """What a probe action said, for the machine. Any other answer is for the probe's own expressions to judge."""
    match answer:
        case Done():
            return Outcome.done({"probe": "done", "result": answer.result})
        case Absent():
            return Outcome.done({"probe": "absent"}, marker="absent")
        case Unknown():
            return Outcome.done({"probe": "unknown", "message": answer.message})
    return Outcome.done(answer)
