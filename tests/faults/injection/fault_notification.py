"""Whoever is to be notified is down (row 30): the saga ends as it would without them, and who asks is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.faults.cell_environment import Stage

NOTIFY: Mapping[str, str] = {
    "output:": """warn_after: 10ms
notify:
  - when: [completed, compensated, parked, overdue]
    uses: http
    with: {url: "http://127.0.0.1:9/nobody-listens"}
    intervals: [50ms, 100ms]
output:"""
}
"""What the definition gets: the port of the discard service, which nobody runs."""


async def nobody_listens(stage: Stage) -> None:
    """Told first while the target's effect is under way, and again when the saga is over."""
    worker = await stage.worker()
    async with stage.gate("effect") as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        await stage.until(lambda: _told(stage, "overdue"), "that it is overdue")
    stage.fault_is_over()
    story = await stage.finished()
    end = "compensated" if stage.target.op == "undo" else "completed"
    rows = [
        await stage.until(lambda when=when: _given_up(stage, when), f"EXHAUSTED: {when}") for when in ("overdue", end)
    ]
    assert [row["attempts"] for row in rows] == [3, 3]
    asked = await (await stage.client()).show(stage.saga_id)
    assert (asked["state"], asked["output"]) == (story["state"], story["output"]), "whoever asks is told"


async def _told(stage: Stage, when: str) -> dict[str, Any] | None:
    rows = (await (await stage.client()).show(stage.saga_id))["notifications"]
    return next((row for row in rows if row["when"] == when), None)


async def _given_up(stage: Stage, when: str) -> dict[str, Any] | None:
    row = await _told(stage, when)
    return row if row is not None and row["state"] == "EXHAUSTED" else None
