"""One attempt of `kafka.request`: write the command once, then wait for its reply without holding anything.

=============================  ====================================================================================
what the row says              what the attempt does
=============================  ====================================================================================
nothing: it is new             writes the command and itself as the one who waits, in one transaction
no reply yet                   writes itself as the one who waits; the command is in the outbox already
a reply                        answers with it
sealed                         late: the saga went backward before the command was written, and it never will be
a refused undo or confirm,     a person has said "try again": forgets the refusal and writes the command once more
asked by a new call
=============================  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from saga_activities.attempt import Attempt, AwaitsReply
from saga_activities.connections import Connections
from saga_activities.emitting import key_text
from saga_activities.guard.address import Address
from saga_activities.guard.sql_handle import Sql
from saga_activities.outbox import insert_event
from saga_activities.request import rows
from saga_activities.request.reply import DONE, KEY_HEADER, outcome_of
from saga_activities.request.rows import SEALED, Request, Waiter
from sagas.builtins_messaging import is_reserved
from sagas.builtins_request import REPLY, REQUEST, default_reply_topic
from sagas.errors import UsageError
from sagas.outcomes import Failure, Outcome
from sagas.settings.kafka import KafkaSettings
from sagas.step import Event
from sagas.wire import Invocation

COMMAND = "saga.command"
"""The CloudEvents type of a command."""

REQUEST_ACTIONS = (REQUEST, REPLY)

_WAITING = object()


class Requests:
    """Performs `kafka.request` and its probe with the tables of ``[kafka] outbox``."""

    def __init__(self, databases: Connections, kafka: KafkaSettings) -> None:
        self._databases = databases
        self._kafka = kafka

    async def perform(self, invocation: Invocation, attempt: Attempt) -> Outcome:
        """The outcome, if a reply is there.

        Raises :class:`AwaitsReply` when there is none yet, and UsageError for arguments that are no command.
        """
        if invocation.action == REPLY:
            return await self._look(invocation, attempt)
        if not attempt.token:
            raise UsageError(f"{REQUEST} needs Temporal, which wakes the saga when the reply comes")
        command = _command(invocation, self._kafka.prefix, attempt.traceparent)
        waiter = Waiter(attempt.token, attempt.number, invocation.earlier_attempts)

        async def ask(sql: Sql) -> Any:
            found = await rows.lock(sql, _row(invocation, attempt))
            again = invocation.op != "do" and found.refused and _is_new_call(found, invocation)
            if found.outcome is not None and not again:
                return _told(found, attempt)
            if found.fresh or again:
                event = replace(command, id=_event_id(invocation, again))
                await insert_event(sql, event, invocation, max_bytes=self._kafka.max_message_bytes)
            await rows.wait(sql, invocation.key, waiter)
            return _WAITING

        told = await self._transaction(invocation, attempt, ask)
        if told.kind != "done":
            return told
        if told.result is _WAITING:
            raise AwaitsReply(invocation.key)
        return told.result

    async def _look(self, invocation: Invocation, attempt: Attempt) -> Outcome:
        """The probe: what the row says, and a seal where there is none."""

        async def look(sql: Sql) -> Any:
            found = await rows.lock(sql, {**_row(invocation, attempt), "op": "do", "outcome": SEALED})
            if found.outcome is None:
                message = "the command is on its way or was received, and there is no reply to it"
                return Outcome.done({"probe": "unknown", "message": message}, attempt=attempt.number)
            if found.outcome == DONE:
                result = outcome_of(DONE, found.data or "null", attempt.number).result
                return Outcome.done({"probe": "done", "result": result}, attempt=attempt.number)
            return Outcome.done({"probe": "absent"}, attempt=attempt.number, marker="absent")

        told = await self._transaction(invocation, attempt, look)
        return told.result if told.kind == "done" else replace(told, kind="unknown")

    async def _transaction(self, invocation: Invocation, attempt: Attempt, body: Any) -> Outcome:
        if self._kafka.outbox is None:
            raise UsageError(f'{REQUEST} needs a database for its commands: [kafka] outbox = "…" in saga.toml')
        guard = self._databases.guard(self._kafka.outbox)
        address = Address(invocation.saga_id, invocation.step, invocation.generation)
        return await guard.ask(address, body, scheduled_at=attempt.scheduled_at, deadline=attempt.deadline)


def _told(found: Request, attempt: Attempt) -> Outcome:
    if found.outcome == SEALED:
        failure = Failure("AlreadyCompensated", "the saga went backward before this command was written")
        return Outcome("late", failure=failure, retryable=False)
    return outcome_of(found.outcome or DONE, found.data or "null", attempt.number)


def _is_new_call(found: Request, invocation: Invocation) -> bool:
    """The refusal was told to an earlier call; an attempt of the same call may have missed it."""
    return found.waiter is not None and invocation.earlier_attempts > found.waiter.earlier


def _row(invocation: Invocation, attempt: Attempt) -> dict[str, Any]:
    return {
        "step_key": invocation.key,
        "saga_id": invocation.saga_id,
        "step": invocation.step,
        "generation": invocation.generation,
        "op": invocation.op,
        "created_at": attempt.scheduled_at,
    }


def _event_id(invocation: Invocation, again: bool) -> str:
    """The same at every attempt: the outbox itself would refuse a second command."""
    name = f"{invocation.key}#{invocation.earlier_attempts}" if again else invocation.key
    return str(uuid5(NAMESPACE_URL, f"saga:{name}"))


def _command(invocation: Invocation, prefix: str, traceparent: str | None) -> Event:
    """The message a participant receives. Raises UsageError."""
    given = invocation.arguments
    unknown = [name for name in given if name not in ("topic", "reply_topic", "key", "value", "headers")]
    if unknown:
        raise UsageError(f"{REQUEST} has no argument {unknown[0]!r}")
    topic, reply_topic = given.get("topic"), given.get("reply_topic") or default_reply_topic(prefix)
    if not isinstance(topic, str) or not topic or not isinstance(reply_topic, str):
        raise UsageError(f"{REQUEST} needs a `topic`, which is a text; a `reply_topic` is one, too")
    headers = given.get("headers") or {}
    if not isinstance(headers, Mapping):
        raise UsageError(f"`headers` of {REQUEST} is a mapping")
    for name in headers:
        if is_reserved(name):
            raise UsageError(f"the header {name!r} of {REQUEST} is the engine's own: choose another name")
    ours = {KEY_HEADER: invocation.key, "sagaop": invocation.op, "sagareplyto": reply_topic}
    if traceparent is not None:
        ours["traceparent"] = traceparent
    if invocation.op == "undo":
        ours["sagaundoes"] = invocation.forward_key
    key = given.get("key")
    # Do and undo of one saga stay in order, if nobody says otherwise.
    written = invocation.saga_id if key is None else key_text(key)
    return Event(topic, written, given.get("value"), {**headers, **ours}, type=COMMAND)
