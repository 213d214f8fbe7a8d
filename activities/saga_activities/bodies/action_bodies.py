"""The bodies of actions: what runs inside the guard's transaction, for one call or for those of several sagas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from saga_activities.attempt_context import ActionBody, AttemptContext
from saga_activities.bodies.python_action import (
    ActionNotRegistered,
    bind_arguments,
    jsonable,
    ordinary_errors,
    run_python_action,
)
from saga_activities.bodies.sql_action import restore_body, sql_body
from saga_activities.guard.action_sql import ActionSql, until_return
from saga_activities.guard.sql_session import SqlSession
from saga_activities.json_results import UnusableResult
from saga_activities.messaging.outbox import (
    MAX_MESSAGE_BYTES,
    PreparedEvents,
    emit_body,
    emitted_events,
    empty_body,
    hold_refusal,
    insert_events,
)
from saga_activities.own_frames import logging_own_frames
from sagas.actions.batch import BatchStep, Item
from sagas.actions.events import Event, EventLog
from sagas.actions.registry import Action, Actions
from sagas.actions.step import Step
from sagas.builtins import messaging
from sagas.builtins.automatic import RESTORE
from sagas.definition.call_arguments import argument_problem
from sagas.errors import AlreadyCompensated, Rejected, UsageError
from sagas.protocol.outcomes import Outcome, refused_value
from sagas.protocol.payloads import Invocation

MAX_ACTION_THREADS = 100
"""Concurrent plain `def` actions: as many as activities of a Temporal worker, so none queues while its timeout runs."""

_BUILTIN_BODIES: Mapping[str, Callable[[Mapping[str, Any], Invocation, AttemptContext, int], ActionBody]] = {
    "sql": sql_body,
    RESTORE: restore_body,
    messaging.EMIT: emit_body,
    messaging.PUBLISH: emit_body,
    messaging.RELEASE: lambda *_: empty_body,
    messaging.DROP: lambda *_: empty_body,
}


def wrong_arguments(invocation: Invocation) -> Outcome | None:
    """The outcome of a call whose built-in action cannot take its arguments: nothing runs, and a retry cannot help."""
    confirmed = invocation.guard.confirmed if invocation.guard is not None else None
    calls = [(invocation.action, invocation.arguments), *([confirmed] if isinstance(confirmed, tuple) else [])]
    for action, arguments in calls:
        if (problem := argument_problem(action, arguments)) is not None:
            failure = refused_value(f"{invocation.entry}: {problem}")
            return Outcome("failed", failure=failure, retryable=False)
    return None


class ActionBodies:
    """The actions of one project."""

    def __init__(
        self, actions: Actions, *, max_event_bytes: int = MAX_MESSAGE_BYTES, context: type[Step] = Step
    ) -> None:
        """``context``: the class of what a Python action receives first."""
        self._actions = actions
        self._context = context
        self._max_event_bytes = max_event_bytes
        self._threads = ThreadPoolExecutor(MAX_ACTION_THREADS, thread_name_prefix="saga-action")

    def connection(self, name: str) -> str | None:
        """The SQL connection of a Python action; None without one, and for any other action."""
        action = self._actions.get(name)
        return None if action is None else action.connection

    def body(
        self, name: str, arguments: Mapping[str, Any], invocation: Invocation, attempt: AttemptContext
    ) -> ActionBody:
        """The action as a body that runs inside (or, with None, outside) a guarded transaction.

        Raises ActionNotRegistered, InvalidArguments or UsageError.
        """
        if name in _BUILTIN_BODIES:
            return _BUILTIN_BODIES[name](arguments, invocation, attempt, self._max_event_bytes)
        action = self._actions.get(name)
        if action is None:
            raise ActionNotRegistered(f"no action called {name} is registered on this worker")
        bound = bind_arguments(action, arguments, invocation.entry)
        perform = self._batch_of_one if action.batch else self._python_action

        async def run(sql: SqlSession | None) -> Any:
            try:
                with logging_own_frames(attempt.logger, action.function, name, attempt.number):
                    result, events = await perform(action, bound, invocation, attempt, sql)
                if sql is not None:
                    sql.check_statements()
            except (Rejected, AlreadyCompensated):
                raise
            except (UsageError, UnusableResult) as error:
                kind = UsageError if isinstance(error, UsageError) else UnusableResult
                raise kind(f"step {invocation.entry}: {action.place}: {error}") from error
            if sql is not None:
                await insert_events(sql, events, invocation, self._max_event_bytes, attempt.traceparent)
            return result

        return run

    async def _python_action(
        self,
        action: Action,
        arguments: Mapping[str, Any],
        invocation: Invocation,
        attempt: AttemptContext,
        sql: SqlSession | None,
    ) -> tuple[Any, Iterable[Event]]:
        handle = None if sql is None else ActionSql(sql, self._context.__name__.lower())
        events = EventLog(None if sql is None else sql.forbid_commit)
        step = self._context(
            key=invocation.key,
            forward_key=invocation.forward_key,
            saga_id=invocation.saga_id,
            id=invocation.entry,
            op=invocation.op,
            attempt=invocation.earlier_attempts + attempt.number,
            generation=invocation.generation,
            logger=attempt.logger,
            _heartbeat=attempt.heartbeat,
            _sql=handle if handle is None or action.asynchronous else handle.sync(),
            _hold_refusal=_hold_refusal(action, invocation),
            events=events,
        )
        with until_return(handle, [events]):
            result = await run_python_action(action, step, arguments, self._threads)
        return result, events

    async def _batch_of_one(
        self,
        action: Action,
        arguments: Mapping[str, Any],
        invocation: Invocation,
        attempt: AttemptContext,
        sql: SqlSession | None,
    ) -> tuple[Any, Iterable[Event]]:
        items = self.batch_items(action, [(invocation, arguments)], attempt)
        (result,) = await self.run_batch(action, items, attempt, sql)
        if isinstance(result, Rejected):
            raise result
        return result, items[0].events

    # --- the calls of several sagas ----------------------------------------------------------------------------

    def batch_action(self, name: str) -> Action | None:
        """The batch action of this name."""
        action = self._actions.get(name)
        return action if action is not None and action.batch else None

    def batch_items(
        self, action: Action, calls: Sequence[tuple[Invocation, Mapping[str, Any]]], attempt: AttemptContext
    ) -> list[Item]:
        """Return what a batch action receives for these calls and their arguments."""
        return [
            Item(
                key=call.key,
                saga_id=call.saga_id,
                id=call.entry,
                op=call.op,
                attempt=call.earlier_attempts + attempt.number,
                generation=call.generation,
                arguments=arguments,
                forward_key=call.forward_key,
                _hold_refusal=_hold_refusal(action, call),
            )
            for call, arguments in calls
        ]

    async def run_batch(
        self, action: Action, items: Sequence[Item], attempt: AttemptContext, sql: SqlSession | None
    ) -> Sequence[Any]:
        """A result or Rejected for each item, in order. Raises UsageError if the action returns anything else."""
        handle = None if sql is None else ActionSql(sql)
        with until_return(handle, [item.events for item in items]), ordinary_errors():
            results = await action.function(BatchStep(attempt.logger, attempt.heartbeat, handle), list(items))
        if not isinstance(results, Sequence) or isinstance(results, str) or len(results) != len(items):
            count = len(results) if isinstance(results, Sequence) else type(results).__name__
            raise UsageError(
                f"the batch action {action.name} must return a list with a result for each of {len(items)} items,"
                f" not {count}"
            )
        return [result if isinstance(result, Rejected) else jsonable(result) for result in results]

    def prepared(self, item: Item, invocation: Invocation, attempt: AttemptContext) -> PreparedEvents:
        """The rows of the events of an item. Raises UnusableResult."""
        return PreparedEvents.of(item.events, invocation, attempt.traceparent, self._max_event_bytes)

    def emitted(self, arguments: Mapping[str, Any], invocation: Invocation, attempt: AttemptContext) -> PreparedEvents:
        """Return what an emitting built-in writes. Raises UsageError or UnusableResult."""
        return emitted_events(arguments, invocation, attempt, self._max_event_bytes)


def _hold_refusal(action: Action, invocation: Invocation) -> str | None:
    if not action.holds:
        return f"the action {action.name} holds an event: declare it with @action(…, holds=True)"
    return hold_refusal(invocation)
