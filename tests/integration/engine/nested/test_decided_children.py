"""An operator has decided that a terminated nested saga is done, and the run of its parent is reset."""

from __future__ import annotations

import pytest

from saga_workers.stuck.continuation import continue_saga
from saga_workers.stuck.open_sagas import find_lost
from saga_workers.stuck.stuck_sagas import list_stuck, remedy
from saga_workers.stuck.stuck_view import read_view_with_stuck
from saga_workers.views.saga_list import SagaFilter
from sagas.errors import RefusedError
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import reset_run
from tests.integration.engine.environment import Environment, handle, row, send_signed
from tests.integration.engine.nested.families import (
    GO,
    advice_of,
    begin_waiting_child,
    book,
    define_child,
    define_parent,
    delete_and_resume,
    has_state,
)
from tests.integration.engine.repeated_runs import waits_at

CHILD = define_child(book("x"), GO, book("y"))
OPEN = define_parent(GO, book("z"), child="on_failure: park")
COMMITTED = define_parent(book("p", "pivot: true"), GO, book("z", "on_failure: park"), child="on_failure: park")


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("parent", [OPEN, COMMITTED], ids=["before the commit point", "past it"])
async def test_it_stays_done(env: Environment, parent: str) -> None:
    async with env.serving(parent, CHILD) as client:
        id = await begin_waiting_child(client)
        child = f"{id}/child"
        await handle(client, child).terminate("by mistake")
        await has_state(client, id, "PARKED")
        decision = {"step": "child", "decision": "done", "result": {"by": "hand"}, "reason": "so", "who": "ada"}
        await send_signed(client, id, decision)
        await waits_at(client, id)
        await reset_run(client.temporal, id, keeps_signals=False)
        await waits_at(client, id)
        assert row(await client.show(id), "child")["result"] == {"by": "hand"}
        assert await advice_of(client, child) == ""
        with pytest.raises(RefusedError):
            await continue_saga(client.locator, child, "ada")
        assert await find_lost(client.locator, client.project.settings, suspects=[child]) == []
        if parent is COMMITTED:
            await handle(client, id).signal("go")
            assert (await finished(client, id))["state"] == "COMPLETED"
            assert await env.effects() == ["a", "p", "x", "z"]
            return
        await client.cancel(id)
        assert ((await finished(client, id))["state"], await env.effects()) == ("COMPENSATED", [])


@pytest.mark.slow
@pytest.mark.parametrize("decision", ["done", "skip"])
async def test_it_is_not_undone_if_the_decision_is_lost_with_the_run(env: Environment, decision: str) -> None:
    """The refusal prints `done`, if the effects stay, and names `skip`, if they do not: either leads there."""
    async with env.serving(COMMITTED, CHILD) as client:
        id = await begin_waiting_child(client)
        child = f"{id}/child"
        await handle(client, child).terminate("by mistake")
        await has_state(client, id, "PARKED")
        first = {"step": "child", "decision": "done", "result": {"by": "hand"}, "reason": "so", "who": "ada"}
        await send_signed(client, id, first)
        await waits_at(client, id)
        await delete_and_resume(client, id)
        await has_state(client, id, "PARKED")
        with pytest.raises(RefusedError, match="which is past its point of no return") as refused:
            await continue_saga(client.locator, child, "ada")
        advice = await advice_of(client, child)
        assert f"{refused.value.message}; see `saga show {id}`" in advice
        assert (await read_view_with_stuck(client.locator, child)).stuck == (advice,)
        [listed] = [view async for view in list_stuck(client.locator, SagaFilter(), limit=1000) if view.id == child]
        assert (listed.needs_resume, remedy(listed)) == (False, f"saga show {child}")
        assert await env.effects() == ["a", "p", "x"]
        command = f"saga resolve {id} child done --reason '…'"
        assert refused.value.help == f"{command}    if its effects stay; `skip` if they are to be undone"
        await client.resolve(id, {"step": "child", "decision": decision, "reason": "so", "who": "ada"})
        await waits_at(client, id)
        if decision == "done":
            with pytest.raises(RefusedError, match="which has it as done, so its effects stay"):
                await continue_saga(client.locator, child, "ada")
        else:
            await continue_saga(client.locator, child, "ada")
        await handle(client, id).signal("go")
        story = await finished(client, id)
        if decision == "done":
            assert (story["state"], await env.effects()) == ("COMPLETED", ["a", "p", "x", "z"])
        else:  # what the parent has without its nested saga is named
            assert (story["state"], [left["step"] for left in story["residue"]]) == ("RESIDUE", ["child"])
            assert await env.effects() == ["a", "p", "z"]
