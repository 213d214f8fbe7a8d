"""Files that Spark tasks have written are counted while others are still written, and never confused."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as T

from saga_spark.manifest import StagedFile
from saga_spark.staging import write_metrics as module
from saga_spark.staging.parquet_metrics import count_files
from saga_spark.staging.write_metrics import BackgroundCount, count_in_background

SCHEMA = T.StructType([T.StructField("n", T.LongType()), T.StructField("word", T.StringType())])


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were read, in order."""
    seen: list[str] = []

    def noted(files: list[StagedFile], *rest: object, **more: object) -> object:
        seen.extend(Path(file.uri).name for file in files)
        return count_files(files, *rest, **more)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(module, "count_files", noted)
    return seen


def write(path: Path, start: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": range(start, start + 1000), "word": ["a", "b"] * 500}), path)
    return path


def staged(*paths: Path) -> list[StagedFile]:
    return [StagedFile(path.as_uri(), path.stat().st_size, 1000) for path in paths]


def test_each_written_file_is_read_once(tmp_path: Path, reads: list[str]) -> None:
    early = write(tmp_path / "_temporary/0/task_1/day=1/part-0.parquet", 0)
    unfinished = write(tmp_path / "_temporary/0/_temporary/attempt_2/part-1.parquet", 1000)
    ahead = BackgroundCount(SCHEMA)
    ahead.count_new_files(tmp_path, threading.Event())
    assert reads == ["part-0.parquet"], "what is being written is left alone"
    files = staged(early.rename(tmp_path / "part-0.parquet"), unfinished.rename(tmp_path / "part-1.parquet"))
    count = ahead.count(files)
    assert reads == ["part-0.parquet", "part-1.parquet"]
    assert count == count_files(files, SCHEMA)
    assert count is not None
    assert (count.fingerprint.rows, count.sums) == (2000, {"n": sum(range(2000))})


def test_a_rewritten_file_is_read_again(tmp_path: Path) -> None:
    first = write(tmp_path / "_temporary/0/task_1/part-0.parquet", 0)
    ahead = BackgroundCount(SCHEMA)
    ahead.count_new_files(tmp_path, threading.Event())
    first.unlink()
    files = staged(write(tmp_path / "part-0.parquet", 5000))
    assert ahead.count(files) == count_files(files, SCHEMA)


def test_polling_ends_with_the_write(tmp_path: Path, reads: list[str]) -> None:
    with count_in_background(tmp_path.as_uri(), SCHEMA) as ahead:
        early = write(tmp_path / "elsewhere.parquet", 0)
        task = tmp_path / "_temporary/0/task_1"
        task.mkdir(parents=True)
        moved = early.rename(task / "part-0.parquet")
        until = time.monotonic() + 30
        while not reads and time.monotonic() < until:
            time.sleep(0.01)
    threads = [thread.name for thread in threading.enumerate()]
    assert "count-ahead" not in threads
    files = staged(moved.rename(tmp_path / "part-0.parquet"))
    assert ahead.count(files) == count_files(files, SCHEMA)
    assert reads == ["part-0.parquet"]


def test_files_moved_during_counting_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        write(tmp_path / f"_temporary/0/task_{number}/day=1/part-{number}.parquet", number)
    seen: list[str] = []

    def the_job_ends(files: list[StagedFile], *rest: object, **more: object) -> object:
        seen.append(Path(files[0].uri).name)
        for task in (tmp_path / "_temporary/0").glob("task_*"):
            task.rename(tmp_path / task.name)
        return count_files(files, *rest, **more)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(module, "count_files", the_job_ends)
    BackgroundCount(SCHEMA).count_new_files(tmp_path, threading.Event())
    assert len(seen) == 1
