"""Consumes the reply topics: records each reply in the row of its request, wakes the saga, then commits the offset.

After a crash in between, the same replies are read again. Recording is one conditional update, so the first reply
counts; waking an attempt that is over has no effect. Replies that cannot be read, or do not come from the recipient of
the command, go to the dead letters.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from saga_activities.connections import DatabaseConnections
from saga_activities.guard import database_errors
from saga_activities.guard.tables import outbox_home_table
from saga_activities.guard.unreadable_rows import ChangedRow, MissingRowKey
from saga_activities.input_checks import INPUT_CHECKS
from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.record_codec import STEP_KEY_HEADER, decode_headers
from saga_activities.messaging import kafka_request
from saga_activities.messaging.kafka_request import (
    MalformedReply,
    RefusedReply,
    Reply,
    RequestRow,
    decode_reply,
    outcome_of_reply,
)
from saga_activities.messaging.refused_replies import note_refusal
from saga_activities.temporal.attempt_errors import to_application_error
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.logs import fields
from saga_workers.temporal.refusals import refusal_reason
from saga_workers.topics.topic_creation import REPLY_PARTITIONS
from saga_workers.trigger.attempt_gate import AttemptGate
from saga_workers.trigger.consumed_record import ConsumedRecord
from saga_workers.trigger.project_readers import reply_group
from saga_workers.trigger.reader import TopicReader
from saga_workers.trigger.record_checks import checked
from saga_workers.trigger.retry import (
    USUAL_ATTEMPTS,
    DependencyUnavailable,
    PoisonMessage,
    ProcessStopping,
    retry_until_done,
)
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from sagas.builtins.messaging import REQUEST, default_reply_topic
from sagas.definition.model import Definition
from sagas.errors import SagaError, UsageError
from sagas.protocol.outcomes import mask_failure
from sagas.protocol.payloads import encode_result
from sagas.settings import KafkaSettings
from sagas.text.exact_json import decode_json
from sagas.text.exact_numbers import is_equal

log = logging.getLogger("saga.replies")

DeadLetterSink = Callable[[ConsumedRecord, str, str, asyncio.Event], Awaitable[None]]
"""Writes a dead letter and returns when the brokers have it. Arguments: the record, the consumer group, the reason,
and an event that ends the retries.
"""

_SELECT_OUTBOX_ID = select(outbox_home_table.c.home).where(outbox_home_table.c.id == 1)

MAX_CONCURRENT_REPLIES = 16
"""Replies of one topic handled at the same time; each briefly needs a connection."""

_DEAD_LETTER_TIMEOUT = 10.0
"""Seconds that a dead letter may take before ``health`` reports it."""


class ReplyListener:
    """Receives the replies for this process; several processes share the partitions.

    ``counts`` has the replies by result: ``woken``, ``late`` (recorded, but the attempt is over), ``duplicate``,
    ``unknown`` (no such request), ``refused`` (not from the recipient of the command) and ``malformed``.
    ``metrics`` and ``gate``: those of the process.
    """

    def __init__(
        self,
        client: Client,
        kafka: KafkaSettings,
        databases: DatabaseConnections,
        topics: Sequence[str],
        *,
        dead_letter_sink: DeadLetterSink,
        metrics: TriggerMetrics | None = None,
        gate: AttemptGate | None = None,
    ) -> None:
        if kafka.outbox is None:
            raise UsageError(
                "replies are recorded in the outbox database of their commands, and none is configured",
                help='outbox = "…" under [kafka] in saga.toml',
            )
        self._client = client
        self._kafka = kafka
        self._outbox = kafka.outbox
        self._databases = databases
        self._topics = list(topics)
        self._dead_letter_sink = dead_letter_sink
        self._metrics = metrics or TriggerMetrics()
        self._gate = gate or AttemptGate()
        self._error: str | None = "the listener has not started yet"
        self._readers: list[TopicReader] = []
        self._unusable_since: dict[str, float] = {}
        self._stop = asyncio.Event()
        self.counts: Counter[str] = Counter()

    async def run(self, stop: asyncio.Event, grace: float) -> None:
        """Receive replies until ``stop``; those in process then have ``grace`` seconds to end."""
        self._stop = stop
        try:
            await retry_until_done(self._prepare, about=fields(), stop=stop, max_attempts=1_000_000)
        except ProcessStopping:
            return
        log.info("consuming replies", extra=fields(topics=",".join(self._topics)))
        await asyncio.gather(*(reader.run(stop, grace) for reader in self._readers))

    def health(self) -> str | None:
        """Why the listener does not listen; None if it does."""
        if any(time.monotonic() - since > _DEAD_LETTER_TIMEOUT for since in self._unusable_since.values()):
            return "a reply that cannot be used waits for its dead letter topic"
        return self._error or next((why for reader in self._readers if (why := reader.health())), None)

    async def _prepare(self, _: int) -> None:
        """Create the topics and their readers. Raises DependencyUnavailable."""
        engine = self._databases.engine(self._outbox)
        try:
            outbox_id = await read_outbox_id(engine)
            with ThreadPoolExecutor(1, "reply-topics") as thread:
                await asyncio.get_running_loop().run_in_executor(thread, self._create_topics)
        except Exception as error:
            self._error = _error_message(error)
            if self._error is None:
                raise
            self._note_wait(True)
            raise DependencyUnavailable(self._error) from error
        self._note_wait(False)
        for topic in self._topics:
            group = reply_group(self._kafka.prefix, outbox_id, topic).group
            handle = partial(self._handle, engine, group)
            reader = TopicReader(
                self._kafka, group, topic, handle, concurrency=MAX_CONCURRENT_REPLIES, key=_step_key, gate=self._gate
            )
            self._readers.append(reader)
            self._gate.members.append(reader)
            self._metrics.add_reader(reader)
        self._error = None

    def _note_wait(self, waits: bool) -> None:
        for topic in self._topics:
            self._metrics.waits_to_begin(f"{self._kafka.prefix}-replies", topic, waits)

    def _create_topics(self) -> None:
        cluster = KafkaAdmin(self._kafka)
        for topic in self._topics:
            cluster.ensure_topic(topic, REPLY_PARTITIONS)

    async def _handle(self, engine: AsyncEngine, group: str, record: ConsumedRecord) -> None:
        """Handle a record: until its reply is recorded or, if it is none, Kafka has its dead letter."""
        results: list[str] = []

        async def attempt(_: int) -> None:
            try:
                if record.malformed is not None:
                    raise MalformedReply(record.malformed)
                reply = await checked(record, partial(_decode, record), len(record.value or b""))
                result, request = await self._record_reply(engine, reply)
                results.append(result)
                if request is None:
                    return
                compare = partial(_contradiction, request, reply)
                if (conflict := await checked(record, compare, len(reply.data))) is not None:
                    raise PoisonMessage(conflict)
            except RefusedReply as error:
                results.append("refused")
                raise PoisonMessage(str(error)) from None
            except (MalformedReply, ChangedRow) as error:
                raise PoisonMessage(str(error)) from None
            except Exception as error:
                if (message := _error_message(error)) is None:
                    raise
                raise DependencyUnavailable(message) from error

        about = fields(group=group, record=record.position)
        reason = await retry_until_done(
            attempt, about=about, stop=self._stop, max_attempts=USUAL_ATTEMPTS, delivery=record.delivery
        )
        if reason is not None:
            self._unusable_since[record.position] = time.monotonic()
            try:
                await _note(engine, record, reason)
                await self._dead_letter_sink(record, group, reason, self._stop)
            finally:
                del self._unusable_since[record.position]
        result = results[-1] if results else "malformed"
        self.counts[result] += 1
        self._metrics.replied(result)

    async def _record_reply(self, engine: AsyncEngine, reply: Reply) -> tuple[str, RequestRow | None]:
        """Record a reply and wake its saga; returns the result, see ``counts``, and the request."""
        required = not self._kafka.accept_replies_without_token
        first, request = await kafka_request.record_reply(engine, reply, token_required=required)
        if request is None:
            log.warning("reply without a request ignored", extra=fields(key=reply.key, outcome=reply.outcome))
            return "unknown", None
        # Also for a reply read twice: the first time may have ended before the wake-up.
        woken = await complete_attempt(self._client, request, reply.key)
        return "woken" if woken else "late" if first else "duplicate", request


async def _note(engine: AsyncEngine, record: ConsumedRecord, reason: str) -> None:
    """Note in the row of the command why its reply is a dead letter, which is more important than the note."""
    try:
        await note_refusal(engine, record.raw_headers, reason)
    except (SQLAlchemyError, OSError) as error:
        log.warning("the reply is not noted: %s", driver_message(error), extra=fields(record=record.position))


def _step_key(record: ConsumedRecord) -> str | None:
    """The key of the command, whatever the record's own key is: the first of several replies counts."""
    return record.headers.get(STEP_KEY_HEADER)


