"""Applies the triggers of a saga to an event: start the saga once, or signal the one that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from temporalio.service import RPCError

from saga_activities.messaging.kafka_request import DONE, FAILED, REJECTED
from saga_workers.bulk.acceptance import NotClaimed
from saga_workers.client import Client
from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.runtime.logs import fields
from saga_workers.signals.signal_delivery import SagaNotFound, Signal, SignalDelivery
from saga_workers.signals.signal_limit import SignalRefused
from saga_workers.start.existing_sagas import AlreadyEnded
from saga_workers.start.expression_failures import failure_reason
from saga_workers.start.saga_starter import SagaStarter, id_problem, id_text
from saga_workers.start.shared_starts import SharedStarts
from saga_workers.start.start_requests import StartRequest
from saga_workers.temporal.refusals import refusal_reason
from saga_workers.temporal.temporal_runs import NoAnswer
from saga_workers.trigger.consumed_record import OUTCOME_HEADER, ConsumedRecord
from saga_workers.trigger.dead_letters import DeadLetters
from saga_workers.trigger.normalised_events import parts_passed_on, with_normalised_value
from saga_workers.trigger.record_checks import checked, read_message
from saga_workers.trigger.retry import (
    USUAL_ATTEMPTS,
    AttemptFailed,
    DependencyUnavailable,
    PoisonMessage,
    ProcessStopping,
    WaitLog,
    retry_until_done,
)
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from sagas.actions.consumers import Message
from sagas.definition.model import Definition, KafkaTrigger
from sagas.errors import RefusedError, UsageError
from sagas.expressions import ExpressionError, compile_value
from sagas.protocol.payloads import input_digest
from sagas.protocol.size_limits import MAX_MESSAGE_CHARACTERS
from sagas.text.shortening import shorten_middle

MAX_FILL_TIME = 0.1
"""Seconds. A reader that waits cannot stop."""


class SagaTrigger:
    """Passes the events of one topic to the triggers of one saga; the handler of a TopicReader."""

    def __init__(
        self,
        client: Client,
        definition: Definition,
        topic: str,
        group: str,
        dead_letters: DeadLetters,
        metrics: TriggerMetrics,
        stop: asyncio.Event,
    ) -> None:
        self._client = client
        self._definition = definition
        self._group = group
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._stop = stop
        self._triggers = [
            _Trigger(trigger, TriggerExpressions(trigger, definition.input))
            for trigger in definition.triggers
            if trigger.topic == topic
        ]
        self._waits = WaitLog()
        self._signals = SignalDelivery(client.locator, client.project.settings.kafka.max_signals)
        self._variables = dict(client.project.settings.vars)

    @property
    def most_shared(self) -> int:
        """The most events that are started together; 0 if each is started on its own."""
        return max(
            (trigger.trigger.bulk.max for trigger in self._triggers if trigger.trigger.bulk is not None), default=0
        )

    @property
    def fill_time(self) -> float:
        """See :func:`fill_time`."""
        return fill_time([trigger.trigger for trigger in self._triggers])

    @property
    def ordered(self) -> bool:
        """True if the events of a key wait for each other. Events that share a workflow begin at once anyway."""
        return any(trigger.trigger.bulk is None for trigger in self._triggers)

    async def __call__(self, record: ConsumedRecord) -> None:
        """Handle a record: until Temporal has its start or signal, or Kafka its dead letter. Raises ProcessStopping."""

        async def attempt(number: int) -> None:
            await self._attempt(record, number)

        reason = await retry_until_done(
            attempt,
            about=fields(group=self._group, record=record.position),
            stop=self._stop,
            max_attempts=USUAL_ATTEMPTS,
            delivery=record.delivery,
            log_wait=self._waits.log if self.most_shared else None,
        )
        if reason is not None:
            await self._dead_letters.send(record, self._group, reason, self._stop)

    async def _attempt(self, record: ConsumedRecord, number: int) -> None:
        message = await read_message(record)
        context = _context(self._definition, message, self._variables)
        for trigger in self._triggers:
            if not await checked(record, partial(trigger.values.matches, context)):
                continue
            try:
                if trigger.trigger.signal is None:
                    await self._start(record, message, trigger, context, number)
                else:
                    await self._signal(record, trigger.trigger, message, trigger.values, context)
            except RPCError as error:
                raise _temporal_error(error) from error
            except (LedgerUnavailable, NoAnswer, NotClaimed) as error:
                raise DependencyUnavailable(error.message) from error

    async def _start(
        self, record: ConsumedRecord, message: Message, trigger: _Trigger, context: Mapping[str, Any], number: int
    ) -> None:
        starter = await self._client.starter(self._definition.saga)
        if not self._client.project.definition(self._definition.saga).is_started_like(self._definition):
            await self._stop.wait()  # a reader with the definition as it is now gets the record
            raise ProcessStopping()
        try:
            request, saga_id = await checked(record, partial(_start_request, starter, trigger.values, message, context))
            if waits := trigger.trigger.redeliver:
                request = replace(request, redelivery={"intervals": list(waits), "passed": 0})
            started = await self._starts(trigger, starter).start(request, id=saga_id)
        except UsageError as error:
            raise PoisonMessage(error.message) from None
        except AlreadyEnded as ended:
            if ended.event not in (None, _event_identity(message)):
                reason = f"{ended.saga_id} has been started by another event, and has ended {ended.state}"
                raise PoisonMessage(reason) from None
            # This event had started its saga, as far as anybody knows.
            self._metrics.existed(self._definition.saga, message.topic)
            return
        except RefusedError as error:
            if number < 2:
                raise  # the saga may have ended just now
            raise PoisonMessage(error.message) from None
        note = self._metrics.started if started.started else self._metrics.existed
        note(self._definition.saga, message.topic)

    def _starts(self, trigger: _Trigger, starter: SagaStarter) -> SagaStarter | SharedStarts:
        bulk = trigger.trigger.bulk
        if bulk is None or not self._client.ledger.configured:
            return starter
        if trigger.shared is None:
            trigger.shared = SharedStarts(starter, limit=bulk.max)
        return trigger.shared

    async def _signal(
        self,
        record: ConsumedRecord,
        trigger: KafkaTrigger,
        message: Message,
        values: TriggerExpressions,
        context: Mapping[str, Any],
    ) -> None:
        assert trigger.signal is not None
        saga_id = await checked(record, partial(values.id, context))
        assert saga_id is not None  # SAGA131 ensures it
        by = f"{message.topic}/{message.partition}/{message.offset}"
        reject = rejection_reason(message)
        data = None if reject is not None else await checked(record, partial(values.input, context))
        signal = Signal(saga_id, trigger.signal, data, by, reject)
        try:
            is_sent = await self._signals.deliver(signal, self._definition.saga)
        except SignalRefused as error:
            raise PoisonMessage(error.message) from None
        except SagaNotFound as error:
            raise AttemptFailed(error.message) from None
        if is_sent:
            self._metrics.signalled(self._definition.saga, message.topic)


@dataclass(slots=True)
class _Trigger:
    """``shared``: the starts that share workflows, as soon as there is one."""

    trigger: KafkaTrigger
    values: TriggerExpressions
    shared: SharedStarts | None = None


async def started_saga(client: Client, definition: Definition, records: Sequence[ConsumedRecord]) -> str | None:
    """The id of a saga that one of these records has started; None if there is none.

    A saga that is older than the record was started by another one, for example of a topic with this name before.

    Raises DependencyUnavailable if Temporal or the ledger does not answer.
    """
    starter = await client.starter(definition.saga)
    variables = dict(client.project.settings.vars)
    triggers = [trigger for trigger in definition.triggers if trigger.signal is None]
    starts = [TriggerExpressions(trigger, definition.input) for trigger in triggers]
    topics = [trigger.topic for trigger in triggers]
    for record in records:
        for topic, values in zip(topics, starts, strict=True):
            if topic != record.topic:
                continue
            try:
                message = await read_message(record)
                context = _context(definition, message, variables)
                if not await checked(record, partial(values.matches, context)):
                    continue
                request = partial(_start_request, starter, values, message, context)
                _, saga_id = await checked(record, request)
            except (PoisonMessage, UsageError, RefusedError):
                continue  # it starts nothing
            try:
                location = await client.locator.locate(saga_id)
            except RPCError as error:
                raise _temporal_error(error) from error
            except (LedgerUnavailable, NoAnswer) as error:
                raise DependencyUnavailable(error.message) from error
            if location.started_at is not None and location.started_at.timestamp() * 1000 >= record.timestamp:
                return saga_id
    return None


def _context(definition: Definition, message: Message, variables: Mapping[str, Any]) -> dict[str, Any]:
    return {"trigger": message.as_trigger(), "vars": variables, "saga": {"name": definition.saga}}


def _start_request(
    starter: SagaStarter, values: TriggerExpressions, message: Message, context: Mapping[str, Any]
) -> tuple[StartRequest, str]:
    """The start of an event, and the id of its saga. Raises PoisonMessage and UsageError."""
    request = replace(starter.make_request(values.input(context)), event=_event_identity(message))
    id = values.id_of_start(context, request.input) or request.id
    return request, id or f"{context['saga']['name']}-{message.id}"


def _event_identity(message: Message) -> str:
    """The digest of the identity of an event, by which its saga knows it again: that itself may have any length."""
    return input_digest(message.id)


def fill_time(triggers: Sequence[KafkaTrigger]) -> float:
    """Seconds that the broker, and then the reader, may wait for further events after a first one; 0 unless all of the
    triggers have `bulk`.

    Each of them has half of the shortest `wait`.
    """
    waits = [trigger.bulk.wait for trigger in triggers if trigger.bulk is not None]
    return min(min(waits) / 2, MAX_FILL_TIME) if waits and len(waits) == len(triggers) else 0.0


def rejection_reason(message: Message) -> str | None:
    """The reason if the sender marks the event as a rejection or a failure, as in a reply; else None. A long one is cut
    as the saga does it, so that its view shows whether it has received this one.

    Raises PoisonMessage if the mark is another one.
    """
    outcome = message.headers.get(OUTCOME_HEADER, DONE)
    if outcome == DONE:
        return None
    if outcome not in (REJECTED, FAILED):
        raise PoisonMessage(f"the header {OUTCOME_HEADER} is {outcome!r}, not {DONE}, {REJECTED} or {FAILED}")
    reason = message.value.get("reason") if isinstance(message.value, Mapping) else None
    return shorten_middle(str(reason or f"{outcome} without a reason"), MAX_MESSAGE_CHARACTERS)


def _temporal_error(error: RPCError) -> Exception:
    """The error of a start for the trigger: only a refusal of the request itself is the fault of the event."""
    if (reason := refusal_reason(error)) is not None:
        return PoisonMessage(f"Temporal refuses the request: {reason}")
    return DependencyUnavailable(f"Temporal does not answer: {error.message}")


_Render = Callable[[Mapping[str, Any]], Any]


class TriggerExpressions:
    """The compiled expressions of a trigger. Every method raises PoisonMessage if an expression fails on the event.

    ``schema``: that of the saga's input. With `x-sensitive` values in it no error quotes the event, since any part of
    that may be on its way into such a value.
    """

    def __init__(self, trigger: KafkaTrigger, schema: Any = None) -> None:
        self._schema = schema
        self._id = None if trigger.id is None else compile_value(trigger.id).render
        self._input = compile_value(trigger.input).render
        self._passed_on = () if trigger.id is None else tuple(parts_passed_on(trigger.input))
        self._filter = None if trigger.filter is None else compile_value(trigger.filter).render

    def matches(self, context: Mapping[str, Any]) -> bool:
        """Return whether the event passes the filter."""
        if self._filter is None:
            return True
        value = self._evaluate("filter", self._filter, context)
        if not isinstance(value, bool):
            raise PoisonMessage("`filter` is not a boolean for this event")
        return value

    def id(self, context: Mapping[str, Any]) -> str | None:
        """The saga id; None if the trigger has no template for it."""
        if self._id is None:
            return None
        value = self._evaluate("id", self._id, context)
        id = id_text(value)
        if id is None:
            raise PoisonMessage(f"for this event `id` {id_problem(value)}")
        return id

    def id_of_start(self, context: Mapping[str, Any], input: Any) -> str | None:
        """The saga id of a start with this input, which sees the event with the integers of the input's schema."""
        if self._id is None:
            return None
        return self.id(with_normalised_value(context, self._passed_on, input))

    def input(self, context: Mapping[str, Any]) -> Any:
        return self._evaluate("input", self._input, context)

    def _evaluate(self, field: str, render: _Render, context: Mapping[str, Any]) -> Any:
        try:
            return render(context)
        except ExpressionError as error:
            reason = failure_reason(error, self._schema)
            raise PoisonMessage(f"`{field}` cannot be evaluated for this event: {reason}") from None
