"""What runs an action was lost: the saga hears it at once, and it was no attempt."""

from __future__ import annotations

import logging
import time
from typing import Any

from saga_activities.attempt import Attempt, Body
from saga_activities.connections import Connections
from saga_activities.dispatch import Dispatcher
from saga_activities.guard.outcomes import outcome_of
from saga_activities.http import HttpConnections
from saga_activities.temporal import failure_of
from sagas.actions import Actions
from sagas.errors import Infrastructure, Unavailable
from sagas.wire import Invocation


class Lost:
    """A performer whose helper process is gone."""

    async def prepare(self, action: str, invocation: Invocation, attempt: Attempt) -> Body:
        raise Unavailable("the runner is gone")

    async def read(self, invocation: Invocation, attempt: Attempt) -> Any:
        raise Unavailable("the runner is gone")

    async def close(self) -> None: ...


async def test_a_read_that_could_not_be_tried_is_no_unknown_attempt() -> None:
    now = time.time()
    attempt = Attempt(2, now, now + 60, lambda _: None, logging.getLogger("test"))
    dispatcher = Dispatcher(Actions([]), Connections({}), HttpConnections({}), {"reconcile": Lost()})
    outcome = await dispatcher.perform(Invocation("reconcile", {}, "s1/a", "s1", "a", "do", 1), attempt)
    assert (outcome.kind, outcome.infrastructure, outcome.counted) == ("failed", True, False)
    said = failure_of(outcome, attempt.number, intervals=[5.0])
    assert (said.type, said.non_retryable, said.next_retry_delay) == ("Infrastructure", True, None)
    assert said.details[0]["counted"] is False


def test_other_failures_of_the_infrastructure_are_left_to_the_platform() -> None:
    outcome = outcome_of(Infrastructure("the database is gone"))
    assert outcome.counted
    assert not failure_of(outcome, 1).non_retryable
