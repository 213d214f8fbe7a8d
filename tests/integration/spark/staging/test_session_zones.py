"""The time zone that a step sets for its job: everything that the engine evaluates itself stays in UTC."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from saga_spark.audit.audit_task import audit_outputs
from saga_spark.inputs.frozen_inputs import freeze_inputs
from saga_spark.job import job_execution
from saga_spark.job.job_spec import Job
from saga_spark.manifest import Manifest
from saga_spark.settings import SparkSettings
from saga_spark.staging.stage_task import stage_outputs
from saga_spark.staging.staging_attempt import inputs_to_freeze
from sagas.builtins.spark import SESSION_ZONE
from sagas.errors import UsageError
from tests.helpers.sampling import every_nth
from tests.helpers.small_spark import task_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOURS = [5, 6, 23]
TIMES = [dt.datetime(2026, 11, 1, hour, 30, tzinfo=dt.UTC) for hour in HOURS]
"""The repeated hour of New York twice, and an hour that is on the next day in Kolkata and in Chatham."""

AUDIT: list[dict[str, Any]] = [
    {"expression": "hour(at) in (5, 6, 23)"},
    {"expression": "cast(at as string) like '2026-11-01 %:30:00'"},
    {"expression": "at >= '2026-11-01 05:30:00' and at < '2026-11-02'"},
    {"expression": "wall >= at"},
    {"rows": {"equals": 1}, "where": "at = '2026-11-01 06:30:00'"},
    {"rows": {"equals": 1}, "where": {"at": "2026-11-01 06:30:00"}},
    {"sum": {"column": "n", "equals": 11}, "where": {"at": ["2026-11-01T01:30:00-04:00", "2026-11-01T06:30:00Z"]}},
    {"not_null": ["n"], "where": "hour(at) = 23"},
    {"accepted_values": {"column": "at", "values": ["2026-11-01 05:30:00", "2026-11-01T06:30Z", "2026-11-01 23:30"]}},
    {"unique": "at", "where": "day(at) = 1"},
    {"sql": "select * from output where day(at) <> 1 or at > timestamp'2026-11-01 23:30:00'"},
    {"relationships": {"column": "at", "to": {"parquet": "in/*.parquet"}, "field": "at"}},
    {"reconcile": {"with": {"parquet": "in/*.parquet"}, "key": "n", "compare": ["at"], "mapping": {"at": "wall"}}},
]


def run(spark: SparkSession, root: Path, zone: str, sql: str, **more: Any) -> tuple[Manifest, dict[str, Any]]:
    """Freeze, stage and audit as a step does; the manifest and the report."""
    arguments = {
        "job": {"sql": sql},
        "inputs": {"rows": {"parquet": "in/*.parquet", "where": {"at": ["2026-11-01 05:30", *map(str, TIMES[1:])]}}},
        "conf": {SESSION_ZONE: zone},
        "outputs": {"output": {"parquet": "out", "mode": "append"}},
        "audit": AUDIT,
        **more,
    }
    sources = inputs_to_freeze(Job.parse(arguments))
    settings = SparkSettings(root=root, stage=(root / "stage").as_uri())
    asked = {name: {"kind": source.kind, "values": dict(source.options)} for name, source in sources.items()}
    frozen = freeze_inputs(
        task_context(spark, settings), {"inputs": asked, "folder": f"{settings.stage}/{zone}/in", "known": {}}
    )["inputs"]
    target = {"folder": f"{settings.stage}/{zone}/out", "key": "k", "generation": 1, "epoch": 1}
    request = {"arguments": arguments, "inputs": {"rows": frozen["rows"]}, "targets": {"output": target}}
    staged = stage_outputs(task_context(spark, settings), request)["manifests"]
    audited = audit_outputs(
        task_context(spark, settings),
        {
            "arguments": arguments,
            "inputs": frozen,
            "manifests": staged,
            "previous_rows": {},
            "report_folder": f"{settings.stage}/{zone}/report",
            "saga": {"id": "s", "step": "facts"},
        },
    )
    return Manifest.from_json(staged["output"]), audited


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    walls = [at.replace(tzinfo=None) for at in TIMES]
    rows = {"n": [4, 7, 1], "at": pa.array(TIMES, pa.timestamp("us", "UTC")), "wall": walls}
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table(rows), tmp_path / "in" / "a.parquet")
    return tmp_path


def test_the_zone_of_a_step_is_that_of_its_job_only(spark: SparkSession, folder: Path) -> None:
    sql = "select n, at, wall, current_timezone() as zone, hour(at) as hour from rows"
    hours = {"UTC": [5, 6, 23], "Asia/Kolkata": [11, 12, 5], "America/New_York": [1, 1, 18],
             "Pacific/Chatham": [19, 20, 13]}  # fmt: skip
    for zone, expected in every_nth(2, hours.items()):
        audit = AUDIT if zone == "America/New_York" else AUDIT[:9]  # those that are counted in the write pass
        manifest, report = run(spark, folder, zone, sql, audit=audit)
        failed = [check for check in report["checks"] if check["status"] != "pass"]
        assert not failed, (zone, failed)
        [file] = manifest.files
        rows = pq.read_table(file.uri.removeprefix("file://")).to_pylist()
        assert [(row["at"], row["hour"], row["zone"]) for row in rows] == [
            (at, hour, zone) for at, hour in zip(TIMES, expected, strict=True)
        ]


@pytest.mark.slow
def test_violations_are_shown_as_they_were_counted(spark: SparkSession, folder: Path) -> None:
    """Properties of the step, such as ANSI mode, hold for the shown rows as well."""
    audit = [{"expression": "hour(at) <> 23"}, {"expression": "cast(note as int) > 0"}, {"sql": "select * from output"
              " where cast(note as int) > 0"}]  # fmt: skip
    conf = {SESSION_ZONE: "America/New_York", "spark.sql.ansi.enabled": False}
    _, report = run(spark, folder, "x", "select at, if(n = 1, '-1', 'x') as note from rows", audit=audit, conf=conf)
    assert [check["status"] for check in report["checks"]] == ["fail", "fail", "pass"]
    assert [[row["at"] for row in check["samples"]] for check in report["checks"][:2]] == [
        ["2026-11-01T23:30:00.000Z"],
        ["2026-11-01T23:30:00.000Z"],
    ]


def test_what_staged_files_rely_on_stays(spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_execution, "_modification_times", {})  # the module is deleted after this test
    name = "spark.sql.parquet.outputTimestampType"
    with pytest.raises(UsageError, match=f"conf: {name} must stay TIMESTAMP_MICROS, because staged files rely on it"):
        run(spark, folder, "UTC", "select * from rows", conf={name: "INT96"})
    (folder / "zone_jobs.py").write_text(
        f"def rows(spark, inputs):\n    spark.conf.set('{name}', 'INT96')\n"
        "    spark.conf.set('spark.sql.parquet.datetimeRebaseModeInWrite', 'LEGACY')\n"
        "    return spark.sql(\"select timestamp'1000-01-01 00:00:00Z' as at, date'1000-01-01' as day, 1 as n\")\n"
    )
    job = {"job": "zone_jobs:rows", "audit": [{"rows": {"equals": 1}}]}
    settings = SparkSettings(root=folder, stage=(folder / "stage").as_uri(), python_path=(str(folder),))
    request = {
        "arguments": {**job, "outputs": {"output": {"parquet": "out", "mode": "append"}}},
        "inputs": {},
        "targets": {"output": {"folder": f"{settings.stage}/old", "key": "k", "generation": 1, "epoch": 1}},
    }
    [file] = stage_outputs(task_context(spark, settings), request)["manifests"]["output"]["files"]
    rows = pq.read_table(file["uri"].removeprefix("file://"))
    assert rows.schema.field("at").type == pa.timestamp("us", "UTC")
    assert rows.to_pylist() == [{"at": dt.datetime(1000, 1, 1, tzinfo=dt.UTC), "day": dt.date(1000, 1, 1), "n": 1}]
