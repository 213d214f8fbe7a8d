"""A ledger that does not answer delays an attempt, and changes nothing of how it ends."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from temporalio.common import RawValue
from temporalio.testing import ActivityEnvironment

from saga_activities import attempt_context
from saga_activities.attempt_admission import AttemptAdmission
from saga_activities.circuit_breakers import FREE, AdmittedAttempt, CircuitBreakers
from saga_activities.dispatcher import Dispatcher
from saga_activities.standing_pauses import StandingPauses
from saga_activities.temporal.definition_loader import DefinitionLoader
from saga_activities.temporal.saga_activities import SagaActivities
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import decode_result
from sagas.workflow.json_payloads import json_payload, read_payload

ENVELOPE = {"key": "s-1/a", "saga_id": "s-1", "step": "a", "op": "do", "generation": 1}


class DonePerformer:
    """A dispatcher whose calls are done at once."""

    async def perform(self, *_: Any) -> Outcome:
        return Outcome.done("booked")


class NoPauses:
    async def hold(self, *_: Any) -> Outcome | None:
        return None


class SlowBreakers:
    """Circuit breakers that ask the ledger before and after each attempt, and wait for its answer."""

    def __init__(self, admits: asyncio.Event, ends: asyncio.Event) -> None:
        self.ending = asyncio.Event()
        self._admits = admits
        self._ends = ends

    async def admit(self, *_: Any, **__: Any) -> AdmittedAttempt:
        await self._admits.wait()
        return FREE

    async def ended(self, _: AdmittedAttempt, outcome: Outcome) -> Outcome:
        self.ending.set()
        await self._ends.wait()
        return outcome


def perform(environment: ActivityEnvironment, breakers: SlowBreakers, *, beats: bool) -> asyncio.Task[Any]:
    async def unused(*_: Any, **__: Any) -> Any:
        raise AssertionError

    activities = SagaActivities(
        cast(Dispatcher, DonePerformer()),
        AttemptAdmission(cast(StandingPauses, NoPauses()), cast(CircuitBreakers, breakers)),
        cast(DefinitionLoader, None),
        unused,
        unused,
        unused,
    )
    now = datetime.now(UTC)
    environment.info = dataclasses.replace(
        environment.info, activity_type="work", started_time=now, current_attempt_scheduled_time=now, scheduled_time=now
    )
    request = RawValue(json_payload({"_saga": {**ENVELOPE, "beats": beats}}))
    return asyncio.ensure_future(environment.run(activities.perform, [request]))


def result_of(answer: RawValue) -> Any:
    return decode_result(read_payload(answer.payload)).result


async def test_heartbeats_begin_before_the_attempt_is_admitted_and_last_until_it_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each wait ends only with a heartbeat."""
    monkeypatch.setattr(attempt_context, "HEARTBEAT_INTERVAL", 0.01)
    admits, ends = asyncio.Event(), asyncio.Event()
    breakers = SlowBreakers(admits, ends)
    environment = ActivityEnvironment()

    def beat(*_: Any) -> None:
        admits.set()
        if breakers.ending.is_set():
            ends.set()

    environment.on_heartbeat = beat
    async with asyncio.timeout(10):
        assert result_of(await perform(environment, breakers, beats=True)) == "booked"


@pytest.mark.parametrize("beats", [True, False])
async def test_a_cancel_while_an_attempt_is_counted_does_not_lose_its_outcome(*, beats: bool) -> None:
    admits, ends = asyncio.Event(), asyncio.Event()
    admits.set()
    breakers = SlowBreakers(admits, ends)
    environment = ActivityEnvironment()
    performing = perform(environment, breakers, beats=beats)
    await breakers.ending.wait()
    environment.cancel()
    await asyncio.sleep(0)
    ends.set()
    assert result_of(await performing) == "booked"
