"""`saga serve` answers operators soon, although the server still lists the worker that is gone."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import httpx
import pytest

from saga_activities.ledger.schema import create_ledger
from saga_workers.client import Client
from saga_workers.temporal import temporal_runs
from saga_workers.views.saga_view import read_view
from sagas.project import Project
from sagas.settings.loader import load_settings
from tests.helpers.processes import TemporalServer, WorkerProcess
from tests.helpers.waiting import LIMIT, until
from tests.integration.engine.environment import open_environment
from tests.integration.serve.test_console import TOKENS, serving

RESTS = """
saga: rests
steps:
  - {id: approve, uses: wait, with: {signal: approve}}
"""
LONGEST = 12.0
"""Seconds for an answer: a query of three, and what a busy machine needs beside it. Each further wait takes 5 to 20."""


async def test_operators_wait_once_for_a_worker_that_is_gone(
    temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in TOKENS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(temporal_runs, "POLLER_TIMEOUT", float("inf"))
    environment = await open_environment(tmp_path, temporal.address)
    await create_ledger(environment.engine)
    folder, queue, saga_id = tmp_path / "project", f"silent-{uuid.uuid4()}", f"rests-{uuid.uuid4()}"
    folder.mkdir()
    (folder / "rests.saga.yaml").write_text(RESTS, encoding="utf-8")
    (folder / "saga.toml").write_text(
        f'''definitions = ["."]
[temporal]
address = "{temporal.address}"
task_queue = "{queue}"
[connections.shop]
url = "{environment.url}"
[ledger]
connection = "shop"
''',
        encoding="utf-8",
    )
    project = Project(load_settings(folder))
    worker = WorkerProcess("worker", folder)
    worker.start()
    try:
        async with await Client.connect(project) as client:
            await client.start("rests", {}, id=saga_id)
            await until(lambda: _is_running(client, saga_id))
            worker.kill()
            async with serving(client) as url, httpx.AsyncClient(base_url=url, timeout=LIMIT) as chief:
                await _operate(chief, saga_id, queue)
    finally:
        worker.kill()
    await environment.engine.dispose()


async def _is_running(client: Client, saga_id: str) -> bool:
    view = await read_view(client.locator, saga_id)
    return not view.incomplete and any(step.state == "RUNNING" for step in view.steps)


async def _operate(chief: httpx.AsyncClient, saga_id: str, queue: str) -> None:
    async def ask(path: str, body: dict[str, str]) -> httpx.Response:
        began = time.monotonic()
        headers = {"Authorization": f"Bearer {TOKENS['CHIEF']}"}
        answer = await chief.post(f"/sagas/{saga_id}/{path}", json=body, headers=headers)
        assert time.monotonic() - began < LONGEST, path
        return answer

    paused = await ask("pause", {"reason": "too early"})
    assert (paused.status_code, paused.json()["error"]) == (
        503,
        f"no worker answers on the task queue {queue}, so {saga_id} cannot answer; start a worker",
    )
    sent = await ask("signals/approve", {"data": "x"})
    assert (sent.status_code, sent.json()["response"]) == (200, "sent")
    cancelled = await ask("cancel", {"reason": "not wanted"})
    assert (cancelled.status_code, cancelled.json()["response"]) == (200, "requested")
    assert "recorded in Temporal" in cancelled.json()["note"]
