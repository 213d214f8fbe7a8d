"""Workers that are killed in a step with `compensate: auto`, in its undo, and between the two (row 37)."""

from __future__ import annotations

from collections.abc import Mapping

from tests.faults.breakpoints import Target
from tests.faults.cell_environment import CellEnvironment
from tests.faults.cells import TARGETS, Position
from tests.faults.injection import fault_worker as worker
from tests.helpers.waiting import until

AUTOMATIC: Mapping[str, str] = {
    "  - id: hold\n    name: Hold the deposit\n": """  - id: take
    uses: sql
    with:
      connection: bank
      run: "update stock set free = free - 1, note = 'taken' where sku = 'A'"
      expect_rows: 1
    compensate: auto

  - id: hold
    name: Hold the deposit
"""
}
TAKE: Mapping[Position, Target] = {**TARGETS, "B": Target("take", "do"), "C": Target("take", "undo")}

RELEASE = Target("rows", "undo")

BEFORE = ("A", 5, "as planned")
AFTER = ("A", 4, "taken")


async def killed_before_commit(env: CellEnvironment) -> None:
    """P2: the worker is killed before the transaction that changes or restores the row is committed."""
    await worker.killed_before_commit(env)
    await _check_row(env)


async def killed_after_commit(env: CellEnvironment) -> None:
    """P3, P8: the worker is killed after this transaction, or another step's, and before it reports the result."""
    if env.target.step != "take":
        await worker.killed_after_effect(env)
        await _check_row(env)
        return
    process = await env.worker()
    async with env.breakpoint_at("commit") as stop:
        await env.start()
        await stop.reached(by=process.pid)
        process.freeze()
    row = AFTER if env.target.op == "do" else BEFORE
    await until(lambda: env.admin("select 1 from stock where (sku, free, note) = (%s, %s, %s)", *row), "the row")
    process.kill()
    env.fault_is_over()
    await env.worker()
    await _check_row(env)


async def killed_after_row_release(env: CellEnvironment) -> None:
    """The worker is killed when the row belongs to nobody any more, at the saga's end, and that is not reported yet."""
    process = await env.worker()
    async with env.breakpoint_at("commit", RELEASE) as stop:
        await env.start()
        await stop.reached(by=process.pid)
        process.freeze()
    released = "select 1 where not exists (select 1 from saga_row_lock)"
    await until(lambda: env.admin(released), "the release of the row")
    process.kill()
    env.fault_is_over()
    await env.worker()
    await _check_row(env)


async def _check_row(env: CellEnvironment) -> None:
    """The row is as the step has made it, or exactly as it was before; it belongs to nobody any more."""
    story = await env.finished()
    row = AFTER if story["state"] == "COMPLETED" else BEFORE
    assert await env.admin("select sku, free, note from stock") == [row]
    assert await env.admin("select * from saga_row_lock") == []
