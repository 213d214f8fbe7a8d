"""The executor of an action was lost: the saga is notified at once, and no attempt is counted."""

from __future__ import annotations

import logging
import time
from typing import Any

from saga_activities.attempt_context import ActionBody, AttemptContext
from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.connections import DatabaseConnections
from saga_activities.dispatcher import Dispatcher
from saga_activities.guard.script_transactions import outcome_of_error
from saga_activities.http import HttpConnections
from saga_activities.temporal.attempt_errors import to_application_error
from sagas.actions.registry import Actions
from sagas.errors import InfrastructureError, Unavailable
from sagas.protocol.payloads import Invocation
from sagas.workflow.json_payloads import read_payload


class Lost:
    """A performer whose helper process is gone."""

    async def prepare(self, action: str, invocation: Invocation, attempt: AttemptContext) -> ActionBody:
        raise Unavailable("the runner is gone")

    async def read(self, invocation: Invocation, attempt: AttemptContext) -> Any:
        raise Unavailable("the runner is gone")

    async def close(self) -> None: ...


async def test_an_unstarted_read_is_not_an_unknown_attempt() -> None:
    now = time.time()
    attempt = AttemptContext(2, now, now + 60, lambda _: None, logging.getLogger("test"))
    dispatcher = Dispatcher(
        ActionBodies(Actions([])), DatabaseConnections(), HttpConnections({}), {"reconcile": Lost()}
    )
    side = {"table": "sales"}
    arguments = {"left": side, "right": side, "key": "id"}
    outcome = await dispatcher.perform(Invocation("reconcile", arguments, "s1/a", "s1", "a", "do", 1), attempt)
    assert (outcome.kind, outcome.infrastructure, outcome.counted) == ("failed", True, False)
    output = to_application_error(outcome, attempt.number, intervals=[5.0])
    assert (output.type, output.non_retryable, output.next_retry_delay) == ("Infrastructure", True, None)
    assert read_payload(output.details[0].payload)["counted"] is False


def test_other_failures_of_the_infrastructure_are_left_to_the_platform() -> None:
    outcome = outcome_of_error(InfrastructureError("the database is gone"))
    assert outcome.counted
    assert not to_application_error(outcome, 1).non_retryable
