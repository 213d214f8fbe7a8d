"""Every feature of the language on a worker without workflow cache, so that every workflow task replays."""

from __future__ import annotations

import pytest
from temporalio.api.enums.v1 import WorkflowTaskFailedCause

from tests.integration.engine.environment import Environment, handle
from tests.replay.scenario import Scenario, perform, playing
from tests.replay.scenarios import SCENARIOS

PLAYED = [scenario for scenario in SCENARIOS if scenario.name != "forward" and not scenario.long]
"""Not one whose fourteen attempts Temporal puts a second apart; test_continue_as_new.py has the server of the long."""

OVERTAKEN = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND
"""The server's failure of a task that would close the run while new events exist (here: a notification's child has
ended); it schedules the task again. The code and its replay are correct."""


def _parameters() -> list[object]:
    """A sixth of them in every run: tests/replay replays the recorded histories of all."""
    marks = {True: [], False: [pytest.mark.slow]}
    return [
        pytest.param(scenario, id=scenario.name, marks=marks[place % 6 == 0]) for place, scenario in enumerate(PLAYED)
    ]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("scenario", _parameters())
async def test_every_workflow_task_replays(env: Environment, scenario: Scenario) -> None:
    async with playing(env, scenario, max_cached_workflows=0) as client:
        id, _ = await perform(client, scenario)
        history = await handle(client, id).fetch_history()
    failed = [
        event.workflow_task_failed_event_attributes
        for event in history.events
        if event.HasField("workflow_task_failed_event_attributes")
    ]
    assert [row for row in failed if row.cause != OVERTAKEN] == []
