"""A run is loaded by queries of workflows, which a worker that stops no longer answers."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, cast

import pytest
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from saga_activities.attempt_admission import AttemptAdmission
from saga_activities.dispatcher import Dispatcher
from saga_activities.temporal.definition_loader import DefinitionLoader
from saga_activities.temporal.saga_activities import SagaActivities
from sagas.project import Project
from sagas.protocol.payloads import LOAD_ACTIVITY
from sagas.workflow.json_payloads import json_payload


async def test_a_worker_that_stops_leaves_the_query_to_another_one() -> None:
    asked, given_up = asyncio.Event(), asyncio.Event()

    async def query(_saga_id: str, _run_id: str | None) -> str | None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    async def unused(*_: Any, **__: Any) -> Any:
        raise AssertionError

    async def no_attributes() -> list[str]:
        return []

    loader = DefinitionLoader(cast(Project, None), unused, query, unused, no_attributes)
    activities = SagaActivities(cast(Dispatcher, None), cast(AttemptAdmission, None), loader, unused, unused, unused)
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, activity_type=LOAD_ACTIVITY)
    request = RawValue(json_payload({"saga": "trip", "undo_of": "trip-1"}))
    loading = asyncio.ensure_future(environment.run(activities.perform, [request]))
    await asked.wait()
    environment.worker_shutdown()
    with pytest.raises(ApplicationError, match="this worker stops") as stopped:
        await loading
    assert stopped.value.type == "InfrastructureError"
    await given_up.wait()
