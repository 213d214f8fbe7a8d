"""From an event to its saga: start it once, or wake the one that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from temporalio.service import RPCError, RPCStatusCode

from saga_workers.client import Client
from saga_workers.runs import describe
from saga_workers.starting import EndedBefore
from saga_workers.stories import read_story
from saga_workers.trigger.dead_letters import DeadLetters
from saga_workers.trigger.metrics import TriggerMetrics
from saga_workers.trigger.records import Record, Unreadable
from saga_workers.trigger.trying import Down, Poison, Told, tried
from saga_workers.trigger.values import Values
from sagas.definition.model import Definition, KafkaTrigger
from sagas.errors import RefusedError, UsageError
from sagas.message import Message

MAX_ATTEMPTS = 5
OUTCOME, REJECTED = "sagaoutcome", "rejected"


class SagaEvents:
    """Gives each event of one topic to the triggers of one saga. The handle of a reader."""

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
        self._dead = dead_letters
        self._metrics = metrics
        self._stop = stop
        self._triggers = [(one, Values(one)) for one in definition.triggers if one.topic == topic]
        self._variables = dict(client.project.settings.vars)

    async def __call__(self, record: Record) -> None:
        """Done when Temporal has it, or the dead letters have. Raises Stopped."""

        async def attempt(number: int) -> None:
            await self._attempt(record, number)

        reason = await tried(f"{self._group}: {record.place}", attempt, stop=self._stop, max_attempts=MAX_ATTEMPTS)
        if reason is not None:
            await self._dead.send(record, self._group, reason, self._stop)

    async def _attempt(self, record: Record, number: int) -> None:
        try:
            message = record.message()
        except Unreadable as error:
            raise Poison(str(error)) from None
        context = {
            "trigger": message.as_trigger(),
            "vars": self._variables,
            "saga": {"name": self._definition.saga},
        }
        for trigger, values in self._triggers:
            if not values.wanted(context):
                continue
            try:
                if trigger.signal is None:
                    await self._start(message, values, context, number)
                else:
                    await self._wake(trigger, message, values, context)
            except RPCError as error:
                raise _trouble(error) from error

    async def _start(self, message: Message, values: Values, context: Mapping[str, Any], number: int) -> None:
        starter = await self._client.starter(self._definition.saga)
        try:
            request = starter.check(values.input(context))
            saga_id = values.id(context) or request.id or f"{self._definition.saga}-{message.id}"
            started = await starter.start(request, id=saga_id)
        except UsageError as error:
            raise Poison(error.message) from None
        except EndedBefore:
            return  # this very event had its saga, and it is over
        except RefusedError as error:
            if number < 2:
                raise  # it may have gone at this very moment
            raise Poison(error.message) from None
        if started.started:
            self._metrics.started(self._definition.saga, message.topic)

    async def _wake(self, trigger: KafkaTrigger, message: Message, values: Values, context: Mapping[str, Any]) -> None:
        assert trigger.signal is not None
        saga_id = values.id(context)
        assert saga_id is not None  # SAGA131
        temporal = self._client.temporal
        described = await describe(temporal, saga_id)
        if described is None:
            raise UnknownSaga(f"there is no saga {saga_id}")
        if described.run.workflow_type != self._definition.saga:
            raise Poison(f"{saga_id} is a saga {described.run.workflow_type}, not {self._definition.saga}")
        by = f"{message.topic}/{message.partition}/{message.offset}"
        reject = refusal(message)
        data = None if reject is not None else values.input(context)
        if described.run.running:
            envelope = {"_saga": {"by": by, "reject": reject}, "data": data}
            try:
                await temporal.get_workflow_handle(saga_id).signal(trigger.signal, envelope)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
            else:
                self._metrics.signalled(self._definition.saga, message.topic)
                return
        story = await read_story(temporal, saga_id)
        if not _had_it(story, by, reject):
            raise Poison(f"{saga_id} is over: {story['state']}")


class UnknownSaga(Told):
    """The saga that an event is for is not there, perhaps not yet."""


def refusal(message: Message) -> str | None:
    """Why the sender of this event says no, as consumers do; None when it does not."""
    if message.headers.get(OUTCOME) != REJECTED:
        return None
    reason = message.value.get("reason") if isinstance(message.value, Mapping) else None
    return str(reason or "rejected without a reason")


def _had_it(story: Mapping[str, Any], by: str, reject: str | None) -> bool:
    """True when the saga took this very event before it ended: the event was delivered twice."""
    for step in story.get("steps") or ():
        if step.get("uses") != "wait":
            continue
        if reject is None and isinstance(step.get("result"), Mapping) and step["result"].get("by") == by:
            return True
        if (
            reject is not None
            and step.get("outcome") == "rejected"
            and (step.get("error") or {}).get("message") == reject
        ):
            return True
    return False


def _trouble(error: RPCError) -> Exception:
    """Only Temporal's word on the request itself is about this event."""
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return Poison(f"Temporal refuses it: {error.message}")
    return Down(f"Temporal does not answer: {error.message}")