def _decode(record: ConsumedRecord) -> Reply:
    return decode_reply(record.topic, decode_headers(record.raw_headers), record.value)


def _contradiction(request: RequestRow, reply: Reply) -> str | None:
    """How a later reply differs from the recorded one; None if it is equal JSON, or the recorded one itself."""
    if request.outcome is None:
        return None
    if request.outcome == reply.outcome:
        recorded = request.data or "null"
        if recorded == reply.data or is_equal(decode_json(recorded), decode_json(reply.data)):
            return None
        return f"the first reply to {reply.key}, {request.outcome}, has another value, and it counts"
    return f"the first reply to {reply.key} was {request.outcome}, and it counts; this one is {reply.outcome}"


async def read_outbox_id(engine: AsyncEngine) -> str:
    """The id of the outbox, for `reply_group`. Raises SQLAlchemyError, OSError."""
    async with engine.connect() as connection:
        return (await connection.execute(_SELECT_OUTBOX_ID)).scalar_one()


def _error_message(error: Exception) -> str | None:
    """The message for an expected error; None for an unexpected one."""
    if isinstance(error, SagaError):
        return error.message
    if isinstance(error, MissingRowKey):
        return str(error)
    if isinstance(error, RPCError):
        return f"Temporal does not answer: {error.message}"
    if database_errors.classify_database_error(error) is not None:
        return f"the database of the outbox: {driver_message(error)}"
    return None


