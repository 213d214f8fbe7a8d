"""Faults of participants and definitions: a no, an error that stays, a poison (cells 6, 7, 21, 22, 27, 35)."""

from __future__ import annotations

import asyncio
import os
import sys

from tests.faults.breakpoints import Target
from tests.faults.cell_environment import Stage, default_input
from tests.faults.evidence.checker import HOLD


async def rejects(stage: Stage) -> None:
    """A definite no."""
    await stage.worker()
    await stage.conduct(stage.target, "reject")
    await stage.start()


async def keeps_failing(stage: Stage) -> None:
    """A compensation without an alternate fails until its policy ends, parks, and a person retries it."""
    await stage.worker()
    await stage.conduct(stage.target, "fail")
    await stage.start()
    story = await stage.finished()
    assert story["state"] == "PARKED"
    assert story["steps"][2]["compensation"]["state"] == "PARKED"
    assert "the test breaks undo order" in story["parked"][0]["why"]
    assert (await stage.admin("select count(*) from holds"))[0][0] == 1, f"{HOLD} is kept while it is parked"
    await stage.heal()
    await stage.resolve(stage.target.step, "retry")
    await stage.leaves_parked()


async def skipped(stage: Stage) -> None:
    """The same, but the person gives it up: the effect that stays is named."""
    await stage.worker()
    await stage.conduct(stage.target, "fail")
    await stage.start()
    assert (await stage.finished())["state"] == "PARKED"
    await stage.resolve(stage.target.step, "skip")
    stage.fault_is_over()
    story = await stage.finished()
    assert [(row["step"], row["kind"]) for row in story["residue"]] == [("order", "effect_stays")]


async def expression_fails(stage: Stage) -> None:
    """An expression that is right on paper has no value for this input."""
    await stage.worker()
    given = default_input()
    del given["notes"]["release" if stage.target.op == "undo" else stage.target.step]
    await stage.start(given)


async def arguments_too_large(stage: Stage) -> None:
    """Arguments that no payload carries: found before the effect."""
    await stage.worker()
    given = default_input()
    given["notes"]["release" if stage.target.op == "undo" else stage.target.step] = "x" * 900_000
    await stage.start(given)


async def result_too_large(stage: Stage) -> None:
    """A result that no payload carries: found before COMMIT."""
    await stage.worker()
    await stage.conduct(stage.target, "big")
    await stage.start()


POISON = {
    "no compensation": ("    compensate: bank.order_cancel\n", ""),
    "a cycle": ("    needs: []\n    uses: bank.debit\n", "    needs: [order]\n    uses: bank.debit\n"),
    "two pivots": ("    compensate: bank.order_cancel\n", "    pivot: true\n"),
    "beside the pivot": ("    pivot: true\n", "    pivot: true\n    needs: [debit]\n"),
}


async def refused_at_registration(stage: Stage) -> None:
    """Definitions that could leave something half done never start."""
    good = (stage.folder / "fork.saga.yaml").read_text(encoding="utf-8")
    for name, (old, new) in POISON.items():
        assert old in good, name
        (stage.folder / "fork.saga.yaml").write_text(good.replace(old, new), encoding="utf-8")
        code, said = await saga(stage, "validate", "fork.saga.yaml")
        assert code == 1, f"{name}: {said}"
        assert "error" in said, f"{name}: {said}"


async def nested_past_its_pivot(stage: Stage) -> None:
    """A nested saga with a pivot cannot be undone, so nothing may follow it that can fail."""
    path = stage.folder / "deposit.saga.yaml"
    text = path.read_text(encoding="utf-8").replace("    compensate: bank.release\n", "    pivot: true\n")
    path.write_text(text, encoding="utf-8")
    code, said = await saga(stage, "validate", "parent.saga.yaml", "deposit.saga.yaml")
    assert code == 1, said
    assert "deposit" in said


async def saga(stage: Stage, *arguments: str) -> tuple[int, str]:
    """Run the real command in the cell's project, for the task queue of its workflows."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "saga_cli.main",
        *arguments,
        cwd=stage.folder,
        env={**os.environ, "SAGA_TEMPORAL__TASK_QUEUE": stage.flows if stage.split else stage.queue},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode is not None
    return child.returncode, said.decode()


async def branch_rejects(stage: Stage) -> None:
    """One branch is refused while its sibling is in flight: that one is awaited, then undone."""
    await stage.worker()
    await stage.conduct(Target("hold", "do"), "reject")
    async with stage.gate("effect", Target("debit", "do")) as gate:
        await stage.start()
        await gate.reached()
        await stage.recorded(Target("hold", "do"), "failed")
        await asyncio.sleep(0.3)
        assert not await stage.admin("select 1 from saga_guard where op = 'undo' and step = 'debit'")


async def order_across_join(stage: Stage) -> None:
    """No branch is undone before the step that joined them, however long that takes."""
    worker = await stage.worker()
    async with stage.gate("effect", Target("order", "undo")) as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        await asyncio.sleep(0.5)
        assert not await stage.admin("select 1 from saga_guard where op = 'undo' and step in ('debit', 'hold')")


async def child_rejects(stage: Stage) -> None:
    """A nested saga is refused: its parent goes backward."""
    await stage.worker()
    await stage.conduct(Target("hold", "do"), "reject")
    await stage.start()


async def child_undone_by_new_worker(stage: Stage) -> None:
    """The parent fails after its child has completed, and the worker dies while the child is being undone."""
    worker = await stage.worker()
    async with stage.gate("effect") as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        worker.kill()
    await stage.sessions_are_over(worker.pid)
    stage.fault_is_over()
    await stage.worker()
