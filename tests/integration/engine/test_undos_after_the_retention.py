"""The undo of a saga whose rows in the guard were deleted with their retention, on a real server."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests.helpers.local_worker import finished
from tests.integration.engine.environment import Environment, begin

BOOKED = """
    saga: booked
    steps:
      - {id: a, uses: book, compensate: unbook}
"""


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("by_hand", [True, False])
async def test_the_first_advice_ends_the_saga(env: Environment, by_hand: bool) -> None:
    async with env.serving(BOOKED) as client:
        id = await begin(client, "booked")
        assert (await finished(client, id))["state"] == "COMPLETED"
        async with env.engine.begin() as database:
            await database.execute(text("delete from saga_guard"))
        await client.undo(id, reason="returned", who="ada")
        [parked] = (await finished(client, id))["parked"]
        assert parked["why"].startswith("the guard has no row of this effect: its retention has deleted it")
        advised = [command.split()[4] for command in parked["commands"]]
        assert advised == ["done", "skip", "retry"]
        assert "--evidence" in parked["commands"][0]
        decision = {"step": "a", "decision": advised[0] if by_hand else advised[1], "reason": "old", "who": "ada"}
        await client.resolve(id, {**decision, **({"evidence": "deleted its row"} if by_hand else {})})
        story = await finished(client, id)
    assert story["state"] == ("COMPENSATED" if by_hand else "RESIDUE")
