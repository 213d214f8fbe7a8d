"""Jobs are run and their outputs staged by a real runner with a real Spark: what is written, what is counted, the
error messages, and that a cancel stops it. One warm runner serves all tests."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from saga_spark.job_errors import JobFailed
from saga_spark.manifest import Manifest
from saga_spark.runner.runner_client import RunnerClient
from saga_spark.settings import SparkSettings
from saga_spark.storage import file_size, local_path
from sagas.errors import Unavailable, UsageError

TIMEOUT = 300.0
SECRET = "a=b #4711"
QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For a handful of rows: what would make large queries fast takes longer here than it saves."""

NUMBERS_FILE = "numbers [0]{1,2}*.parquet"
"""In the project of an :class:`Environment`: its name is a pattern for Spark unless it is escaped."""

JOBS = """
from __future__ import annotations

import time

from pyspark.sql import functions as F


def numbers(spark, inputs, n=10):
    print("a print breaks nothing")
    return spark.range(n).select(
        "id",
        (F.col("id") / 2).cast("decimal(12,2)").alias("half"),
        F.when(F.col("id") % 2 == 0, "even").alias("kind"),
        F.lit(9223372036854775807).alias("large"),
        F.to_timestamp(F.lit("2026-01-02 03:04:05.678901")).alias("at"),
    )


def two(spark, inputs):
    rows = inputs.numbers.where("n > 1")
    return {"facts": rows, "rejects": inputs["numbers"].where("n <= 1")}


def shuffled(spark, inputs, parts=3):
    return numbers(spark, inputs).repartition(parts, "id")


def endless(spark, inputs):
    # The tasks of the short range end at once: so there is progress to see.
    ids = spark.range(10).union(spark.range(10**13))
    return ids.groupBy((F.col("id") % 7).alias("k")).count()


def gaps(spark, inputs):
    even = F.col("id") % 2 == 0
    return spark.range(10).select(
        F.when(even, "x").alias("long"),
        F.when(even, F.struct("id")).alias("pair"),
        F.when(even, F.col("id").cast("int")).alias("pair.id"),
    )


def asleep(spark, inputs, mark):
    open(mark, "w").close()
    time.sleep(3600)


def raises(spark, inputs):
    raise ValueError("there are no orders")


def wrong_column(spark, inputs):
    return inputs.numbers.select("m")


@F.udf("int")
def picky(value):
    raise ValueError(f"cannot take {value}")


def in_a_worker(spark, inputs):
    return spark.range(2).select(picky("id").alias("x"))


def wide(spark, inputs):
    return spark.range(2_000_000).select(F.uuid().alias("a"), F.uuid().alias("b"))


def no_frame(spark, inputs):
    return [1, 2]


@F.udf("long")
def double(number):
    return number * 2


def doubled(spark, inputs):
    return spark.range(3).select(double("id").alias("n"))
"""

SHADOWED = ("psutil", "pyspark", "saga_spark", "msgspec", "numbers", "socket", "select", "traceback", "json", "inspect")
INTRUDER = "open({marker!r}, 'a').write(__name__ + ' ' + open('/proc/self/cmdline').read() + chr(10))\n"
"""A module in the folder in which the runner is started: it notes that it is imported."""

PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession
from program_names import FACTOR
files = json.loads(os.environ["SAGA_INPUTS"])["numbers"]["files"]
factor = json.loads(os.environ["SAGA_PARAMS"])[FACTOR]
if sys.argv[1] == "fail":
    raise RuntimeError("the program does not like this day")
