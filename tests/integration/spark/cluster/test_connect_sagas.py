"""Sagas on a Spark Connect server: published, undone, with the runner killed, and with the server gone."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.spark_servers import ConnectProcess
from tests.helpers.waiting import until
from tests.integration.spark.cluster.gated_project import (
    GatedProject,
    completed_exactly,
    error_of,
    open_gated_project,
    stuck,
    undo,
)
from tests.integration.spark.runner.test_runner_killed import runner_of
from tests.integration.spark.staging.test_staging import QUICK

pytestmark = pytest.mark.slow
pytest.importorskip("grpc_status")


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectProcess]:
    with ConnectProcess(tmp_path_factory.mktemp("connect"), QUICK) as process:
        yield process


@pytest.fixture
async def gated(
    connect: ConnectProcess, temporal: TemporalServer, server: DatabaseServer, tmp_path: Path
) -> GatedProject:
    stage = (tmp_path / "stage").as_uri()
    changes = {
        'master = "local[2]"': f'remote = "{connect.url}"\nstage = "{stage}"',
        '"spark.ui.enabled" = "false"\n': "",  # settings of the server
        '"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"\n': "",
    }
    return await open_gated_project(tmp_path / "shop", server, temporal.address, changes)


async def test_a_saga_is_staged_audited_published_and_undone(gated: GatedProject) -> None:
    gated.open()
    async with running_worker(gated.project) as client:
        saga = f"day-{uuid.uuid4()}"
        await client.start("day", {}, id=saga)
        await completed_exactly(client, gated, saga)
        await undo(client, gated, saga)


async def test_a_job_whose_client_was_killed_is_not_published(gated: GatedProject) -> None:
    """The server does not notice it: the job of the first attempt goes on, in a folder of its own."""
    async with running_worker(gated.project) as client:
        saga = f"day-{uuid.uuid4()}"
        await client.start("day", {}, id=saga)
        await gated.reach_the_middle()
        runner = await until(lambda: runner_of(gated.day_close))
        runner.kill()
        await error_of(client, saga, "the Spark runner was killed by SIGKILL")
        gated.open()
        await completed_exactly(client, gated, saga)
        await undo(client, gated, saga)


async def test_a_server_that_is_gone_delays_the_saga(gated: GatedProject, connect: ConnectProcess) -> None:
    async with running_worker(gated.project) as client:
        saga = f"day-{uuid.uuid4()}"
        await client.start("day", {}, id=saga)
        await gated.reach_the_middle()
        await asyncio.to_thread(connect.kill)
        waiting = await error_of(client, saga, "the Spark Connect server")
        assert f"the Spark Connect server {connect.url} has not answered for 30 s" in waiting["error"]["message"]
        assert waiting["attempts"] == 0
        waiting = await error_of(client, saga, "no Spark Connect server answers")
        assert waiting["attempts"] == 0
        [reason] = await stuck(client, saga)
        assert reason.startswith("facts could not be attempted")
        await asyncio.to_thread(connect.start)
        gated.open()
        await completed_exactly(client, gated, saga)
        await undo(client, gated, saga)


async def test_a_server_that_was_restarted_does_not_know_the_sessions(
    gated: GatedProject, connect: ConnectProcess
) -> None:
    """Within half a minute the calls of the lost session fail, later the runner gives up: no attempt of the job."""
    async with running_worker(gated.project) as client:
        saga = f"day-{uuid.uuid4()}"
        await client.start("day", {}, id=saga)
        await gated.reach_the_middle()
        await asyncio.to_thread(connect.kill)
        await asyncio.to_thread(connect.start)
        gated.open()
        await completed_exactly(client, gated, saga)
        await undo(client, gated, saga)
