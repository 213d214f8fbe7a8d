"""Faults of participants and definitions: a no, an error that stays, a poison (cells 6, 7, 21, 22, 27, 35)."""

from __future__ import annotations

import asyncio
import os

from tests.faults.breakpoints import Target
from tests.faults.cell_environment import CellEnvironment, default_input
from tests.faults.evidence.checker import HOLD
from tests.helpers.forked_commands import run_command
from tests.helpers.waiting import LIMIT


async def rejects(env: CellEnvironment) -> None:
    """A definite no."""
    await env.worker()
    await env.script_attempts(env.target, "reject")
    await env.start()


async def keeps_failing(env: CellEnvironment) -> None:
    """A compensation without an alternate fails until its policy is exhausted, parks, and an operator retries it."""
    await env.worker()
    await env.script_attempts(env.target, "fail")
    await env.start()
    story = await env.finished()
    assert story["state"] == "PARKED"
    assert story["steps"][2]["compensation"]["state"] == "PARKED"
    assert "the test breaks undo order" in story["parked"][0]["why"]
    assert (await env.admin("select count(*) from holds"))[0][0] == 1, f"{HOLD} is kept while it is parked"
    await env.remove_faults()
    await env.resolve(env.target.step, "retry")
    await env.leaves_parked_state()


async def skipped(env: CellEnvironment) -> None:
    """Let the compensation fail until it parks, and skip it: the remaining effect is reported."""
    await env.worker()
    await env.script_attempts(env.target, "fail")
    await env.start()
    assert (await env.finished())["state"] == "PARKED"
    await env.resolve(env.target.step, "skip")
    env.fault_is_over()
    story = await env.finished()
    assert [(row["step"], row["kind"]) for row in story["residue"]] == [("order", "effect_stays")]


async def expression_fails(env: CellEnvironment) -> None:
    """An expression that is right on paper has no value for this input."""
    await env.worker()
    given = default_input()
    del given["notes"]["release" if env.target.op == "undo" else env.target.step]
    await env.start(given)


async def arguments_too_large(env: CellEnvironment) -> None:
    """Arguments that no payload carries: found before the effect."""
    await env.worker()
    given = default_input()
    given["notes"]["release" if env.target.op == "undo" else env.target.step] = "x" * 900_000
    await env.start(given)


async def result_too_large(env: CellEnvironment) -> None:
    """A result that no payload carries: found before COMMIT."""
    await env.worker()
    await env.script_attempts(env.target, "big")
    await env.start()


POISON = {
    "no compensation": ("    compensate: bank.order_cancel\n", ""),
    "a cycle": ("    needs: []\n    uses: bank.debit\n", "    needs: [order]\n    uses: bank.debit\n"),
    "two pivots": ("    compensate: bank.order_cancel\n", "    pivot: true\n"),
    "beside the pivot": ("    pivot: true\n", "    pivot: true\n    needs: [debit]\n"),
}


async def refused_at_registration(env: CellEnvironment) -> None:
    """Definitions that could leave something half done never start."""
    good = (env.folder / "fork.saga.yaml").read_text(encoding="utf-8")
    for name, (old, new) in POISON.items():
        assert old in good, name
        (env.folder / "fork.saga.yaml").write_text(good.replace(old, new), encoding="utf-8")
        code, output = await saga(env, "validate", "fork.saga.yaml")
        assert code == 1, f"{name}: {output}"
        assert "error" in output, f"{name}: {output}"


async def nested_past_its_pivot(env: CellEnvironment) -> None:
    """A nested saga with a pivot cannot be undone, so nothing may follow it that can fail."""
    path = env.folder / "deposit.saga.yaml"
    text = path.read_text(encoding="utf-8").replace("    compensate: bank.release\n", "    pivot: true\n")
    path.write_text(text, encoding="utf-8")
    code, output = await saga(env, "validate", "parent.saga.yaml", "deposit.saga.yaml")
    assert code == 1, output
    assert "deposit" in output


async def saga(env: CellEnvironment, *arguments: str) -> tuple[int, str]:
    """Run the real command in the cell's project, for the task queue of its workflows."""
    queue = env.workflow_queue if env.split else env.queue
    variables = {**os.environ, "SAGA_TEMPORAL__TASK_QUEUE": queue}
    done = await asyncio.to_thread(run_command, arguments, env.folder, env=variables, timeout=LIMIT)
    return done.returncode, done.stdout + done.stderr


async def branch_rejects(env: CellEnvironment) -> None:
    """One branch is refused while its sibling is in flight: that one is awaited, then undone."""
    await env.worker()
    await env.script_attempts(Target("hold", "do"), "reject")
    async with env.breakpoint_at("effect", Target("debit", "do")) as stop:
        await env.start()
        await stop.reached()
        await env.recorded(Target("hold", "do"), "failed")
        await asyncio.sleep(0.3)
        assert not await env.admin("select 1 from saga_guard where op = 'undo' and step = 'debit'")


async def order_across_join(env: CellEnvironment) -> None:
    """No branch is undone before the step that joined them, however long that takes."""
    worker = await env.worker()
    async with env.breakpoint_at("effect", Target("order", "undo")) as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        await asyncio.sleep(0.5)
        assert not await env.admin("select 1 from saga_guard where op = 'undo' and step in ('debit', 'hold')")


async def child_rejects(env: CellEnvironment) -> None:
    """A nested saga is refused: its parent goes backward."""
    await env.worker()
    await env.script_attempts(Target("hold", "do"), "reject")
    await env.start()


async def child_undone_by_new_worker(env: CellEnvironment) -> None:
    """The parent fails after its child has completed, and the worker is killed while the child is compensated."""
    worker = await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        worker.kill()
    await env.sessions_are_over(worker.pid)
    env.fault_is_over()
    await env.worker()
