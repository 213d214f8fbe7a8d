"""The JVM of a runner maps the archive of Spark's classes into memory, and ignores one that does not match."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from saga_spark.runner import class_data_sharing
from saga_spark.runner.java import QUIET_OPTIONS, require_java, spark_class_archive
from saga_spark.runner.spark_session import classic_spark_conf
from saga_spark.settings import SparkSettings


@pytest.fixture(scope="module")
def archive() -> Path:
    """`make setup` has made it, before any Spark of these tests was started."""
    file = spark_class_archive()
    if not file.exists():
        pytest.skip("there is no archive of Spark's classes: python -m saga_spark.runner.class_data_sharing")
    return file


def test_driver_options_include_the_archive_and_the_project_options(archive: Path, tmp_path: Path) -> None:
    conf = classic_spark_conf(SparkSettings(root=tmp_path, conf={"spark.driver.extraJavaOptions": "-Dours=1"}))
    options = conf["spark.driver.extraJavaOptions"]
    assert f'"-XX:SharedArchiveFile={archive}"' in options
    assert options.endswith("-Dours=1")


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has mapped is seen in /proc")
def test_the_archive_is_mapped(archive: Path, spark: SparkSession) -> None:
    java: Any = spark._jvm
    pid = java.java.lang.ProcessHandle.current().pid()
    assert str(archive.resolve()) in Path(f"/proc/{pid}/maps").read_text()


def test_java_ignores_a_mismatched_archive(tmp_path: Path) -> None:
    other = tmp_path / "other.jsa"
    other.write_bytes(b"of another Java")
    argv = [require_java(), f"-XX:SharedArchiveFile={other}", *QUIET_OPTIONS, "-version"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "[cds]" not in done.stdout + done.stderr


def test_an_unwritable_folder_gives_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "share").write_text("a file, where a folder should be")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["archiving"])
    assert class_data_sharing.main() == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("the class archive of Spark was not created, so Spark starts more slowly: ")
