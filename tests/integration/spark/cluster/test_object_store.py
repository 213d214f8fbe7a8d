"""A stage and an Iceberg warehouse in an object store with the S3 API: published, undone, with the driver killed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from saga_spark.storage import resolve_uri
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.s3_server import BUCKET, S3A_JARS, S3Server, S3UnavailableError
from tests.helpers.waiting import until
from tests.integration.spark.cluster.gated_project import (
    GatedProject,
    completed_exactly,
    error_of,
    open_gated_project,
    undo,
)
from tests.integration.spark.runner.test_runner_killed import runner_of
from tests.integration.spark.sagas.crash_runner import clear_stage

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def jars() -> list[Path]:
    try:
        return S3A_JARS.fetch(print)
    except S3UnavailableError as error:
        pytest.skip(error.message)


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    try:
        process = S3Server(tmp_path)
    except S3UnavailableError as error:
        pytest.skip(error.message)
    with process as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        fs.S3FileSystem(allow_bucket_creation=True, endpoint_override=server.url).create_dir(BUCKET)
        yield server


@pytest.fixture
async def gated(
    s3: S3Server, jars: list[Path], temporal: TemporalServer, server: DatabaseServer, tmp_path: Path
) -> GatedProject:
    folder = tmp_path / "shop"
    conf = "".join(f'"{name}" = "{value}"\n' for name, value in s3.spark_conf(jars).items())
    catalog = "".join(f'"{name}" = "{value}"\n' for name, value in s3.catalog_properties.items())
    changes = {
        'master = "local[2]"': f'master = "local[2]"\nmemory = "512m"\nstage = "s3://{BUCKET}/stage"',
        "[spark.conf]": "[spark.conf]\n" + conf + "#",
        f'warehouse = "{(folder / "warehouse").as_uri()}"': f'warehouse = "s3://{BUCKET}/warehouse"\n{catalog}',
    }
    return await open_gated_project(folder, server, temporal.address, changes)


def objects(prefix: str) -> list[str]:
    system, path = resolve_uri(f"s3://{BUCKET}/{prefix}")
    infos = system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    return sorted(info.path for info in infos if info.type is fs.FileType.File)


async def test_a_saga_is_staged_audited_published_and_undone(gated: GatedProject) -> None:
    gated.open()
    async with running_worker(gated.project) as client:
        saga = f"day-{uuid.uuid4()}"
        await client.start("day", {}, id=saga)
        await completed_exactly(client, gated, saga)
        data = [name for name in objects("warehouse") if name.endswith(".parquet")]
        assert len(data) == 4, "one file of each task, and none below the stage is part of the table"
        await clear_stage(gated.day_close)
        assert [name for name in objects("stage") if name.endswith(".parquet")] == []
        await undo(client, gated, saga)


async def test_a_driver_that_is_killed_while_it_writes_is_replaced(gated: GatedProject) -> None:
    async with running_worker(gated.project) as client:
        saga = f"day-{uuid.uuid4()}"
        await client.start("day", {}, id=saga)
        await gated.reach_the_middle()
        assert objects("stage"), "two tasks have written"
        runner = await until(lambda: runner_of(gated.day_close))
        runner.kill()
        await error_of(client, saga, "the Spark runner was killed by SIGKILL")
        gated.open()
        await completed_exactly(client, gated, saga)
        await clear_stage(gated.day_close)
        assert [name for name in objects("stage") if name.endswith(".parquet")] == [], "nor files of the first attempt"
        await undo(client, gated, saga)
