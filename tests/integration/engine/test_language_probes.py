"""Probes, from YAML through a real Temporal server to the actions and back."""

from __future__ import annotations

import pytest

from sagas import Absent, Done, Unknown
from tests.integration.engine.environment import (
    Environment,
    row,
    run_saga,
    states,
)

QUICK = "retry: {max_attempts: 2, initial_interval: 50ms, max_interval: 100ms}"


PROBED = f"""
    saga: probed
    steps:
      - id: a
        uses: work
        {QUICK}
        settle: 100ms
        probe: look
        compensate: unwork
      - {{id: b, uses: work, effect: none}}
    output: {{a: "${{{{ default(steps.a.result, 'none') }}}}"}}
"""


async def test_a_probe_finds_an_effect_whose_response_was_lost(env: Environment) -> None:
    env.plan |= {"do a": [ConnectionError("lost")], "probe a": [Done({"found": True})]}
    async with env.serving(PROBED) as client:
        story = await run_saga(client, "probed")
    assert (story["state"], story["output"]) == ("COMPLETED", {"a": {"found": True}})


async def the_class(_: object) -> type[Absent]:
    return Absent


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("answer", [Absent(), the_class], ids=["instance", "class"])
async def test_a_probe_that_finds_no_effect_skips_the_undo(env: Environment, answer: object) -> None:
    env.plan |= {"do a": [ConnectionError("lost")], "probe a": [answer]}
    async with env.serving(PROBED) as client:
        story = await run_saga(client, "probed")
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "unknown")
    assert "undo a" not in env.log()
    assert states(story)["a"] == "NOTHING_TO_UNDO"


async def test_an_inconclusive_probe_leaves_the_step_unknown_and_undone(env: Environment) -> None:
    env.plan |= {"do a": [ConnectionError("lost")], "probe a": [Unknown("no idea")]}
    async with env.serving(PROBED) as client:
        story = await run_saga(client, "probed")
    assert story["state"] == "COMPENSATED"
    assert env.log()[-1] == "undo a"


async def test_a_probe_evaluates_expressions_over_a_plain_response(env: Environment) -> None:
    definition = f"""
        saga: asked
        steps:
          - id: a
            uses: work
            {QUICK}
            compensate: unwork
            probe:
              uses: look
              done: response.status == 'paid'
              absent: response.status == 'none'
              result: response.id
        output: {{id: "${{{{ default(steps.a.result, 0) }}}}"}}
    """
    env.plan |= {"do a": [ConnectionError("lost")], "probe a": [{"status": "paid", "id": 42}]}
    async with env.serving(definition) as client:
        story = await run_saga(client, "asked")
    assert (story["state"], story["output"]) == ("COMPLETED", {"id": 42})


async def test_a_non_idempotent_call_is_repeated_only_when_the_probe_finds_no_effect(env: Environment) -> None:
    definition = f"""
        saga: careful
        steps:
          - {{id: a, uses: careless, {QUICK}, settle: 50ms, probe: look, compensate: unwork}}
    """
    env.plan |= {"do a": [ConnectionError("lost"), "second"], "probe a": [Absent()]}
    async with env.serving(definition) as client:
        story = await run_saga(client, "careful")
    assert (story["state"], row(story, "a")["result"]) == ("COMPLETED", "second")
    log = env.log()
    assert (log[0], log[-1]) == ("do a", "do a")
    assert log.count("do a") == 2
    assert set(log[1:-1]) == {"probe a"}
