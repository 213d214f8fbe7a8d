"""The log of a real `saga worker`."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer, WorkerProcess
from tests.integration.observability.shop import connect, make_shop


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