spark = SparkSession.builder.getOrCreate()
spark.read.parquet(*files).selectExpr(f"n * {factor} as n").write.mode("append").parquet(os.environ["SAGA_STAGE"])
"""


@dataclass
class Environment:
    runner: RunnerClient
    root: Path
    progress: list[dict[str, Any]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    first: Manifest | None = None

    @property
    def inputs(self) -> dict[str, Any]:
        frozen = {"format": "parquet", "files": [(self.root / NUMBERS_FILE).as_uri()], "rows": 3}
        return {"numbers": {**frozen, "fingerprint": {"kind": "test"}}}

    def folder(self, number: int, output: str) -> Path:
        return self.root / "stage" / "with [a-z]{1,2} * space" / str(number) / output

    async def stage(self, job: Any, *, stage: Path | None = None, **arguments: Any) -> dict[str, Manifest]:
        outputs = arguments.pop("outputs", {"output": {"parquet": "out", "mode": "append"}})
        number = next(self.numbers)
        places = {name: (stage / name if stage else self.folder(number, name)) for name in outputs}
        targets = {
            name: {"folder": place.as_uri(), "key": "k", "generation": 1, "epoch": 2} for name, place in places.items()
        }
        request = {"arguments": {"job": job, "outputs": outputs, **arguments}, "inputs": self.inputs}
        try:
            answer = await self.runner.run(
                "stage", {**request, "targets": targets}, tag=f"test-{number}", on_progress=self.progress.append
            )
        except (JobFailed, UsageError):
            assert not any(place.exists() for place in places.values()), "nothing is left"
            raise
        return {name: Manifest.from_json(manifest) for name, manifest in answer["manifests"].items()}

    async def stage_output(self, job: Any, **arguments: Any) -> Manifest:
        return (await self.stage(job, **arguments))["output"]


def rows_of(manifest: Manifest) -> list[dict[str, Any]]:
    return [row for file in manifest.files for row in pq.ParquetFile(local_path(file.uri)).read().to_pylist()]


async def run(*argv: str | Path, env: dict[str, str] | None = None) -> str:
    """The error output of a program; empty when it succeeded."""
    child = await asyncio.create_subprocess_exec(*argv, env=env, stderr=asyncio.subprocess.PIPE)
    _, printed = await child.communicate()
    return printed.decode() or "it failed" if child.returncode else ""


@pytest.fixture(scope="module")
async def staging(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Environment]:
    import pyarrow as pa

    root = tmp_path_factory.mktemp("staging")
    (root / "jobs").mkdir()
    (root / "jobs" / "staged_jobs.py").write_text(JOBS)
    (root / "program.py").write_text(PROGRAM)
    (root / "program_names.py").write_text("FACTOR = 'factor'")
    pq.write_table(pa.table({"n": [1, 2, 3]}), root / NUMBERS_FILE)
    conf = {**QUICK, "spark.test.word": SECRET, "spark.ui.enabled": "true"}
    runner = RunnerClient(SparkSettings(root=root, conf=conf, python_path=(str(root / "jobs"),)))
    environment = Environment(runner, root)
    elsewhere = root / "elsewhere"
    elsewhere.mkdir()
    for module in SHADOWED:
        (elsewhere / f"{module}.py").write_text(INTRUDER.format(marker=str(root / "imported")))
    with contextlib.chdir(elsewhere):
        environment.first = await environment.stage_output("staged_jobs:doubled")
    yield environment
    await runner.close()


def test_the_folder_in_which_the_runner_was_started_is_not_searched(staging: Environment) -> None:
    """Neither by it nor by Spark's Python workers."""
    imported = staging.root / "imported"
    assert not imported.exists(), imported.read_text()
    assert staging.first is not None
    assert [row["n"] for row in rows_of(staging.first)] == [0, 2, 4]


@pytest.mark.slow
async def test_secrets_of_the_settings_reach_spark_and_are_on_no_command_line(staging: Environment) -> None:
    manifest = await staging.stage_output({"sql": "select '${spark.test.word}' as word"})
    assert [row["word"] for row in rows_of(manifest)] == [SECRET]
    process = staging.runner.process
    assert process is not None
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    lines = [" ".join(path.cmdline()) for path in tree if path.status() != psutil.STATUS_ZOMBIE]
    assert any("java" in line for line in lines)
    assert not [line for line in lines if "4711" in line]


