"""Serves commands from a topic: each delivery is replied to, also one that comes again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saga_activities.guard.entry_key import usable_saga_id
from saga_activities.guard.guard import Guard
from saga_activities.guard.rules import OTHER_ARGUMENTS
from saga_activities.kafka.record_codec import CONFIRMS_HEADER, SAGA_ID_HEADER, STEP_KEY_HEADER, UNDOES_HEADER
from saga_activities.messaging import inbox
from saga_activities.participants import CommandCall, ParticipantCommands, is_refusal
from saga_workers.trigger.consumed_record import REJECTED_OUTCOME, ConsumedRecord
from saga_workers.trigger.consumer import RECORD_TIMEOUT, ConsumerHandler
from saga_workers.trigger.record_checks import read_message
from saga_workers.trigger.retry import PoisonMessage
from sagas.actions.consumers import Consumer
from sagas.actions.participants import OPERATIONS, Participant

OPERATION_HEADER = "sagaop"

_KEY_HEADERS = {"do": STEP_KEY_HEADER, "undo": UNDOES_HEADER, "confirm": CONFIRMS_HEADER}
"""The header with the key of the forward command, by operation."""


class CommandHandler(ConsumerHandler):
    """Runs a participant, or a consumer that is also sent commands; the handler of a TopicReader.

    A command has the row of a guarded step instead of one in the inbox, so each delivery can be replied to, and an undo
    that comes first refuses its command. The reply is written in a transaction of its own, after that of the effect: a
    process that ends between the two gets the command again, and finds its outcome.
    """

    def __init__(self, consumer: Consumer, guard: Guard, *arguments: Any, max_bytes: int, **more: Any) -> None:
        super().__init__(consumer, guard, *arguments, max_bytes=max_bytes, **more)
        if isinstance(consumer, Participant):
            self._commands = ParticipantCommands.of(consumer, guard, max_event_bytes=max_bytes)
        else:
            self._commands = ParticipantCommands(consumer.name, consumer.timeout, guard, lambda _: None)

    def _is_command(self, record: ConsumedRecord) -> bool:
        return isinstance(self._consumer, Participant) or OPERATION_HEADER in record.headers

    async def _attempt(self, record: ConsumedRecord, number: int) -> str | None:
        if not self._is_command(record):
            return await super()._attempt(record, number)
        call = await self._call(record, number)
        self._reply_topic(record)
        if isinstance(self._consumer, Participant):
            outcome = await self._commands.perform(call)
        else:
            outcome = await self._handled(record, number, lambda handle: self._commands.perform(call, lambda _: handle))
        if outcome.kind == "done":
            await self._send_reply(record, "done", outcome.result)
        elif is_refusal(outcome):
            assert outcome.failure is not None
            await self._send_rejection(record, outcome.failure.message, outcome.failure.details)
        else:
            await self._raise_failure(outcome)
        if outcome.park_reason in OTHER_ARGUMENTS:
            return f"the key {call.key} belongs to a command with another value, so {record.position} has no effect"
        self._metrics.consumed(self._consumer.name, record.topic, "done" if outcome.kind == "done" else "rejected")
        return None

    async def _record_outcome(
        self,
        record: ConsumedRecord,
        status: inbox.InboxStatus,
        reason: str,
        details: Mapping[str, Any],
        *,
        reply: bool = True,
    ) -> inbox.Duplicate | None:
        """Give a command up: it is rejected for good. A refused undo or confirm may be sent again."""
        if not self._is_command(record):
            return await super()._record_outcome(record, status, reason, details, reply=reply)
        try:
            call = await self._call(record, 1)
        except PoisonMessage:  # without a key nobody can be answered, and nothing can come again
            return None
        if call.op == "do":
            outcome = await self._commands.reject(call, reason, details)
            if outcome.kind == "done":
                await self._send_reply(record, "done", outcome.result)
                return inbox.Duplicate("DONE", None)
            if not is_refusal(outcome):
                await self._raise_failure(outcome)
        if reply:
            await self._send_rejection(record, reason, details)
        return None

    async def _call(self, record: ConsumedRecord, number: int) -> CommandCall:
        """The command that a record is. Raises PoisonMessage."""
        message = await read_message(record)
        op = message.headers.get(OPERATION_HEADER)
        if op not in OPERATIONS:
            raise PoisonMessage(f"the header {OPERATION_HEADER} is {op!r}, not one of {', '.join(OPERATIONS)}")
        key = message.headers.get(_KEY_HEADERS[op])
        if not key or key != key.rstrip():
            raise PoisonMessage(f"the header {_KEY_HEADERS[op]} must have the key of a command, not {key!r}")
        saga_id = message.headers.get(SAGA_ID_HEADER) or ""
        return CommandCall(op, key, message.value, usable_saga_id(saga_id), number)

    async def _send_rejection(self, record: ConsumedRecord, reason: str, details: Mapping[str, Any]) -> None:
        await self._send_reply(record, REJECTED_OUTCOME, {"reason": reason, "details": details})

    async def _send_reply(self, record: ConsumedRecord, outcome: str, value: Any) -> None:
        async def body(sql: Any) -> None:
            await self._reply(sql, record, outcome, value)

        sent = await self._run_transaction(body, RECORD_TIMEOUT)
        if sent.kind != "done":
            await self._raise_failure(sent)
