"""Spark in the embedded stack: whether a runner is alive, a machine without Java, and what `saga doctor` checks."""

from __future__ import annotations

import json
import re
import socket
import sqlite3
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from saga_spark.runner.runner_client import RunnerClient
from saga_spark.settings import spark_settings
from saga_workers.doctor.spark_checks import check_spark
from saga_workers.worker.spark_support import spark_unavailable_reason
from sagas.settings import load_settings
from tests.integration.dev.conftest import Project

SPARK = '[connections.shop]\nschema = "schema.sql"\n[spark]\nledger = "shop"\n'


def write_saga(root: Path) -> None:
    (root / "definitions").mkdir()
    (root / "definitions" / "day.saga.yaml").write_text(
        'saga: day\nsteps:\n  - {id: facts, uses: spark, with: {sql: "select 1 as a", output: {parquet: out}}}\n'
    )


async def test_status_shows_whether_a_runner_is_alive(project: Project) -> None:
    assert project.status()["spark"] == {"state": "stopped", "pid": None}
    pq.write_table(pa.table({"n": [1]}), project.root / "numbers.parquet")
    (project.root / "saga.toml").write_text('[spark]\nwork = "elsewhere"\n', encoding="utf-8")
    runner = RunnerClient(spark_settings(load_settings(project.root, env={})))
    inputs = {"numbers": {"kind": "parquet", "values": {"parquet": "numbers.parquet"}}}
    try:
        await runner.run("freeze", {"inputs": inputs, "folder": "file:///nowhere", "known": {}}, tag="frozen")
        assert runner.process is not None
        reported = project.status()["spark"]
        assert reported == {"state": "running", "pid": runner.process.pid, "log": str(runner.process.log)}
        assert runner.process.log.parent == project.root / "elsewhere"
        assert "saga_spark.runner" in psutil.Process(reported["pid"]).cmdline()
        assert re.search(r"spark +running", project.saga("dev", "status"))
    finally:
        await runner.close()
    assert project.status()["spark"] == {"state": "stopped", "pid": None}


@pytest.mark.slow  # the second demo runs without Java
def test_without_java_the_rest_of_the_stack_works_and_doctor_names_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_saga(project.root)
    (project.root / "saga.toml").write_text(f'{SPARK}[catalogs.lake]\ntype = "sql"\n', encoding="utf-8")
    monkeypatch.setenv("JAVA_HOME", str(project.root / "no-java"))
    done = project.call("dev", "up", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Spark steps cannot run on this worker: Spark needs Java 17 or newer") == 1
    assert json.loads(done.stdout)["worker"]["state"] == "running"

    done = project.call("doctor", "--json")
    checks = {row["check"]: row for row in json.loads(done.stdout)}
    wrong = {name for name, check in checks.items() if check["ok"] is False}
    assert (done.returncode, wrong) == (1, {"java"}), checks
    assert {"spark packages", "spark ledger", "spark stage", "catalog lake", "connection shop"} <= checks.keys()


def settings_of(root: Path, text: str) -> Any:
    (root / "saga.toml").write_text(text, encoding="utf-8")
    return load_settings(root, env={})


async def findings(root: Path, text: str) -> dict[str, Any]:
    return {check.check: check for check in await check_spark(settings_of(root, text))}


async def test_doctor_checks_what_the_first_job_needs_without_side_effects(tmp_path: Path) -> None:
    catalog = tmp_path / "catalog.db"
    checks = await findings(
        tmp_path, f'{SPARK}[catalogs.lake]\ntype = "sql"\nuri = "sqlite:///{catalog}"\nwarehouse = "{tmp_path}"\n'
    )
    assert {name: check.message for name, check in checks.items() if not check.ok} == {}
    assert checks["catalog lake"].message == "it responds; its tables are created with the first publication"
    assert list((tmp_path / ".saga" / "spark" / "stage").iterdir()) == []
    with sqlite3.connect(catalog) as database:
        assert database.execute("select name from sqlite_master").fetchall() == []


async def test_doctor_reports_what_is_missing(tmp_path: Path) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    text = '[spark]\nstage = "saga.toml/stage"\n[catalogs.far]\ntype = "rest"\nuri = "http://127.0.0.1:1"\n'
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(tmp_path))
        checks = await findings(tmp_path, text)
    assert {name for name, check in checks.items() if not check.ok} == {
        "java",
        "spark ledger",
        "spark stage",
        "catalog far",
    }
    assert checks["java"].message == f"{old} is Java 11, but Spark needs 17 or newer"
    assert checks["spark stage"].message.endswith("cannot be written: Not a directory")
    assert checks["spark ledger"].help == 'ledger = "NAME" under [spark] in saga.toml'


def test_java_is_checked_only_where_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert spark_unavailable_reason(settings_of(tmp_path, "[connections.shop]\n")) is None
    assert spark_unavailable_reason(settings_of(tmp_path, '[spark]\nremote = "sc://host"\n')) is None
    write_saga(tmp_path)
    sentence = spark_unavailable_reason(settings_of(tmp_path, '[ledger]\nconnection = "shop"\n[connections.shop]\n'))
    assert sentence is not None
    assert sentence.startswith("Spark steps cannot run on this worker: ")


async def test_doctor_asks_the_master_of_a_standalone_cluster(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        url = f"spark://127.0.0.1:{master.getsockname()[1]}"
        checks = await findings(tmp_path, f'[spark]\nmaster = "{url}"\n')
        assert (checks["spark cluster"].ok, checks["spark cluster"].message) == (True, f"{url} accepts connections")
    checks = await findings(tmp_path, f'[spark]\nmaster = "{url}"\n')
    assert checks["spark cluster"].message.startswith("no master of Spark accepts connections (127.0.0.1:")
    assert "spark cluster" not in await findings(tmp_path, '[spark]\nmaster = "local[2]"\n')
