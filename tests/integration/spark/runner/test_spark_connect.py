"""Jobs on a real Spark Connect server: staged, counted, audited, cancelled by the same code as in a local session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from saga_spark.job_errors import JobFailed
from saga_spark.runner.runner_client import RunnerClient
from saga_spark.settings import SparkSettings
from sagas.errors import UsageError
from tests.helpers.spark_servers import ConnectProcess
from tests.integration.spark.staging.test_staging import JOBS, NUMBERS_FILE, QUICK, Environment, rows_of

pytestmark = pytest.mark.slow
pytest.importorskip("grpc_status")

TIMEOUT = 180.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server from the jars that PySpark brings."""
    with ConnectProcess(tmp_path_factory.mktemp("connect"), QUICK) as process:
        yield process.url


@pytest.fixture(scope="module")
async def env(server: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Environment]:
    root = tmp_path_factory.mktemp("far")
    (root / "jobs").mkdir()
    (root / "jobs" / "staged_jobs.py").write_text(JOBS)
    pq.write_table(pa.table({"n": [1, 2, 3]}), root / NUMBERS_FILE)
    settings = SparkSettings(root=root, remote=server, python_path=(str(root / "jobs"),))
    runner = RunnerClient(settings)
    yield Environment(runner, root)
    await runner.close()


async def test_the_same_rows_are_staged_and_counted_as_in_a_local_session(env: Environment) -> None:
    audit = [{"not_null": ["kind"], "severity": "warn"}, {"sum": {"column": "half", "equals": 1}}]
    remote_manifest = await env.stage_output("staged_jobs:numbers", audit=audit)
    assert sorted(row["id"] for row in rows_of(remote_manifest)) == list(range(10))
    assert remote_manifest.counts == {"1:not_null/kind": 5, "2:sum": "22.50"}
    local = RunnerClient(SparkSettings(root=env.root, conf=QUICK, python_path=(str(env.root / "jobs"),)))
    try:
        here = Environment(local, env.root, numbers=env.numbers)
        local_manifest = await here.stage_output("staged_jobs:numbers", audit=audit)
    finally:
        await local.close()
    assert (remote_manifest.hash, remote_manifest.columns, remote_manifest.schema, remote_manifest.counts) == (
        local_manifest.hash,
        local_manifest.columns,
        local_manifest.schema,
        local_manifest.counts,
    )


async def test_inputs_sql_and_several_outputs(env: Environment) -> None:
    outputs = {name: {"parquet": name, "mode": "append"} for name in ("facts", "rejects")}
    stage = await env.stage("staged_jobs:two", outputs=outputs)
    assert {name: [row["n"] for row in rows_of(manifest)] for name, manifest in stage.items()} == {
        "facts": [2, 3],
        "rejects": [1],
    }
    summed = await env.stage_output({"sql": "select sum(n) as total from numbers"})
    assert rows_of(summed) == [{"total": 6}]


async def test_errors_are_one_line(env: Environment) -> None:
    with pytest.raises(JobFailed, match="there are no orders"):
        await env.stage_output("staged_jobs:raises")
    with pytest.raises(UsageError, match="`m` cannot be resolved"):
        await env.stage_output("staged_jobs:wrong_column")


async def test_an_audit_reads_the_staged_files(env: Environment) -> None:
    manifest = await env.stage_output("staged_jobs:numbers")
    arguments = {
        "job": "staged_jobs:numbers",
        "outputs": {"output": {"parquet": "out", "mode": "append"}},
        "audit": [{"sql": "select * from output where id > 7"}, {"unique": ["id"]}],
    }
    report = await env.runner.run(
        "audit",
        {
            "arguments": arguments,
            "manifests": {"output": manifest.to_json()},
            "inputs": {},
            "previous_rows": {"output": None},
            "sink_problems": [],
            "report_folder": (env.root / "report").as_uri(),
            "saga": {"id": "s1", "step": "facts"},
        },
        tag="audit",
    )
    assert report["verdict"] == "fail"
    assert [check["status"] for check in report["checks"]] == ["fail", "pass"]


async def test_a_cancelled_job_stops_on_the_server(env: Environment) -> None:
    running = asyncio.create_task(env.stage_output("staged_jobs:endless"))
    async with asyncio.timeout(TIMEOUT):
        while not any(report.get("tasks") for report in env.progress):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    process = env.runner.process
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await env.stage_output({"sql": "select 1 as one"})).rows == 1
    assert env.runner.process is process, "it was cancelled, not killed"
