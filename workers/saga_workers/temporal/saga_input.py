"""Reads the input of a saga from the history of its run, as the saga has it: with the defaults of its schema.

A client of the project sends the whole input. Any other client may leave out what has a default; then the worker that
has checked the start has recorded the input that the saga goes on with. Every digest of an input is that of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import ActivityTaskScheduledEventAttributes, HistoryEvent
from temporalio.client import Client as Temporal

from saga_activities.value_cipher import UnknownKey
from saga_workers.temporal.foreign_payloads import read_foreign_payload
from saga_workers.temporal.run_history import events_of_run
from saga_workers.temporal.signed_calls import is_believed_answer
from saga_workers.temporal.signed_departures import departed_from
from saga_workers.temporal.temporal_runs import RunDescription, RunInfo
from sagas.errors import RefusedError
from sagas.protocol.payloads import DEFINITION_HEADER, LOAD_ACTIVITY, VERIFY_ACTIVITY
from sagas.protocol.unsigned_states import unpack_unsigned_state
from sagas.settings.signing_keys import SigningKeys
from sagas.workflow.json_payloads import UnreadableValue

_FIRST_EVENTS = 40
"""Events of a history among which the check of its start is looked for."""

_MOST_EVENTS = 4_000
"""Events among which it is looked for while it has no answer that counts: any client can complete it by its id, and
then it is asked again ten seconds later.
"""


class UnreadableRunInput(RefusedError):
    """An input cannot be read here. Any client can write one, so it must hide no other saga."""


class ForeignInput(UnreadableRunInput):
    """An input is in a form that no client of sagas writes."""


class EncryptedInput(UnreadableRunInput):
    """An input is encrypted with a key that is not here."""


@dataclass(frozen=True, slots=True)
class SagaInput:
    """An input. ``is_whole`` is False if it was sent by another client, and no worker has checked it yet."""

    value: Any
    is_whole: bool = True


async def first_input(temporal: Temporal, described: RunDescription, keys: SigningKeys | None) -> Any:
    """The input of a saga, as :func:`read_input` reads it. Raises UnreadableRunInput."""
    return (await read_input(temporal, described, keys)).value


async def read_input(temporal: Temporal, described: RunDescription, keys: SigningKeys | None) -> SagaInput:
    """The saga's input: that of the first run of a chain that was continued as new; None if it had none, or if the
    history is deleted.

    A saga that has left a bulk workflow was started with its state, which contains it. ``keys``: those that verify
    that, and what a worker has recorded; None if the project accepts anything. Raises UnreadableRunInput.
    """
    id, first_run = described.run.id, described.run.raw.first_run_id or described.run.run_id
    start = _Start(described.run, keys)
    async for event in events_of_run(temporal, id, first_run):
        await start.add(event)
        if start.is_over:
            break
    if start.attributes is None:
        return SagaInput(None)
    headers = start.attributes.header.fields
    values = await _decode(temporal, id, start.attributes.input.payloads)
    value = values[0] if values else None
    if await departed_from(described.run, start.attributes, keys) is not None:
        return SagaInput(_input_of_state(value))
    if start.answer is None:
        return SagaInput(value, is_whole=DEFINITION_HEADER in headers)
    [answer] = await _decode(temporal, id, [start.answer]) or [None]
    with suppress(KeyError, TypeError, AttributeError):  # another worker has answered in its own words
        return SagaInput(answer["input"] if start.was_loaded else answer.get("completed", {}).get(id, value))
    return SagaInput(value)


async def _decode(temporal: Temporal, id: str, payloads: Sequence[Payload]) -> list[Any]:
    try:
        return [await read_foreign_payload(payload, temporal.data_converter) for payload in payloads]
    except UnreadableValue as error:
        raise ForeignInput(f"the input of {id} is in a form that no client of sagas writes: {error}") from error
    except UnknownKey as error:
        raise EncryptedInput(error.message, help=error.help) from error


class _Start:
    """The first events of a run. ``answer``: the last one of a worker of the project that was asked whether the saga
    may start.
    """

    def __init__(self, run: RunInfo, keys: SigningKeys | None) -> None:
        self.attributes: Any = None
        self.answer: Any = None
        self.was_loaded = False
        self.is_over = False
        """True if no later event tells more."""
        self._run, self._keys = run, keys
        self._tasks = 0
        self._checks: dict[int, ActivityTaskScheduledEventAttributes] = {}

    async def add(self, event: HistoryEvent) -> None:
        await self._read(event)
        needs_no_check = self._tasks > 1 and not self._checks
        most = _MOST_EVENTS if self._checks and self.answer is None else _FIRST_EVENTS
        self.is_over = needs_no_check or event.event_id >= most

    async def _read(self, event: HistoryEvent) -> None:
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                self.attributes = event.workflow_execution_started_event_attributes
            case EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:  # the first may time out
                self._tasks += 1
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                call = event.activity_task_scheduled_event_attributes
                if call.activity_type.name in (LOAD_ACTIVITY, VERIFY_ACTIVITY):
                    self._checks[event.event_id] = call
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                completed = event.activity_task_completed_event_attributes
                call, answers = self._checks.get(completed.scheduled_event_id), completed.result.payloads
                if call is not None and await is_believed_answer(call, answers, self._run, self._keys):
                    [self.answer], self.was_loaded = answers, call.activity_type.name == LOAD_ACTIVITY
            case _:
                pass


def _input_of_state(value: Any) -> Any:
    try:
        return unpack_unsigned_state(value["machine"])["input"]
    except (KeyError, TypeError, ValueError):
        return value  # any client may send the header
