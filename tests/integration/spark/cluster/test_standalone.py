"""Sagas on a standalone cluster of two workers: published, undone, an executor killed, the cluster gone."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.spark_servers import StandaloneCluster
from tests.helpers.waiting import until
from tests.integration.spark.cluster.gated_project import (
    GatedProject,
    completed_exactly,
    error_of,
    open_gated_project,
    stuck,
    undo,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture
async def gated(
    cluster: StandaloneCluster, temporal: TemporalServer, server: DatabaseServer, tmp_path: Path
) -> GatedProject:
    folder = tmp_path / "shop"
    stage = (tmp_path / "stage").as_uri()
    conf = {
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    lines = "".join(f'\n"{name}" = "{value}"' for name, value in conf.items())
    changes = {
        'master = "local[2]"': f'master = "{cluster.url}"\nmemory = "512m"\nstage = "{stage}"',
        "[spark.conf]": f"[spark.conf]{lines}\n",
    }
    return await open_gated_project(folder, server, temporal.address, changes)


async def test_a_saga_is_staged_audited_published_and_undone(gated: GatedProject, cluster: StandaloneCluster) -> None:
    gated.open()
    async with running_worker(gated.project) as client:
        saga = f"day-{uuid.uuid4()}"
        await client.start("day", {}, id=saga)
        await completed_exactly(client, gated, saga)
        assert cluster.executors(), "the job ran in executors of the cluster"
        await undo(client, gated, saga)


async def test_an_executor_that_is_killed_changes_nothing(gated: GatedProject, cluster: StandaloneCluster) -> None:
    async with running_worker(gated.project) as client:
        saga = f"day-{uuid.uuid4()}"
        await client.start("day", {}, id=saga)
        await gated.reach_the_middle()
        executors = cluster.executors()
        assert len(executors) == 2
        executors[0].kill()
        await until(lambda: gated.started(2) + gated.started(3) == 3)
        gated.open()
        await completed_exactly(client, gated, saga)
        await undo(client, gated, saga)


async def test_a_cluster_that_is_gone_for_a_minute_delays_the_saga(
    gated: GatedProject, cluster: StandaloneCluster
) -> None:
    async with running_worker(gated.project) as client:
        saga = f"day-{uuid.uuid4()}"
        await client.start("day", {}, id=saga)
        await gated.reach_the_middle()
        await asyncio.to_thread(cluster.kill)
        gone = time.monotonic()
        waiting = await error_of(client, saga, "the Spark cluster")
        assert waiting["error"]["message"].startswith(f"the Spark cluster {cluster.url} is gone: no connection to its")
        assert (waiting["error"]["type"], waiting["attempts"]) == ("Infrastructure", 0)
        waiting = await error_of(client, saga, "no master of Spark accepts connections")
        assert waiting["attempts"] == 0
        [reason] = await stuck(client, saga)
        assert reason.startswith("facts could not be attempted")
        assert "no master of Spark accepts connections" in reason
        await asyncio.sleep(max(0.0, 60 - (time.monotonic() - gone)))
        assert (await client.show(saga))["state"] == "RUNNING"
        await asyncio.to_thread(cluster.start)
        gated.open()
        await completed_exactly(client, gated, saga)
        await undo(client, gated, saga)
