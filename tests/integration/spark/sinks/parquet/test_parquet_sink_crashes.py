"""Plain Parquet with a pointer: killed and frozen publishers, two concurrent ones, and a polling reader."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyarrow import dataset

from saga_spark.settings import SparkSettings
from saga_spark.sinks.parquet.parquet_sink import ParquetSink
from saga_spark.sinks.sink import CommitConflict, Publication
from sagas import read_pointer
from tests.integration.spark.staged_outputs import Publisher, stage

OLD = [{"id": 1, "name": "old"}, {"id": 2, "name": "old"}]
NEW = [{"id": 1, "name": "new"}, {"id": 2, "name": "new"}, {"id": 3, "name": "new"}]
PUBLISH = "sink.publish([publication], state, together=False)"
REVERT = "sink.revert([publication], together=False)"
PLACE = "sink.prepare(publication)"
SWAP = "matches=lambda source, target: str(target).endswith('_current.json')"


@pytest.fixture
def settings(tmp_path: Path) -> SparkSettings:
    return SparkSettings(root=tmp_path, stage=(tmp_path / "stage").as_uri())


@pytest.fixture
def sink(settings: SparkSettings) -> ParquetSink:
    return ParquetSink(settings)


@pytest.fixture
def ours(settings: SparkSettings, sink: ParquetSink) -> Publication:
    """An overwrite that is placed, above an older publication."""
    old = stage(settings, {"parquet": "out"}, OLD, saga="old")
    sink.prepare(old)
    sink.publish([old], sink.read_state([old]), together=False)
    publication = stage(settings, {"parquet": "out", "mode": "overwrite"}, NEW, files=2)
    sink.prepare(publication)
    return publication


def rows(settings: SparkSettings) -> list[dict[str, Any]]:
    files = read_pointer(str(settings.root / "out"))
    return dataset.dataset(files).to_table().sort_by("id").to_pylist() if files else []


def leftover_files(settings: SparkSettings) -> list[str]:
    return [path.name for path in (settings.root / "out").rglob(".*")]


POINTS = {
    "before the version is kept": ("at(os, 'replace', 'before')", OLD, NEW),
    "before the swap": (f"at(os, 'replace', 'before', {SWAP})", OLD, NEW),
    "after the swap": (f"at(os, 'replace', 'after', {SWAP})", NEW, OLD),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_publisher_is_killed(settings: SparkSettings, sink: ParquetSink, ours: Publication, point: str) -> None:
    arm, expected, _ = POINTS[point]
    code, output = Publisher(settings, ours, sink.read_state([ours]), arm, PUBLISH).outcome()
    assert code == -9, output
    assert rows(settings) == expected
    again = sink.publish([ours], sink.read_state([ours]), together=False)[0]
    assert again.adopted == (expected == NEW)
    assert rows(settings) == NEW
    sink.revert([ours], together=False)
    assert rows(settings) == OLD


@pytest.mark.parametrize("point", ["before the swap", "after the swap"])
def test_an_undo_is_killed(settings: SparkSettings, sink: ParquetSink, ours: Publication, point: str) -> None:
    sink.publish([ours], sink.read_state([ours]), together=False)
    arm, _, expected = POINTS[point]
    code, output = Publisher(settings, ours, None, arm, REVERT).outcome()
    assert code == -9, output
    assert rows(settings) == (NEW if point == "before the swap" else expected)
    sink.revert([ours], together=False)
    assert rows(settings) == OLD


@pytest.mark.parametrize(
    "arm", ["at(os, 'link', 'after')", "at(Path, 'rename', 'before')", "at(Path, 'rename', 'after')"]
)
def test_a_preparing_process_is_killed(settings: SparkSettings, sink: ParquetSink, arm: str) -> None:
    publication = stage(settings, {"parquet": "out"}, NEW, files=2)
    code, output = Publisher(settings, publication, None, arm, PLACE).outcome()
    assert code == -9, output
    sink.prepare(publication)
    sink.publish([publication], sink.read_state([publication]), together=False)
    assert rows(settings) == NEW
    sink.revert([publication], together=False)
    sink.clean_up(publication)
    assert leftover_files(settings) == []
    assert list((settings.root / "out" / "_data").iterdir()) == []


def test_a_frozen_publisher_fails_after_the_undo(settings: SparkSettings, sink: ParquetSink, ours: Publication) -> None:
    publisher = Publisher(
        settings, ours, sink.read_state([ours]), "at(type(sink), 'publish', 'before', signal.SIGSTOP)", PUBLISH
    )
    publisher.frozen()
    sink.revert([ours], together=False)
    publisher.thaw()
    code, output = publisher.outcome()
    assert (code, output.split(":")[0]) == (0, "CommitConflict")
    assert rows(settings) == OLD


def test_a_publisher_frozen_with_the_lock_delays_the_undo_and_is_then_reverted(
    settings: SparkSettings, sink: ParquetSink, ours: Publication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saga_spark.sinks.parquet.parquet_pointer.LOCK_TIMEOUT", 0.2)
    arm = f"at(os, 'replace', 'before', signal.SIGSTOP, {SWAP})"
    publisher = Publisher(settings, ours, sink.read_state([ours]), arm, PUBLISH)
    publisher.frozen()
    with pytest.raises(CommitConflict, match="held by another"):
        sink.revert([ours], together=False)
    assert rows(settings) == OLD
    publisher.thaw()
    assert publisher.outcome() == (0, "done\n")
    monkeypatch.undo()
    sink.revert([ours], together=False)
    assert rows(settings) == OLD


def test_two_concurrent_publishers_publish_once(settings: SparkSettings, sink: ParquetSink, ours: Publication) -> None:
    state = sink.read_state([ours])
    publishers = [Publisher(settings, ours, state, "", PUBLISH) for _ in range(2)]
    assert sorted(publisher.outcome() for publisher in publishers) == [(0, "adopted\n"), (0, "done\n")]
    assert rows(settings) == NEW


def test_a_reader_never_sees_a_mix(settings: SparkSettings, sink: ParquetSink, ours: Publication) -> None:
    """Publish and revert until the reader has looked several times."""
    over = threading.Event()
    seen: list[list[dict[str, Any]]] = []

    def look() -> None:
        while not over.is_set():
            seen.append(rows(settings))

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(look)
        try:
            for _ in range(100):
                publish_and_take_back(settings, sink)
                if len(seen) > 5:
                    break
        finally:
            over.set()
        reader.result()
    assert len(seen) > 5
    assert all(content in (OLD, NEW) for content in seen)


def publish_and_take_back(settings: SparkSettings, sink: ParquetSink) -> None:
    for generation in range(1, 16):
        publication = stage(
            settings, {"parquet": "out", "mode": "overwrite"}, NEW, files=2, saga="many", generation=generation
        )
        sink.prepare(publication)
        sink.publish([publication], sink.read_state([publication]), together=False)
        sink.revert([publication], together=False)
