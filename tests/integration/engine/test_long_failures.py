"""Failures of more than Temporal keeps of an attempt that it repeats: people read the participant's sentence."""

from __future__ import annotations

import pytest

from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views.saga_list import SagaFilter
from sagas import Rejected
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, row

INNER = """
    saga: inner
    steps:
      - id: take
        uses: work
        compensate:
          uses: unwork
          retry: {initial_interval: 50ms, max_interval: 100ms, max_attempts: 1000}
"""
OUTER = """
    saga: outer
    steps:
      - {id: nested, uses: saga, with: {name: inner, input: {}}}
      - {id: last, uses: work, retry: {max_attempts: 1}, effect: none}
"""


@pytest.mark.slow
@pytest.mark.parametrize("sign", [pytest.param("x", marks=pytest.mark.slow), "貨"])  # three bytes each
async def test_the_undo_of_a_nested_saga_that_fails_says_why(env: Environment, sign: str) -> None:
    env.plan["undo take"] = [ConnectionError(f"the shelf is locked: {sign * 6_000} ask the warehouse")]
    env.plan["do last"] = [Rejected("no")]
    async with env.serving(INNER, OUTER) as client:
        id = f"{await begin(client, 'outer')}/nested"

        async def is_repeated() -> bool:
            return env.log().count("undo take") > 7

        await until(is_repeated)
        error = row(await client.show(id), "take")["compensation"]["error"]
        assert error["type"] == "ConnectionError"
        assert error["message"].startswith("the shelf is locked: ")
        assert error["message"].endswith("ask the warehouse")
        [reasons] = [view.stuck async for view in list_stuck(client.locator, SagaFilter(), limit=100) if view.id == id]
        assert reasons is not None
        [reason] = reasons
        assert reason.startswith("the undo of take was attempted ")
        assert "the last failure: the shelf is locked: " in reason
