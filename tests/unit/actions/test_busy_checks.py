"""A start that has no time to be checked comes back later, and later each time: many that wait cost little."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from saga_activities.attempt_admission import AttemptAdmission
from saga_activities.dispatcher import Dispatcher
from saga_activities.input_checks import INPUT_CHECKS
from saga_activities.temporal.definition_loader import DefinitionLoader
from saga_activities.temporal.saga_activities import SagaActivities
from sagas.protocol.payloads import LOAD_ACTIVITY
from sagas.workflow.json_payloads import json_payload


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 2), (2, 4), (5, 32), (6, 60), (100_000, 60)])
async def test_a_start_waits_longer_each_time(attempt: int, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unused(*_: Any, **__: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(INPUT_CHECKS, "is_busy", lambda caller: True)
    activities = SagaActivities(
        cast(Dispatcher, None),
        cast(AttemptAdmission, None),
        cast(DefinitionLoader, None),
        unused,
        unused,
        unused,
    )
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, activity_type=LOAD_ACTIVITY, attempt=attempt)
    request = RawValue(json_payload({"saga": "trip", "is_unread": True}))
    with pytest.raises(ApplicationError, match="this one is checked later") as busy:
        await environment.run(activities.perform, [request])
    assert busy.value.next_retry_delay is not None
    assert busy.value.next_retry_delay.total_seconds() == seconds