# Completes the activity attempt that waits for a reply. Temporal accepts this from any process that has the task token.
_ATTEMPT_OVER = (RPCStatusCode.NOT_FOUND,)
"""The attempt timed out, the saga rolled back, or the attempt has already been completed."""


async def complete_attempt(client: Client, request: RequestRow, key: str) -> bool:
    """Complete the waiting attempt with the reply in the row; False if no attempt waits any more.

    A late reply is not lost: the next attempt finds it in the row. Raises RPCError if Temporal cannot be reached.
    """
    if request.waiter is None or request.outcome is None:
        return False
    data = request.data or "null"
    read = partial(outcome_of_reply, request.outcome, data, request.waiter.attempt)
    replied = await INPUT_CHECKS.run(read, caller=("topic", request.reply_topic), size=len(data))
    outcome = mask_failure(replied, request.waiter.sensitive_texts)
    handle = client.get_async_activity_handle(task_token=request.waiter.token)
    try:
        if outcome.kind == "done":
            await handle.complete(encode_result(outcome, request.waiter.attempt))
        else:
            await handle.fail(to_application_error(outcome, request.waiter.attempt))
    except RPCError as error:
        if error.status in _ATTEMPT_OVER:
            log.info("reply recorded, the attempt that waited for it is over", extra=fields(key=key))
            return False
        if error.status is RPCStatusCode.PERMISSION_DENIED or refusal_reason(error) is not None:
            log.error("Temporal refused the reply, the next attempt reads it: %s", error.message, extra=fields(key=key))
            return False
        raise
    return True


def reply_topics(definitions: Mapping[str, Definition], prefix: str) -> list[str]:
    """The topics named by the definitions, and the default one, if any step makes a request; else none."""
    topics = {
        str((operation.with_ or {}).get("reply_topic") or default_reply_topic(prefix))
        for definition in definitions.values()
        for step in definition.steps
        for operation in step.operations
        if operation.uses == REQUEST
    }
    # Sagas of an older definition may still wait for replies in the default topic.
    return sorted(topics | {default_reply_topic(prefix)}) if topics else []
