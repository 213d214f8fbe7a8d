"""The notification receiver is down (row 30): the saga ends as it would without it, and the failure is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.faults.cell_environment import CellEnvironment
from tests.helpers.waiting import until

NOTIFY: Mapping[str, str] = {
    "output:": """warn_after: 10ms
notify:
  - when: [completed, compensated, parked, overdue]
    uses: http
    with: {url: "http://127.0.0.1:9/nobody-listens"}
    intervals: [50ms, 100ms]
output:"""
}
"""Added to the definition: the port of the discard service, which is not running."""


async def receiver_down(env: CellEnvironment) -> None:
    """Told first while the target's effect is under way, and again when the saga is over."""
    worker = await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        await until(lambda: _notification_shown(env, "overdue"), "that it is overdue")
    env.fault_is_over()
    story = await env.finished()
    end = "compensated" if env.target.op == "undo" else "completed"
    rows = [await until(lambda when=when: _given_up(env, when), f"EXHAUSTED: {when}") for when in ("overdue", end)]
    assert [row["attempts"] for row in rows] == [3, 3]
    asked = await (await env.client()).show(env.saga_id)
    assert (asked["state"], asked["output"]) == (story["state"], story["output"]), "every caller is told"


async def _notification_shown(env: CellEnvironment, when: str) -> dict[str, Any] | None:
    rows = (await (await env.client()).show(env.saga_id))["notifications"]
    return next((row for row in rows if row["when"] == when), None)


async def _given_up(env: CellEnvironment, when: str) -> dict[str, Any] | None:
    row = await _notification_shown(env, when)
    return row if row is not None and row["state"] == "EXHAUSTED" else None
