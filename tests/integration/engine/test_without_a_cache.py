"""Every feature of the language on a worker that forgets each run at once, so that every workflow task replays."""

from __future__ import annotations

import pytest

from tests.integration.engine.world import World, handle
from tests.replay.scenarios import SCENARIOS, Scenario, perform, playing

PLAYED = [one for one in SCENARIOS if one.name != "forward" and not one.long]
"""Not one whose fourteen attempts Temporal puts a second apart; test_continue_as_new.py has the server of the long."""


@pytest.mark.parametrize("scenario", PLAYED, ids=lambda scenario: scenario.name)
async def test_every_task_replays(world: World, scenario: Scenario) -> None:
    async with playing(world, scenario, max_cached_workflows=0) as client:
        id, _ = await perform(client, scenario)
        history = await handle(client, id).fetch_history()
    assert not any(event.HasField("workflow_task_failed_event_attributes") for event in history.events)