async def test_rows_are_written_and_counted_in_one_pass(staging: Environment) -> None:
    audit = [
        {"not_null": ["kind"], "severity": "warn"},
        {"sum": {"column": "half", "equals": 1}},
        {"expression": "id < 8"},
    ]
    manifest = await staging.stage_output("staged_jobs:numbers", audit=audit)
    rows = rows_of(manifest)
    assert sorted(row["id"] for row in rows) == list(range(10))
    assert manifest.rows == sum(file.rows for file in manifest.files) == 10
    assert [file_size(file.uri) for file in manifest.files] == [file.bytes for file in manifest.files]
    assert {column.name: (column.type, column.nulls, column.sum) for column in manifest.columns} == {
        "id": ("bigint", 0, "45"),
        "half": ("decimal(12,2)", 0, "22.50"),
        "kind": ("string", 5, None),
        "large": ("bigint", 0, str(10 * (2**63 - 1))),
        "at": ("timestamp", 0, None),
    }
    assert manifest.counts == {"1:not_null/kind": 5, "2:sum": "22.50", "3:expression": 2}
    assert (manifest.key, manifest.generation, manifest.epoch, manifest.inputs) == (
        "k", 1, 2, {"numbers": {"kind": "test"}},
    )  # fmt: skip
    assert {str(row["at"]) for row in rows} == {"2026-01-02 03:04:05.678901+00:00"}
    again = await staging.stage_output("staged_jobs:shuffled")
    assert (again.hash, again.sha == manifest.sha) == (manifest.hash, False), "the hash does not see the order"


async def test_nulls_are_counted_where_footers_lack_them(staging: Environment) -> None:
    audit = [{"not_null": ["long", "pair"], "severity": "warn"}, {"not_null": ["pair.id"], "where": "long is null"}]
    silent = {"parquet.column.statistics.enabled": "false"}
    manifest = await staging.stage_output("staged_jobs:gaps", audit=audit, conf=silent)
    footer = pq.read_metadata(local_path(manifest.files[0].uri))
    assert footer.row_group(0).column(0).statistics is None
    assert [(column.name, column.nulls, column.sum) for column in manifest.columns] == [
        ("long", 5, None),
        ("pair", 5, None),
        ("pair.id", 5, "20"),
    ]
    assert manifest.counts == {"1:not_null/long": 5, "1:not_null/pair": 5, "2:not_null/pair.id": 5}


async def test_a_check_uses_the_session_configuration(staging: Environment) -> None:
    with pytest.raises(UsageError, match=r"[Dd]ivision by zero|DIVIDE_BY_ZERO"):
        await staging.stage_output("staged_jobs:numbers", audit=[{"expression": "1 / id >= 0"}])


@pytest.mark.slow
async def test_each_file_holds_one_partition_and_the_column_stays_in_it(staging: Environment) -> None:
    output = {"output": {"parquet": "out", "mode": "append", "partition_by": ["kind"]}}
    manifest = await staging.stage_output("staged_jobs:numbers", outputs=output)
    assert manifest.rows == sum(file.rows for file in manifest.files) == 10
    assert len(manifest.files) >= 2
    for file in manifest.files:
        alone = replace(manifest, files=(file,))
        assert len({row["kind"] for row in rows_of(alone)}) == 1
    assert [column.name for column in manifest.columns] == ["id", "half", "kind", "large", "at"]
    empty = await staging.stage_output("staged_jobs:numbers", outputs=output, params={"n": 0})
    assert (empty.rows, [file.rows for file in empty.files], empty.columns[0].sum) == (0, [0], "0")
    with pytest.raises(UsageError, match="partitioned by kin, but has no such column; did you mean kind"):
        await staging.stage_output(
            "staged_jobs:numbers", outputs={"output": {"parquet": "out", "partition_by": ["kin"]}}
        )


async def test_sql_with_parameters_and_a_function_with_two_outputs(staging: Environment) -> None:
    manifest = await staging.stage_output(
        {"sql": "select n, :day as day from numbers where n < :max"}, params={"day": "x", "max": 3}
    )
    assert sorted(row["n"] for row in rows_of(manifest)) == [1, 2]
    both = await staging.stage("staged_jobs:two", outputs={"facts": {"parquet": "f"}, "rejects": {"parquet": "r"}})
    assert {name: manifest.rows for name, manifest in both.items()} == {"facts": 2, "rejects": 1}


