"""Faults of the engine's own code: a bug in a build, a build that decides otherwise, a saga nobody knows (cell 21).

A worker whose workflow code breaks must neither end a saga nor do anything twice: its workflow task fails, people find
it (`saga list --stuck`), and the next build goes on where it stood.
"""

from __future__ import annotations

import json

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from sagas.errors import UsageError
from tests.faults.cell_environment import Stage, activity_id
from tests.faults.injection.fault_participant import saga

RAISES = """
from sagas.machine.machine import Machine

honest = Machine.next


def next(self, event):
    if getattr(event, "id", None) == {activity!r}:
        raise RuntimeError("a bug of this build")
    return honest(self, event)


Machine.next = next
"""
DECIDES_OTHERWISE = """
from dataclasses import replace

from sagas.machine import calls

honest = calls.send_call


def send(run, entry, ask, *rest, **more):
    honest(run, entry, ask, *rest, **more)
    if (entry.id, ask) == ({step!r}, {op!r}):
        run.commands[-1] = replace(run.commands[-1], action="something else")


calls.send_call = send
"""


async def workflow_code_raises(stage: Stage) -> None:
    """The build breaks when it hears of the effect; the next one hears of it again."""
    await stage.worker()
    broken = await stage.own_flows(RAISES.format(activity=activity_id(stage.target)))
    await stage.start()
    await stage.effect_is_there()
    await _found_stuck(stage)
    broken.kill()
    stage.fault_is_over()
    await stage.own_flows()


async def code_decides_otherwise(stage: Stage) -> None:
    """A build that would have called something else takes over while the attempt runs: it may not go on."""
    effects, old = await stage.worker(), await stage.own_flows()
    async with stage.gate("effect") as gate:
        await stage.start()
        await gate.reached(by=effects.pid)
        old.kill()
        changed = await stage.own_flows(DECIDES_OTHERWISE.format(step=stage.target.step, op=stage.target.op))
    await _found_stuck(stage)
    assert "Nondeterminism" in changed.log.read_text(encoding="utf-8", errors="replace")
    changed.kill()
    stage.fault_is_over()
    await stage.own_flows()


async def _found_stuck(stage: Stage) -> None:
    async def found() -> bool:
        code, said = await saga(stage, "list", "--stuck", "-o", "json")
        assert code == 0, said
        reasons = [reason for one in json.loads(said) if one["id"] == stage.saga_id for reason in one["stuck"]]
        return any("workflow task fails" in reason for reason in reasons)

    await stage.until(found, "the saga in `saga list --stuck`")


async def unknown_saga(stage: Stage) -> None:
    """A name that no definition has: refused where it is started, and by the saga itself for those who cannot know."""
    client = await stage.client()
    await stage.worker()
    with pytest.raises(UsageError, match="transfers"):
        await client.start("transfers", {}, id=stage.saga_id)
    run = await client.temporal.start_workflow("transfers", {}, id=stage.saga_id, task_queue=stage.queue)
    with pytest.raises(WorkflowFailureError) as refused:
        await run.result()
    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.type == "SagaRefused"
    assert await stage.admin("select 1 from journal union all select 1 from saga_guard") == []
