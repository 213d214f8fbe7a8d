"""A guard has decided an undo whose action is elsewhere, and no run has told that it was made: it is made again."""

from __future__ import annotations

import pytest

from saga_workers.stuck.resumption import start_again
from saga_workers.worker import before_reset
from sagas import Rejected
from tests.helpers import run_changes
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import delete_run
from tests.integration.engine.environment import (
    Environment,
    begin,
    gate,
    handle,
    states,
    wait_for_event,
)
from tests.integration.engine.repeated_runs import waits_at

ELSEWHERE = """
    saga: elsewhere
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
      - id: b
        uses: book
        with: {value: 7}
        compensate:
          uses: unwork
          with: {value: "${{ steps.b.result.value }}"}
          retry: {max_attempts: 1}
      - {id: go2, uses: wait, with: {signal: go2}}
"""


@pytest.fixture
def env(postgres_env: Environment) -> Environment:
    return postgres_env


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("comes_to_it", [False, True])
async def test_an_undo_that_was_in_flight_before_a_reset_is_made_again(
    env: Environment, monkeypatch: pytest.MonkeyPatch, comes_to_it: bool
) -> None:
    """Nobody has the state of the run before. Temporal applies the cancel to the new one, also without the signals."""
    monkeypatch.setattr(before_reset, "_MAX_RUNS", 0)
    move, begun, go = gate()
    env.plan["undo b"] = [move, None]
    async with env.serving(ELSEWHERE) as client:
        id = await begin(client, "elsewhere")
        await handle(client, id).signal("go")
        await waits_at(client, id, "go2")
        await client.cancel(id)
        await wait_for_event(begun)
        await run_changes.reset_run(client.temporal, id, keeps_signals=comes_to_it)
        go.set()
        story = await finished(client, id)
        assert (story["state"], states(story)["b"]) == ("COMPENSATED", "COMPENSATED")
        assert await env.effects() == ["b"]  # an action without a guard has undone it elsewhere
        assert [call.value for call in env.asked if call.what == "undo b"] == [7, 7]


async def test_an_undo_of_which_the_run_before_has_told_is_not_made_again(env: Environment) -> None:
    env.plan["undo a"] = [Rejected("closed"), None]
    definition = ELSEWHERE.replace("compensate: unbook", "on_failure: park, compensate: unbook")
    async with env.serving(definition) as client:
        id = await begin(client, "elsewhere")
        await handle(client, id).signal("go")
        await waits_at(client, id, "go2")
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "PARKED"
        await run_changes.reset_run(client.temporal, id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert env.log().count("undo b") == 1


async def test_a_person_who_knows_that_it_was_made_is_believed_after_a_reset(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.plan["undo b"] = [Rejected("closed")]
    async with env.serving(ELSEWHERE) as client:
        id = await begin(client, "elsewhere")
        await handle(client, id).signal("go")
        await waits_at(client, id, "go2")
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "PARKED"
        await delete_run(client.temporal, id)
        await start_again(client, await client.locator.locate(id), undone=["b"])
        await waits_at(client, id, "go")
        monkeypatch.setattr(before_reset, "_MAX_RUNS", 0)
        await run_changes.reset_run(client.temporal, id)
        await waits_at(client, id, "go")
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert env.log().count("undo b") == 1
