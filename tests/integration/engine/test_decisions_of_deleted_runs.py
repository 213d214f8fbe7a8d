"""A decision of an operator about an unguarded step is lost with its run: the run that repeats it asks again."""

from __future__ import annotations

import pytest

from saga_activities.ledger.schema import create_ledger
from sagas import Rejected
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle, row, send_signed
from tests.integration.engine.nested.families import delete_and_resume
from tests.integration.engine.repeated_runs import waits_at
from tests.integration.engine.test_decisions_after_resets import STEPS, decide


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("decision", ["done", "skip", "retry"])
async def test_the_next_run_asks_before_it_calls_the_step(env: Environment, decision: str) -> None:
    await create_ledger(env.engine)
    env.ledger = "shop"
    env.plan["do b"] = [Rejected("not here"), None]
    async with env.serving(STEPS) as client:
        id = await begin(client, "decided")
        await finished(client, id)

        await decide(client, id, "b", "done", result={"by": "hand"}, evidence="a call")
        await waits_at(client, id, "go")

        async def has_row() -> bool:
            stored = await client.locator.ledger.find(id)
            return stored is not None and bool(stored.view.operator)

        await until(has_row)
        await delete_and_resume(client, id)
        (parked,) = (await finished(client, id))["parked"]
        assert (parked["step"], env.log().count("do b")) == ("b", 1)
        assert "waited for an operator in an earlier run of the saga, which is deleted" in parked["why"]
        more = {"result": {"by": "hand"}} if decision == "done" else {}
        await send_signed(client, id, {"step": "b", "decision": decision, "reason": "so", "who": "ada", **more})
        await waits_at(client, id, "go")
        assert env.log().count("do b") == (2 if decision == "retry" else 1)
        states = {"done": "DONE", "skip": "SKIPPED", "retry": "DONE"}
        assert row(await client.show(id), "b")["state"] == states[decision]
        await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] in ("COMPLETED", "RESIDUE")
