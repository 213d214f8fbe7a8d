"""`saga serve` after SIGTERM: requests under way are answered within its grace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.helpers.database_servers import HOST
from tests.helpers.forked_commands import run_command
from tests.helpers.free_ports import free_port
from tests.helpers.processes import CommandProcess, TemporalServer, WorkerProcess
from tests.helpers.waiting import LIMIT, until

TOML = """
[temporal]
address = "{address}"
task_queue = "until-stopped"
[serve.tokens.shop]
secret = {{env = "SHOP_TOKEN"}}
scopes = ["read", "start"]
"""
TOKENS = {"SHOP_TOKEN": "reads-and-starts"}
SLOW = """
saga: slow
steps:
  - {id: go, uses: wait, with: {signal: go, timeout: 1h}}
"""


class Serving:
    """`saga serve` with a grace, which has one start that waits for the end of its saga."""

    def __init__(self, project: Path, grace: str) -> None:
        self.port = free_port()
        options = ("--listen", f"{HOST}:{self.port}", "--grace", grace)
        self.process = CommandProcess(f"serve-{grace}", project, "serve", *options, env=TOKENS)

    def client(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {TOKENS['SHOP_TOKEN']}"}
        return httpx.AsyncClient(base_url=f"http://{HOST}:{self.port}", headers=headers, timeout=LIMIT)

    async def start(self, saga_id: str) -> httpx.Response:
        async with self.client() as shop:
            return await shop.post("/sagas/slow", json={"id": saga_id, "wait": "60s"})

    async def runs(self, saga_id: str) -> bool:
        async with self.client() as shop:
            answer = await shop.get(f"/sagas/{saga_id}")
        return answer.status_code == 200 and answer.json()["state"] == "RUNNING"

    async def refuses(self) -> bool:
        try:
            async with self.client() as shop:
                await shop.get("/openapi.json")
        except httpx.ConnectError:
            return True
        except httpx.ReadError:
            return False  # it was in the queue of the socket when that was closed
        return False


@pytest.fixture(scope="module")
async def project(temporal: TemporalServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    folder = tmp_path_factory.mktemp("until-stopped")
    (folder / "saga.toml").write_text(TOML.format(address=temporal.address))
    (folder / "definitions").mkdir()
    (folder / "definitions" / "slow.saga.yaml").write_text(SLOW)
    setup = run_command(["setup"], folder, env=TOKENS)
    assert setup.returncode == 0, setup.stderr
    with WorkerProcess("worker", folder):
        yield folder


async def test_a_start_that_waits_is_answered_within_the_grace(project: Path) -> None:
    serving = Serving(project, "60s")
    with serving.process:
        waiting = asyncio.create_task(serving.start("slow-1"))
        await until(lambda: serving.runs("slow-1"))
        exited = asyncio.create_task(asyncio.to_thread(serving.process.stop, LIMIT))
        await until(serving.refuses, "no further connection")
        await asyncio.sleep(6)  # longer than the other servers of a process have to end
        assert not waiting.done()
        signalled = await asyncio.to_thread(run_command, ["signal", "slow-1", "go"], project, env=TOKENS)
        assert signalled.returncode == 0, signalled.stderr
        answer = await waiting
        assert (answer.status_code, answer.json()["outcome"]["state"]) == (200, "COMPLETED")
        assert await exited == 0
    assert "stopping: 1 requests have 60 s to complete" in serving.process.tail()


async def test_a_start_that_waits_beyond_the_grace_is_accepted(project: Path) -> None:
    serving = Serving(project, "1s")
    with serving.process:
        waiting = asyncio.create_task(serving.start("slow-2"))
        await until(lambda: serving.runs("slow-2"))
        began = time.monotonic()
        exited = asyncio.create_task(asyncio.to_thread(serving.process.stop, LIMIT))
        answer = await waiting
        assert (answer.status_code, answer.json()["id"], answer.json()["outcome"]) == (202, "slow-2", None)
        assert await exited == 0
    assert time.monotonic() - began < 20  # and not the 60 seconds of the start
    assert "Traceback" not in serving.process.tail(1000)
