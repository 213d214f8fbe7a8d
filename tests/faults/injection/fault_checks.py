"""Faults while the check of a step runs (row 40): it reads in the database before any step of the saga begins."""

from __future__ import annotations

from collections.abc import Mapping

from tests.faults.breakpoints import Target
from tests.faults.cell_environment import CellEnvironment
from tests.faults.cells import Position
from tests.faults.evidence.activity_history import activities_of
from tests.faults.injection import fault_servers as servers
from tests.faults.injection import fault_worker as worker
from tests.helpers.waiting import until

_STOP = "{sql: \"select 1 as reached from breakpoint('effect', 'hold.check', 'do')\"}"
_ENOUGH = (
    '{sql: "select balance from accounts where id = :customer and balance >= AMOUNT", '
    'params: {customer: "${{ input.customer }}"}, expect_rows: 1, rejected: the customer has too little money}'
)


def _check(*statements: str) -> Mapping[str, str]:
    lines = "".join(f"          - {statement}\n" for statement in statements)
    return {
        "  - id: hold\n    name: Hold the deposit\n": f"""  - id: hold
    name: Hold the deposit
    check:
      uses: sql
      with:
        connection: bank
        run:
{lines}"""
    }


CHECKED: Mapping[str, str] = _check(_ENOUGH.replace("AMOUNT", "10"), _STOP)
REFUSING: Mapping[str, str] = _check(_STOP, _ENOUGH.replace("AMOUNT", "1000"))
"""The customer has 100."""

CHECK: Mapping[Position, Target] = {"B": Target("hold.check", "do")}


async def killed_in_check(env: CellEnvironment) -> None:
    """The worker is killed while the check's statement runs."""
    await worker.killed_before_commit(env)
    await _check_order(env)


async def killed_after_answer(env: CellEnvironment) -> None:
    """The worker is killed when the database has answered the check, and before it reports that."""
    process = await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        backend = await stop.reached(by=process.pid)
        process.freeze()
    answered = "select 1 from pg_stat_activity where pid = %s and state <> 'active'"
    await until(lambda: env.admin(answered, backend), "the answer")
    process.kill()
    ends = [activity.end for activity in await activities_of(env.handle) if env.is_activity(activity.id, env.target)]
    assert ends == ["open"], "Temporal has heard of the answer before the worker died"
    env.fault_is_over()
    await env.worker()
    await _check_order(env)


async def killed_in_workflow_task(env: CellEnvironment) -> None:
    """P4, P5: the worker is killed during the workflow task that processes the answer."""
    await worker.killed_in_workflow_task(env, "effect")
    await _check_order(env)


async def session_terminated(env: CellEnvironment) -> None:
    """An administrator ends the session of a check."""
    await servers.session_terminated(env)
    await _check_order(env)


async def _check_order(env: CellEnvironment) -> None:
    """The check has ended once, before the first activity of any step was scheduled."""
    await env.finished()
    activities = await activities_of(env.handle)
    checks = [
        activity for activity in activities if env.is_activity(activity.id, env.target) and activity.ended is not None
    ]
    assert len(checks) == 1, f"the check has {len(checks)} ends"
    ended = checks[0].ended or 0
    earlier = [activity.id for activity in activities if activity.id != checks[0].id and activity.scheduled < ended]
    assert not set(earlier) & {"debit", "hold", "order"}, f"{earlier} began before the check's end"
