"""Workers that are killed before a transaction is prepared, while it is, and when it was ended (row 38)."""

from __future__ import annotations

from collections.abc import Mapping

from saga_activities.guard.two_phase.rules import COMMITTED
from tests.faults.breakpoints import Target
from tests.faults.cell_environment import CellEnvironment
from tests.faults.cells import TARGETS, Position
from tests.faults.injection import fault_automatic as automatic
from tests.faults.injection import fault_worker as worker
from tests.helpers.waiting import until

TWO_PHASE: Mapping[str, str] = {
    old: new.replace("    compensate: auto\n", "").replace("      expect_rows: 1\n", "      two_phase: true\n")
    for old, new in automatic.AUTOMATIC.items()
}
PREPARE: Mapping[Position, Target] = {**TARGETS, "B": Target("take", "do")}
PREPARED: Mapping[Position, Target] = {**TARGETS, "B": Target("take", COMMITTED)}
"""The row of the guard that is part of the prepared transaction; and other steps while that is prepared."""

END: Mapping[Position, Target] = {**TARGETS, "A": Target("take", "confirm"), "C": Target("take", "undo")}


async def killed_before_prepare(env: CellEnvironment) -> None:
    """The worker is killed in the transaction to prepare (B), or in another step while that is prepared."""
    await worker.killed_before_commit(env)
    await _check_row(env)


async def killed_after_prepare(env: CellEnvironment) -> None:
    """The worker is killed when the transaction is prepared (B), or another one committed, and that is not reported."""
    if env.target.step != "take":
        await worker.killed_after_effect(env)
        await _check_row(env)
        return
    process = await env.worker()
    async with env.breakpoint_at("commit") as stop:
        await env.start()
        await stop.reached(by=process.pid)
        assert await _prepared(env) == 0
        process.freeze()
    await until(lambda: _prepared(env), "the prepared transaction")
    process.kill()
    env.fault_is_over()
    await env.worker()
    await _check_row(env)


async def killed_after_end(env: CellEnvironment) -> None:
    """The worker is killed when the prepared transaction is committed or rolled back, and that is not reported yet."""
    process = await env.worker()
    async with env.breakpoint_at("commit") as stop:
        await env.start()
        await stop.reached(by=process.pid)
        assert await _prepared(env) == 0
        process.freeze()
    recorded = "select 1 from saga_guard where step = %s and op = %s"
    await until(lambda: env.admin(recorded, env.target.step, env.target.op), "the record of the end")
    process.kill()
    env.fault_is_over()
    await env.worker()
    await _check_row(env)


async def _check_row(env: CellEnvironment) -> None:
    """The row is as the step has made it, or as it was before, and no transaction is prepared any more."""
    story = await env.finished()
    row = automatic.AFTER if story["state"] == "COMPLETED" else automatic.BEFORE
    assert await env.admin("select sku, free, note from stock") == [row]
    assert await _prepared(env) == 0


async def _prepared(env: CellEnvironment) -> int:
    return (await env.admin("select count(*) from pg_prepared_xacts where database = current_database()"))[0][0]
