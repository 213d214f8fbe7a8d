"""A request of an operator to a saga while Temporal is busy: it is sent again, and takes effect once."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_workers.temporal.temporal_runs import count_pollers
from tests.helpers.busy_temporal import accepted_updates, refuse_and_lose_update
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until

WAITING = "saga: waiting\nsteps:\n  - {id: approval, uses: wait, with: {signal: approved}}\n"


async def test_a_request_is_sent_again_while_temporal_is_busy(
    tmp_path: Path, temporal: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path, {"waiting": WAITING}, [], address=temporal.address)
    async with running_worker(project) as client:
        started = await client.start("waiting", {})
        run = client.temporal.get_workflow_handle(started.id)
        await until(lambda: count_pollers(client.temporal, project.settings.temporal.task_queue))
        refuse_and_lose_update(monkeypatch, client.temporal)
        assert (await client.pause(started.id, reason="audit")).state == "RUNNING"
        monkeypatch.undo()
        assert await accepted_updates(run) == 1
        refuse_and_lose_update(monkeypatch, client.temporal)
        assert await client.cancel(started.id, reason="busy", who="me") == "accepted"
        monkeypatch.undo()
        assert await accepted_updates(run) == 2
        assert (await finished(client, started.id))["state"] == "COMPENSATED"
