"""A worker whose connection to Temporal a firewall has forgotten: it opens another one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from saga_workers.client import Client
from saga_workers.temporal.temporal_client import connect
from saga_workers.worker.worker_process import make_worker
from sagas import action
from tests.helpers.fault_proxy import fault_proxy
from tests.helpers.local_worker import make_project
from tests.helpers.processes import TemporalServer

DEFINITION = "saga: greet-again\nsteps: [{id: a, uses: test.greet, effect: none, timeout: 5s}]\n"


@action("test.greet")
async def greet() -> str:
    return "hello"


@pytest.mark.slow
async def test_a_worker_and_a_client_replace_a_forgotten_connection(
    temporal: TemporalServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with fault_proxy(int(temporal.address.rpartition(":")[2])) as proxy:
        project = make_project(tmp_path, {"greet": DEFINITION}, [greet], address=f"127.0.0.1:{proxy.port}")
        connected = await connect(project.settings)
        client = Client(connected, project)
        async with make_worker(connected, project):
            await (await client.start("greet-again", {}, id="greet-again-1")).result()
            proxy.forget()
            began = time.monotonic()
            await (await client.start("greet-again", {}, id="greet-again-2")).result()
            waited = time.monotonic() - began
            assert waited < 30, waited  # a check each ten seconds, and an attempt that is lost
    assert not [record.getMessage() for record in caplog.records if record.exc_info], "that is not a bug"
