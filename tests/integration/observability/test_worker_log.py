"""The log of a real `saga worker`."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer, WorkerProcess
from tests.helpers.waiting import until
from tests.integration.engine.environment import row
from tests.integration.observability.shop import ACTIONS, connect, make_shop, open_project, write_files


async def run_the_shop(temporal: TemporalServer, folder: Path, *options: str) -> tuple[str, dict[str, str]]:
    """The log of a worker that has seen a declined card, a jammed till and a saga that parks; the sagas' ids."""
    project = await make_shop(folder, temporal)
    worker = WorkerProcess("worker", folder, options=options).start()
    ids = {name: f"{name}-{uuid.uuid4()}" for name in ("declined", "jammed", "glued")}
    try:
        client = await connect(project, temporal)
        for name, (sku, limit) in {"declined": ("pear", 1), "jammed": ("fig", 13), "glued": ("glued", 1)}.items():
            await client.start("checkout", {"sku": sku, "limit": limit}, id=ids[name])
            await finished(client, ids[name])
        worker.stop()
    finally:
        worker.kill()
    return worker.log.read_text(encoding="utf-8"), ids


async def test_the_text_log_has_one_line_per_event(temporal: TemporalServer, tmp_path: Path) -> None:
    text, ids = await run_the_shop(temporal, tmp_path / "shop")
    lines = [line.split(" ", 1)[1] for line in text.splitlines()]  # without the time
    declined, jammed, glued = ids["declined"], ids["jammed"], ids["glued"]
    for line in (
        f"INFO saga.step {declined} charge: payments.charge rejected: Rejected: card declined",
        f"INFO saga.step {declined} reserve undo: inventory.release: done",
        f"INFO temporalio.activity {declined} reserve: looking for pear on the shelf",
        f"WARNING saga.step {jammed} charge: payments.charge failed without an effect:"
        " RuntimeError: the till is jammed",
        f"INFO saga.step {glued} reserve undo: inventory.release rejected: Rejected: it does not come off the shelf",
        f"WARNING temporalio.workflow {glued}: parked at reserve: `saga parked` shows the possible decisions",
        f"INFO temporalio.workflow {declined}: saga ended COMPENSATED: rejected at charge: card declined",
    ):
        assert lines.count(line) == 1, (line, text)
    assert [line.strip() for line in text.splitlines() if line.startswith("    ")] == [
        "Traceback (most recent call last):",
        f'File "{tmp_path}/shop/shop_actions.py", line 24, in charge',
        'raise RuntimeError("the till is jammed")',
        "RuntimeError: the till is jammed",
    ]


@pytest.mark.slow
async def test_the_json_log_has_one_object_per_line(temporal: TemporalServer, tmp_path: Path) -> None:
    text, ids = await run_the_shop(temporal, tmp_path / "shop", "--log-format", "json")
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    [declined] = [line for line in lines if line.get("saga_id") == ids["declined"] and line.get("outcome")]
    assert {name: declined[name] for name in ("level", "saga", "step", "op", "attempt", "outcome")} == {
        "level": "INFO",
        "saga": "checkout",
        "step": "charge",
        "op": "do",
        "attempt": 1,
        "outcome": "rejected",
    }
    assert all(line["time"].endswith("Z") and line["logger"] and line["message"] for line in lines)
    [where] = [line["traceback"] for line in lines if "traceback" in line]
    assert where.splitlines()[1:2] == [f'  File "{tmp_path}/shop/shop_actions.py", line 24, in charge']
    assert where.count("File ") == 1


@pytest.mark.slow
async def test_debug_shows_successful_attempts(temporal: TemporalServer, tmp_path: Path) -> None:
    text, ids = await run_the_shop(temporal, tmp_path / "shop", "--debug")
    assert text.count("RuntimeError: the till is jammed") == 2  # the line, and the end of its traceback
    assert f"DEBUG saga.step {ids['jammed']} charge attempt 2: payments.charge: done" in text
    assert "/saga_activities/" not in text


HANGING = """
saga: hanging
steps:
  - {id: stays, uses: slow.hang, effect: none, needs: [], timeout: 1h}
  - {id: beats, uses: slow.beat, effect: none, needs: [], timeout: 1h, heartbeat: 500ms}
  - {id: late, uses: slow.hang, effect: none, needs: [], timeout: 500ms, retry: {max_attempts: 1}, on_failure: continue}
"""

SLOW = """
import asyncio

from sagas import Step, action


@action("slow.hang")
async def hang(step: Step) -> None:
    await asyncio.sleep(3600)


@action("slow.beat")
async def beat(step: Step) -> None:
    while True:
        step.heartbeat()
        await asyncio.sleep(0.1)
"""


async def test_a_timeout_a_cancel_and_a_stop_leave_no_traceback(temporal: TemporalServer, tmp_path: Path) -> None:
    """All three end an attempt where it waits, which is no bug of it."""
    folder = tmp_path / "shop"
    url = f"sqlite+aiosqlite:///{folder / 'shop.db'}"
    write_files(folder, temporal.address, url)
    (folder / "hanging.saga.yaml").write_text(HANGING)
    (folder / "shop_actions.py").write_text(ACTIONS + SLOW)
    project = await open_project(folder, url)
    worker = WorkerProcess("worker", folder, grace="1s").start()
    try:
        client, saga = await connect(project, temporal), f"hanging-{uuid.uuid4()}"
        await client.start("hanging", {}, id=saga)

        async def is_late() -> bool:
            return row(await client.show(saga), "late")["state"] not in ("PENDING", "RUNNING", None)

        await until(is_late, limit=20)
        await client.cancel(saga)
        assert (await finished(client, saga))["state"] == "COMPENSATED"
        cancelled = f"{saga} beats: slow.beat has an unknown outcome"
        await until(lambda: cancelled in worker.log.read_text(encoding="utf-8"), limit=20)
        worker.stop()
    finally:
        worker.kill()
    text = worker.log.read_text(encoding="utf-8")
    assert f"{saga} stays: slow.hang has an unknown outcome: Cancelled" in text
    assert "Traceback" not in text, text
