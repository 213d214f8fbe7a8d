"""Sagas whose id leads to a run that is not theirs: found, named, and started again."""

from __future__ import annotations

import pytest
from temporalio.common import WorkflowIDConflictPolicy

from saga_workers.client import Client
from saga_workers.location import served_runs
from saga_workers.location.locator import Locator
from saga_workers.stuck import continuation
from saga_workers.stuck.open_sagas import find_lost
from saga_workers.stuck.resumption import start_again
from saga_workers.stuck.stuck_view import read_view_with_stuck
from saga_workers.stuck.verdict import judge
from sagas.errors import RefusedError
from tests.helpers import run_changes
from tests.helpers.local_worker import finished
from tests.integration.engine.environment import Environment, begin, handle
from tests.integration.engine.repeated_runs import waits_at

PLAIN = """
    saga: NAME
    steps:
      - {id: first, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: second, uses: book, compensate: unbook}
"""

OTHER = """
    saga: displacing
    steps:
      - {id: note, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
"""


async def start_instead(client: Client, id: str, workflow: str, queue: str) -> None:
    """Start a workflow as any other client of the namespace does, which ends the run that has the id."""
    await client.temporal.start_workflow(
        workflow, {}, id=id, task_queue=queue, id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING
    )


async def test_an_id_that_another_workflow_holds_is_named_until_it_is_free(env: Environment) -> None:
    """A workflow of another team took the id, and no command had a word about the effects of the saga."""
    async with env.serving(PLAIN.replace("NAME", "holdable")) as client:
        id = await begin(client, "holdable", {"n": 1})
        await waits_at(client, id, "go")
        await start_instead(client, id, "billing", "nobody")
        settings = client.project.settings
        [lost] = await find_lost(client.locator, settings, suspects=[id])
        assert (lost.verdict, lost.id_is_in_use, lost.holds) == ("replaced", True, ("open effects: first on shop",))
        assert (await read_view_with_stuck(client.locator, id)).stuck == (lost.reason,)
        location = await client.locator.locate(id)
        assert await judge(client.locator, settings, location) == "replaced"
        with pytest.raises(RefusedError, match=f"billing on the task queue nobody has the id {id}") as held:
            await start_again(client, location)
        assert held.value.help == (
            f"wait for its end, or end it: temporal workflow terminate --workflow-id {id}; then saga resume {id}"
        )
        await handle(client, id).terminate("a test")
        assert await judge(client.locator, settings, await client.locator.locate(id)) == "terminated"
        await continuation.continue_saga(client.locator, id, "ada")
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert await env.effects() == []


async def test_a_saga_on_another_task_queue_without_a_worker_has_its_own_effects(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker was being deployed, and an operator of another queue was told to end the run."""

    async def no_poller(*_: object) -> int:
        return 0  # Temporal remembers the pollers of a queue for minutes after the last one

    async with env.serving(PLAIN.replace("NAME", "unpolled")) as client:
        id = await begin(client, "unpolled", {"n": 1})
        await waits_at(client, id, "go")
        settings = client.project.settings
        elsewhere = settings.temporal.model_copy(update={"task_queue": "elsewhere"})
        others = settings.model_copy(update={"temporal": elsewhere})
        monkeypatch.setattr(served_runs, "count_pollers", no_poller)
        locator = Locator(client.temporal, client.ledger, others)
        assert await find_lost(locator, others, suspects=[id]) == []
        assert await judge(locator, others, await locator.locate(id)) is None
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"


async def test_another_saga_that_has_the_id_is_cancelled_first(env: Environment) -> None:
    async with env.serving(PLAIN.replace("NAME", "displaced"), OTHER) as client:
        id = await begin(client, "displaced", {"n": 1})
        await waits_at(client, id, "go")
        await start_instead(client, id, "displacing", client.project.settings.temporal.task_queue)
        await waits_at(client, id, "go")
        with pytest.raises(RefusedError, match="a run of displacing on the task queue") as held:
            await start_again(client, await client.locator.locate(id))
        assert held.value.help == f"wait for its end, or end it: saga cancel {id}; then saga resume {id}"
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        location = await client.locator.locate(id)
        assert await judge(client.locator, client.project.settings, location) == "deleted"
        await start_again(client, location)
        await waits_at(client, id, "go")
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert await env.effects() == []


async def test_another_saga_past_its_pivot_is_not_to_be_cancelled(env: Environment) -> None:
    paid = OTHER.replace("displacing", "paying").replace("compensate: unbook", "pivot: true")
    async with env.serving(PLAIN.replace("NAME", "outpaid"), paid) as client:
        id = await begin(client, "outpaid", {"n": 1})
        await waits_at(client, id, "go")
        await start_instead(client, id, "paying", client.project.settings.temporal.task_queue)
        await waits_at(client, id, "go")
        with pytest.raises(RefusedError, match="a run of paying on the task queue") as held:
            await start_again(client, await client.locator.locate(id))
        assert held.value.help == f"wait for its end, see saga show {id}; then saga resume {id}"
        await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] == "COMPLETED"
        await start_again(client, await client.locator.locate(id))
        await waits_at(client, id, "go")
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"


async def test_an_earlier_end_is_not_that_of_a_deleted_generation(env: Environment) -> None:
    """The saga was started again after it had been undone, and the run of that start was deleted."""
    async with env.serving(PLAIN.replace("NAME", "restartable")) as client:
        id = await begin(client, "restartable", {"n": 1})
        await waits_at(client, id, "go")
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert await find_lost(client.locator, client.project.settings, suspects=[id]) == []
        await client.start("restartable", {"n": 1}, id=id, again=True)
        await waits_at(client, id, "go")
        assert await find_lost(client.locator, client.project.settings, suspects=[id]) == []
        again = (await handle(client, id).describe()).run_id
        await run_changes.delete_run(client.temporal, id, again)
        [lost] = await find_lost(client.locator, client.project.settings, suspects=[id])
        assert (lost.verdict, lost.command) == ("deleted", f"saga resume {id}")
        await start_again(client, await client.locator.locate(id))
        await waits_at(client, id, "go")
        assert (await client.show(id))["generation"] == 2
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert await find_lost(client.locator, client.project.settings, suspects=[id]) == []
    assert await env.effects() == []
