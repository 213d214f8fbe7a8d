"""Faults of the engine's own code: a bug in a build, a build that decides differently, an unknown saga (cell 21).

A worker whose workflow code breaks must neither end a saga nor do anything twice: its workflow task fails, it is
listed (`saga list --stuck`), and the next build continues.
"""

from __future__ import annotations

import json

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from sagas.errors import UsageError
from tests.faults.cell_environment import CellEnvironment, activity_id
from tests.faults.injection.fault_participant import saga
from tests.helpers.waiting import until

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


async def workflow_code_raises(env: CellEnvironment) -> None:
    """The build fails when it processes the result; the next build processes it again."""
    await env.worker()
    broken = await env.own_workflow_worker(RAISES.format(activity=activity_id(env.target)))
    await env.start()
    await env.effect_is_there()
    await _found_stuck(env)
    broken.kill()
    env.fault_is_over()
    await env.own_workflow_worker()


async def code_decides_otherwise(env: CellEnvironment) -> None:
    """A build that would have called something else takes over while the attempt runs: it may not go on."""
    effects, old = await env.worker(), await env.own_workflow_worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=effects.pid)
        old.kill()
        changed = await env.own_workflow_worker(DECIDES_OTHERWISE.format(step=env.target.step, op=env.target.op))
    await _found_stuck(env)
    assert "Nondeterminism" in changed.log.read_text(encoding="utf-8", errors="replace")
    changed.kill()
    env.fault_is_over()
    await env.own_workflow_worker()


async def _found_stuck(env: CellEnvironment) -> None:
    async def is_listed() -> bool:
        code, output = await saga(env, "list", "--stuck", "-o", "json")
        assert code == 0, output
        reasons = [reason for row in json.loads(output) if row["id"] == env.saga_id for reason in row["stuck"]]
        return any("workflow task fails" in reason for reason in reasons)

    await until(is_listed, "the saga in `saga list --stuck`")


async def unknown_saga(env: CellEnvironment) -> None:
    """A name that no definition has: refused where it is started, and by the saga itself for those who cannot know."""
    client = await env.client()
    await env.worker()
    with pytest.raises(UsageError, match="transfers"):
        await client.start("transfers", {}, id=env.saga_id)
    run = await client.temporal.start_workflow("transfers", {}, id=env.saga_id, task_queue=env.queue)
    with pytest.raises(WorkflowFailureError) as refused:
        await run.result()
    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.type == "SagaRefused"
    assert await env.admin("select 1 from journal union all select 1 from saga_guard") == []
