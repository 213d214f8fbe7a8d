"""Workers that are killed in a saga that goes back to a savepoint (row 39).

The pivot is refused once. So the steps after `debit`, the savepoint, are undone and run again, as generation 2.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from tests.faults.breakpoints import Point, Target
from tests.faults.cell_environment import CellEnvironment, default_input
from tests.faults.cells import Position
from tests.faults.injection import fault_worker as worker
from tests.helpers.processes import WorkerProcess
from tests.helpers.waiting import until

SAVEPOINT: Mapping[str, str] = {
    "  - id: debit\n    name: Take the money from the customer\n": """  - id: debit
    name: Take the money from the customer
    savepoint: {attempts: 2}
"""
}
LAST_UNDO: Mapping[Position, Target] = {"C": Target("debit", "undo")}
"""What only the saga itself undoes: the savepoint's own step."""

FIRST_UNDO = Target("order", "undo")
GENERATIONS = {"debit": [1], "hold": [1, 2], "order": [1, 2], "capture": [2], "ship": [1], "thank": [1]}
"""The generations whose effects are committed. The steps after the pivot have not begun in the first run."""


async def killed_before_commit(env: CellEnvironment) -> None:
    """P2: before the commit of an undo back to the savepoint (C), or of a step that runs again (B, P) or after it."""
    process = await env.worker()
    async with _stopped(env, process, "effect"):
        process.kill()
    await env.sessions_are_over(process.pid)
    assert not await _effect(env), "attempt 1 left a trace"
    env.fault_is_over()
    await env.worker()
    await _check_generations(env)


async def killed_after_commit(env: CellEnvironment) -> None:
    """P3, P8: the same after the commit and before the worker reports the result."""
    process = await env.worker()
    async with _stopped(env, process, "commit"):
        process.freeze()
    await until(lambda: _effect(env), "the effect")
    process.kill()
    env.fault_is_over()
    await env.worker()
    await _check_generations(env)


async def killed_in_last_undo(env: CellEnvironment) -> None:
    """The pivot is refused in all runs, and the worker is killed when the saga goes back past its savepoint."""
    await worker.killed_before_commit(env)
    story = await env.finished()
    assert story["savepoints"] == [{"step": "debit", "runs": 2, "attempts": 2}]


@asynccontextmanager
async def _stopped(env: CellEnvironment, process: WorkerProcess, point: Point) -> AsyncIterator[None]:
    """Start the saga; inside, the worker is stopped at the target, after the first run was refused."""
    await env.script_attempts(Target("capture", "do"), "reject", "ok")
    async with env.breakpoint_at("commit", FIRST_UNDO) as undoing:
        env.fault_is_over()
        await (await env.client()).start(env.saga, default_input(), id=env.saga_id)
        await undoing.reached(by=process.pid)
        async with env.breakpoint_at(point) as stop:
            await undoing.open()
            await stop.reached(by=process.pid)
            yield


async def _effect(env: CellEnvironment) -> bool:
    """The effect that the fault hits is committed."""
    step, op = env.target.step, env.target.op
    generation = 1 if op == "undo" else GENERATIONS[step][-1]
    question = "select 1 from journal where (saga_id, step, op, generation) = (%s, %s, %s, %s)"
    return bool(await env.admin(question, env.saga_id, step, op, generation))


async def _check_generations(env: CellEnvironment) -> None:
    """There were two runs, each under its own keys, and that of the refused pivot is sealed."""
    story = await env.finished()
    assert story["savepoints"] == [{"step": "debit", "runs": 2, "attempts": 2}]
    effects: dict[str, list[int]] = {}
    for step, generation in await env.admin("select step, generation from journal where op = 'do' order by 2, 1"):
        effects.setdefault(step, []).append(generation)
    assert effects == GENERATIONS
    sealed = await env.admin("select step, generation from saga_guard where op = 'do' and reason = 'undo'")
    assert sealed == [("capture", 1)]
