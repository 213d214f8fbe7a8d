"""Applies the triggers of a saga to an event: start the saga once, or signal the one that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from temporalio.service import RPCError, RPCStatusCode

from saga_activities.messaging.kafka_request import DONE, FAILED, REJECTED
from saga_workers.bulk.acceptance import NotClaimed
from saga_workers.bulk.detach_request import leave_bulk_workflow
from saga_workers.client import Client
from saga_workers.interventions import signal_message
from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.location import Location
from saga_workers.runtime.logs import fields
from saga_workers.start.existing_sagas import AlreadyEnded
from saga_workers.start.saga_starter import SagaStarter, id_problem, id_text
from saga_workers.start.shared_starts import SharedStarts
from saga_workers.start.start_requests import StartRequest
from saga_workers.temporal.refusals import refusal_reason
from saga_workers.temporal.temporal_runs import NoAnswer
from saga_workers.trigger.consumed_record import OUTCOME_HEADER, ConsumedRecord
from saga_workers.trigger.dead_letters import DeadLetters
from saga_workers.trigger.record_checks import checked, read_message
from saga_workers.trigger.retry import (
    USUAL_ATTEMPTS,
    AttemptFailed,
    DependencyUnavailable,
    PoisonMessage,
    WaitLog,
    retry_until_done,
)
from saga_workers.trigger.signal_limit import SignalLimit
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from saga_workers.views.saga_view import read_view
from sagas.actions.consumers import Message
from sagas.definition.model import Definition, KafkaTrigger
from sagas.definition.saga_ids import workflow_id_problem
from sagas.errors import RefusedError, UsageError
from sagas.expressions import ExpressionError, compile_value
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import FINAL_STATES, SagaView
from sagas.text.exact_json import encode_json

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
            _Trigger(trigger, TriggerExpressions(trigger)) for trigger in definition.triggers if trigger.topic == topic
        ]
        self._waits = WaitLog()
        self._signals = SignalLimit(client.project.settings.kafka.max_signals)
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
        try:
            request, saga_id = await checked(record, partial(_start_request, starter, trigger.values, message, context))
            started = await self._starts(trigger, starter).start(request, id=saga_id)
        except UsageError as error:
            raise PoisonMessage(error.message) from None
        except AlreadyEnded:  # this event had started its saga
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
        if (problem := workflow_id_problem(saga_id)) is not None:
            raise PoisonMessage(problem)
        if saga_id.endswith(UNDO_SUFFIX):
            raise PoisonMessage(f"{saga_id} is the undo of a saga, which takes no signals; send the id of the saga")
        by = f"{message.topic}/{message.partition}/{message.offset}"
        reject = rejection_reason(message)
        data = None if reject is not None else await checked(record, partial(values.input, context))
        try:
            sent = signal_message(trigger.signal, data, by=by, reject=reject)
        except UsageError as error:
            raise PoisonMessage(error.message) from None
        locator = self._client.locator
        location = await locator.locate(saga_id)
        if location.member is not None and location.open_run is None:
            location = await leave_bulk_workflow(locator, location.member)
        if location.home is None:
            raise SagaNotFound(f"there is no saga {saga_id}")
        if location.run is not None and location.run.run.workflow_type != self._definition.saga:
            raise PoisonMessage(f"{saga_id} is a saga {location.run.run.workflow_type}, not {self._definition.saga}")
        if location.kind == "running":
            size = len(encode_json(sent))
            try:
                with nullcontext() if location.run is None else self._signals.admit(location.run, size):
                    await locator.temporal.get_workflow_handle(saga_id).signal(trigger.signal, sent)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
            else:
                self._metrics.signalled(self._definition.saga, message.topic)
                return
        view = await read_view(locator, saga_id)
        if view.is_unverified or not _already_received(view, by, reject):
            raise PoisonMessage(_why_not_signalled(location, view))


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
    starts = [TriggerExpressions(trigger) for trigger in definition.triggers if trigger.signal is None]
    topics = [trigger.topic for trigger in definition.triggers if trigger.signal is None]
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
    request = starter.make_request(values.input(context))
    return request, values.id(context) or request.id or f"{context['saga']['name']}-{message.id}"


def fill_time(triggers: Sequence[KafkaTrigger]) -> float:
    """Seconds that the broker, and then the reader, may wait for further events after a first one; 0 unless all of the
    triggers have `bulk`.

    Each of them has half of the shortest `wait`.
    """
    waits = [trigger.bulk.wait for trigger in triggers if trigger.bulk is not None]
    return min(min(waits) / 2, MAX_FILL_TIME) if waits and len(waits) == len(triggers) else 0.0


class SagaNotFound(AttemptFailed):
    """The saga that an event is addressed to does not exist, perhaps not yet."""


def rejection_reason(message: Message) -> str | None:
    """The reason if the sender marks the event as a rejection or a failure, as in a reply; else None.

    Raises PoisonMessage if the mark is another one.
    """
    outcome = message.headers.get(OUTCOME_HEADER, DONE)
    if outcome == DONE:
        return None
    if outcome not in (REJECTED, FAILED):
        raise PoisonMessage(f"the header {OUTCOME_HEADER} is {outcome!r}, not {DONE}, {REJECTED} or {FAILED}")
    reason = message.value.get("reason") if isinstance(message.value, Mapping) else None
    return str(reason or f"{outcome} without a reason")


def _why_not_signalled(location: Location, view: SagaView) -> str:
    if location.kind == "undoing":
        return f"{location.saga_id} is being undone, and takes no signals any more"
    if view.state in FINAL_STATES:
        return f"{location.saga_id} has already ended {view.state}"
    if view.source == "ledger":
        return f"Temporal has no run of {location.saga_id} any more, which was {view.state} in the ledger"
    return f"the run of {location.saga_id} was closed before it took the signal"


def _already_received(view: SagaView, by: str, reject: str | None) -> bool:
    """Return whether the saga received this event before it ended: the event was delivered twice."""
    waits = [step for step in view.steps if step.uses == "wait"]
    if reject is None:
        return any(isinstance(step.result, Mapping) and step.result.get("by") == by for step in waits)
    return any(step.outcome == "rejected" and step.error and step.error.message == reject for step in waits)


def _temporal_error(error: RPCError) -> Exception:
    """The error of a start for the trigger: only a refusal of the request itself is the fault of the event."""
    if (reason := refusal_reason(error)) is not None:
        return PoisonMessage(f"Temporal refuses the request: {reason}")
    return DependencyUnavailable(f"Temporal does not answer: {error.message}")


_Render = Callable[[Mapping[str, Any]], Any]


class TriggerExpressions:
    """The compiled expressions of a trigger. Every method raises PoisonMessage if an expression fails on the event."""

    def __init__(self, trigger: KafkaTrigger) -> None:
        self._id = None if trigger.id is None else compile_value(trigger.id).render
        self._input = compile_value(trigger.input).render
        self._filter = None if trigger.filter is None else compile_value(trigger.filter).render

    def matches(self, context: Mapping[str, Any]) -> bool:
        """Return whether the event passes the filter."""
        if self._filter is None:
            return True
        value = _evaluate("filter", self._filter, context)
        if not isinstance(value, bool):
            raise PoisonMessage("`filter` is not a boolean for this event")
        return value

    def id(self, context: Mapping[str, Any]) -> str | None:
        """The saga id; None if the trigger has no template for it."""
        if self._id is None:
            return None
        value = _evaluate("id", self._id, context)
        id = id_text(value)
        if id is None:
            raise PoisonMessage(f"for this event `id` {id_problem(value)}")
        return id

    def input(self, context: Mapping[str, Any]) -> Any:
        return _evaluate("input", self._input, context)


def _evaluate(field: str, render: _Render, context: Mapping[str, Any]) -> Any:
    try:
        return render(context)
    except ExpressionError as error:
        raise PoisonMessage(f"`{field}` cannot be evaluated for this event: {error.message}") from None