@pytest.mark.sampled(keep=3)
@pytest.mark.parametrize(
    ("job", "place", "message"),
    [
        (
            "staged_jobs:raises",
            'raise ValueError("there',
            r"^the job staged_jobs:raises failed: ValueError: there are no orders "
            r'\(staged_jobs.py, line LINE: raise ValueError\("there are no orders"\)\)$',
        ),
        (
            "staged_jobs:wrong_column",
            'select("m")',
            r"\[UNRESOLVED_COLUMN\.WITH_SUGGESTION\] .*`m` cannot be resolved.*staged_jobs.py, line LINE: return",
        ),
        (
            "staged_jobs:in_a_worker",
            "cannot take",
            r"failed: ValueError: cannot take [01] \(staged_jobs.py, line LINE: raise",
        ),
        (
            "staged_jobs:no_frame",
            "",
            r"^the job staged_jobs:no_frame returned a list for the output output; return a Spark DataFrame",
        ),
        ({"sql": "select nothing from numbers"}, "", r"^the SQL of the job failed: \[UNRESOLVED_COLUMN[^\n]*$"),
        ({"sql": "selec"}, "", r"^the SQL of the job failed: \[PARSE_SYNTAX_ERROR\] Syntax error[^\n]*$"),
        (
            {"sql": "select (select id from range(2)) as id"},
            "",
            r"^the SQL of the job failed: \[SCALAR_SUBQUERY_TOO_MANY",
        ),
    ],
)
async def test_job_errors_are_one_line(staging: Environment, job: Any, place: str, message: str) -> None:
    line = JOBS[: JOBS.index(place)].count("\n") + 1
    with pytest.raises((JobFailed, UsageError), match=message.replace("LINE", str(line))) as caught:
        await staging.stage_output(job)
    assert isinstance(caught.value, JobFailed) == ("ValueError" in message), "what the job raised is retried"
    assert "\n" not in caught.value.message
    assert "Traceback" not in caught.value.message
    assert "Project" not in caught.value.message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"job": "staged_jobs:number"}, "staged_jobs has no function number; did you mean numbers"),
        ({"job": "no_jobs:number"}, "the module no_jobs of the job no_jobs:number does not exist"),
        ({"job": "staged_jobs:numbers", "params": {"m": 1}}, "does not accept the `params` of the step: got an unexp"),
        ({"job": "staged_jobs:numbers", "conf": {"spark.executor.memory": "1g"}}, "applies to the whole Spark session"),
        ({"job": {"main": "no_program.py"}}, "the program no_program.py does not exist in the project"),
    ],
)
async def test_step_errors_are_one_line(staging: Environment, arguments: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        await staging.stage_output(**arguments)


async def test_an_output_must_be_there(staging: Environment) -> None:
    with pytest.raises(UsageError, match=r"returned no output reject; did you mean rejects\?"):
        await staging.stage("staged_jobs:two", outputs={"facts": {"parquet": "f"}, "reject": {"parquet": "r"}})


@pytest.mark.slow
async def test_a_full_disk_and_an_unwritable_stage_area(staging: Environment, small_disk: Path) -> None:
    blocked = staging.root / "a file"
    blocked.write_text("")
    with pytest.raises(JobFailed, match=r"^the stage area is not writable: "):
        await staging.stage_output("staged_jobs:numbers", stage=blocked)
    with pytest.raises(JobFailed, match=r"^the job staged_jobs:wide could not write: the disk is full; free some"):
        await staging.stage_output("staged_jobs:wide", stage=small_disk)


async def test_an_empty_output_is_an_output_unless_the_audit_wants_rows(staging: Environment) -> None:
    audit = [{"rows": {"min": 1}}]
    manifest = await staging.stage_output("staged_jobs:numbers", params={"n": 0}, audit=audit)
    assert (manifest.rows, sum(file.rows for file in manifest.files)) == (0, 0)
    output = {"output": {"parquet": "out", "mode": "append"}}
    request = {
        "arguments": {"job": "staged_jobs:numbers", "outputs": output, "audit": audit},
        "manifests": {"output": manifest.to_json()},
        "inputs": {},
        "previous_rows": {},
        "report_folder": (staging.root / "report").as_uri(),
        "saga": {"id": "s", "step": "facts"},
    }
    result = await staging.runner.run("audit", request, tag="audit")
    assert result["verdict"] == "fail"
    assert [check["message"] for check in result["checks"]] == ["at least 1 row, found 0"]


async def test_a_cancel_stops_only_its_own_executors(staging: Environment) -> None:
    before = len(staging.progress)
    endless = asyncio.create_task(staging.stage_output("staged_jobs:endless"))
    async with asyncio.timeout(TIMEOUT):
        while not any(report.get("tasks_done") for report in staging.progress[before:]):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    starts = [report["starting"] for report in staging.progress if "starting" in report]
    assert starts[:4] == ["the Spark runner", None, "Spark", None]
    assert str(staging.progress[-1]["spark_ui"]).startswith("http://127.0.0.1:")
    other = asyncio.create_task(staging.stage_output("staged_jobs:numbers"))
    process = staging.runner.process
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless
    assert (await other).rows == 10
    assert staging.runner.process is process, "the session stays warm"
    assert process is not None
    assert process.lost_reason is None


@pytest.mark.slow
async def test_changed_job_sources_are_reloaded(staging: Environment) -> None:
    await staging.stage_output("staged_jobs:numbers")
    source = staging.root / "jobs" / "staged_jobs.py"
    source.write_text(JOBS.replace("def numbers(spark, inputs, n=10)", "def numbers(spark, inputs, n=4)"))
    os.utime(source, (time.time() + 5, time.time() + 5))
    old = staging.runner.process
    assert (await staging.stage_output("staged_jobs:numbers")).rows == 4
    assert staging.runner.process is not old


@pytest.mark.slow  # a cold start; that a lost runner is replaced is seen in test_runner_process.py each time
async def test_an_unstoppable_job_replaces_the_runner(staging: Environment) -> None:
    mark = staging.root / "asleep"
    asleep = asyncio.create_task(staging.stage_output("staged_jobs:asleep", params={"mark": str(mark)}))
    async with asyncio.timeout(TIMEOUT):
        while not mark.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    old = staging.runner.process
    assert old is not None
    asleep.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asleep
    assert "a cancelled job did not stop" in str(old.lost_reason)
    assert not psutil.pid_exists(old.pid)


@pytest.mark.slow
async def test_a_program_finds_its_inputs_and_its_stage_in_the_environment(staging: Environment) -> None:
    manifest = await staging.stage_output({"main": "program.py", "args": ["work"]}, params={"factor": 10})
    assert sorted(row["n"] for row in rows_of(manifest)) == [10, 20, 30]
    assert (manifest.rows, manifest.columns[0].sum) == (3, "60")
    with pytest.raises(
        JobFailed, match=r"^the program program.py ended with exit code 1: RuntimeError: the program does"
    ):
        await staging.stage_output({"main": "program.py", "args": ["fail"]}, params={"factor": 10})


async def test_without_java_or_pyspark_a_one_line_error_is_given(
    staging: Environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    settings = SparkSettings(root=tmp_path, python_path=(str(staging.root / "jobs"),))
    other = replace(staging, runner=RunnerClient(settings))
    try:
        with pytest.raises(UsageError, match=r"Spark needs Java 17 or newer: JAVA_HOME is .*, which has no bin/java"):
            await other.stage_output("staged_jobs:numbers")
    finally:
        await other.runner.close()
    program = (
        "import asyncio, importlib.util, sys\n"
        "from pathlib import Path\n"
        "sys.path[:] = [one for one in sys.path if 'site-packages' not in one] + [sys.argv[1]]\n"
        "from saga_spark.runner.runner_client import RunnerClient\n"
        "from saga_spark.settings import SparkSettings\n"
        "asyncio.run(RunnerClient(SparkSettings(root=Path(sys.argv[2]))).run('freeze', {}, tag='x'))\n"
    )
    packages = tmp_path / "packages"
    packages.mkdir()
    for package in next(Path(path) for path in sys.path if path.endswith("site-packages")).iterdir():
        if not package.name.startswith("pyspark"):
            (packages / package.name).symlink_to(package)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    printed = await run(sys.executable, "-c", program, packages, tmp_path, env=environment)
    assert "UsageError: Spark steps need PySpark, which is not installed\n" in printed
    shutil.rmtree(packages)


async def test_a_killed_jvm_costs_no_attempt(staging: Environment) -> None:
    """The last one here: the next job would start Spark again."""
    watched = replace(staging, progress=[])
    running = asyncio.create_task(watched.stage_output("staged_jobs:endless"))
    async with asyncio.timeout(TIMEOUT):
        while not any(report.get("tasks") for report in watched.progress):
            assert not running.done(), running
            await asyncio.sleep(0.1)
    assert watched.runner.process is not None
    children = psutil.Process(watched.runner.process.pid).children(recursive=True)
    java = [child for child in children if child.name() == "java"]
    assert java
    for jvm in java:
        jvm.kill()
    with pytest.raises(Unavailable, match=r"^the JVM of Spark ended with exit code -9"):
        await running
