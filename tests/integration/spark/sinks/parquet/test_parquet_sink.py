"""Plain Parquet with a pointer: publish, adopt, undo, and what readers see."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import dataset

from saga_spark.job.job_spec import Output
from saga_spark.manifest import Target
from saga_spark.settings import SparkSettings
from saga_spark.sinks.parquet import parquet_pointer
from saga_spark.sinks.parquet.parquet_pointer import PointerFolder
from saga_spark.sinks.parquet.parquet_sink import ParquetSink
from saga_spark.sinks.sink import CommitConflict, Publication, Published, UndoConflict, sink_for, validate_together
from saga_spark.storage import write_once
from sagas import read_pointer
from sagas.errors import InfrastructureError, Rejected, UsageError
from tests.integration.spark.staged_outputs import stage

ONE, TWO, THREE = ([{"id": number, "name": f"n{number}"}] for number in (1, 2, 3))


@pytest.fixture
def settings(tmp_path: Path) -> SparkSettings:
    return SparkSettings(root=tmp_path, stage=(tmp_path / "stage").as_uri())


@pytest.fixture
def sink(settings: SparkSettings) -> ParquetSink:
    sink = sink_for("parquet", settings)
    assert isinstance(sink, ParquetSink)
    return sink


def publish(sink: ParquetSink, publication: Publication) -> Published:
    assert sink.check(publication) == []
    sink.prepare(publication)
    return sink.publish([publication], sink.read_state([publication]), together=False)[0]


def revert(sink: ParquetSink, publication: Publication) -> Published:
    return sink.revert([publication], together=False)[0]


def visible(settings: SparkSettings, place: str = "out") -> list[int]:
    files = read_pointer(str(settings.root / place))
    return sorted(dataset.dataset(files).to_table()["id"].to_pylist()) if files else []


def version(settings: SparkSettings) -> int:
    return PointerFolder(settings.root / "out").read().version


APPEND: dict[str, Any] = {"parquet": "out", "mode": "append"}
OVERWRITE: dict[str, Any] = {"parquet": "out", "mode": "overwrite"}


def test_append_and_overwrite_are_what_readers_see(settings: SparkSettings, sink: ParquetSink) -> None:
    publish(sink, stage(settings, APPEND, ONE + TWO, files=2, saga="a"))
    assert visible(settings) == [1, 2]
    publish(sink, stage(settings, APPEND, THREE, saga="b"))
    assert visible(settings) == [1, 2, 3]
    publish(sink, stage(settings, OVERWRITE, TWO, saga="c"))
    assert visible(settings) == [2]
    files = read_pointer((settings.root / "out").as_uri())
    assert pd.concat(map(pd.read_parquet, files)).to_dict("records") == [{"id": 2, "name": "n2"}]


def test_an_empty_output_without_a_file_can_be_published(settings: SparkSettings, sink: ParquetSink) -> None:
    publish(sink, stage(settings, APPEND, ONE, saga="a"))
    publish(sink, stage(settings, OVERWRITE, ONE[:0], saga="b", files=0))
    assert visible(settings) == []


def test_nothing_is_visible_before_publish(settings: SparkSettings, sink: ParquetSink) -> None:
    publication = stage(settings, APPEND, ONE)
    sink.prepare(publication)
    with pytest.raises(UsageError, match="no Parquet output"):
        read_pointer(str(settings.root / "out"))
    assert sink.find(publication.output, publication.tag.target) is None
    # Without the pointer a reader finds nothing, rather than everything that was ever placed.
    assert dataset.dataset(settings.root / "out", format="parquet").files == []


def test_an_existing_publication_is_adopted(settings: SparkSettings, sink: ParquetSink) -> None:
    publication = stage(settings, APPEND, ONE)
    state = sink.read_state([publication])
    publish(sink, publication)
    before = version(settings)
    assert sink.publish([publication], state, together=False)[0].adopted, "also with the state of long ago"
    record = sink.find(publication.output, publication.tag.target)
    assert record is not None
    assert record.adopted
    assert version(settings) == before
    assert visible(settings) == [1]


def test_another_manifest_under_our_key_is_not_adopted(settings: SparkSettings, sink: ParquetSink) -> None:
    publish(sink, stage(settings, APPEND, ONE))
    other = stage(settings, APPEND, TWO, epoch=2)
    sink.prepare(other)
    with pytest.raises(Rejected, match="another manifest"):
        sink.publish([other], sink.read_state([other]), together=False)


def test_an_overwritten_adopted_publication_is_not_published_again(settings: SparkSettings, sink: ParquetSink) -> None:
    ours = stage(settings, APPEND, ONE, saga="a")
    publish(sink, ours)
    publish(sink, stage(settings, OVERWRITE, TWO, saga="b"))
    assert publish(sink, ours).adopted
    assert visible(settings) == [2]
    with pytest.raises(CommitConflict, match="before its clean-up"):
        sink.clean_up(ours)


def test_the_state_is_compared(settings: SparkSettings, sink: ParquetSink) -> None:
    ours, other = stage(settings, APPEND, ONE, saga="a"), stage(settings, APPEND, TWO, saga="b")
    sink.prepare(ours)
    state = sink.read_state([ours])
    publish(sink, other)
    with pytest.raises(CommitConflict, match="from version 0 to 1"):
        sink.publish([ours], state, together=False)
    assert visible(settings) == [2]


def test_undo_at_the_head_restores_the_previous_files(settings: SparkSettings, sink: ParquetSink) -> None:
    publish(sink, stage(settings, APPEND, ONE, saga="a"))
    publish(sink, stage(settings, APPEND, TWO, saga="b"))
    before = PointerFolder(settings.root / "out").read().entries
    ours = stage(settings, OVERWRITE, THREE, saga="c")
    publish(sink, ours)
    revert(sink, ours)
    assert PointerFolder(settings.root / "out").read().entries == before
    assert visible(settings) == [1, 2]


def test_undo_of_the_first_overwrite_leaves_nothing(settings: SparkSettings, sink: ParquetSink) -> None:
    ours = stage(settings, OVERWRITE, ONE)
    publish(sink, ours)
    revert(sink, ours)
    assert visible(settings) == []


def test_undo_of_an_append_keeps_later_appends(settings: SparkSettings, sink: ParquetSink) -> None:
    publish(sink, stage(settings, APPEND, ONE, saga="a"))
    ours = stage(settings, APPEND, TWO, saga="b")
    publish(sink, ours)
    publish(sink, stage(settings, APPEND, THREE, saga="c"))
    revert(sink, ours)
    assert visible(settings) == [1, 3]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_undo_of_an_overwrite_before_later_commits_is_refused(
    settings: SparkSettings, sink: ParquetSink, mode: str
) -> None:
    publish(sink, stage(settings, APPEND, ONE, saga="a"))
    ours = stage(settings, OVERWRITE, TWO, saga="b")
    publish(sink, ours)
    later = stage(settings, {**APPEND, "mode": mode}, THREE, saga="c")
    publish(sink, later)
    before = (settings.root / "out" / "_current.json").read_text()
    with pytest.raises(UndoConflict, match=r"the output in \S*out has overwritten others .*: c/facts") as refused:
        revert(sink, ours)
    assert refused.value.report["after"][0]["saga.id"] == "c"
    assert refused.value.by_hand == "undo the later publications first, with `saga undo c --reason '…'`; then `retry`"
    assert (settings.root / "out" / "_current.json").read_text() == before
    revert(sink, later)
    revert(sink, ours)
    assert visible(settings) == [1]


def test_a_reverted_append_below_an_overwrite_is_not_restored(settings: SparkSettings, sink: ParquetSink) -> None:
    first, second = stage(settings, APPEND, ONE, saga="a"), stage(settings, APPEND, TWO, saga="b")
    third, fourth = stage(settings, OVERWRITE, THREE, saga="c"), stage(settings, OVERWRITE, ONE, saga="d")
    for publication in (first, second, third, fourth):
        publish(sink, publication)
    revert(sink, first)
    assert sink.find(first.output, first.tag.target) is None
    revert(sink, fourth)
    assert visible(settings) == [3]
    revert(sink, third)
    assert visible(settings) == [2]
    assert PointerFolder(settings.root / "out").read().reverted == (), "nothing is remembered longer than needed"


def test_undo_is_idempotent_and_always_increments_the_version(settings: SparkSettings, sink: ParquetSink) -> None:
    ours = stage(settings, APPEND, ONE)
    revert(sink, ours)
    publish(sink, ours)
    versions = [version(settings)]
    for _ in range(2):
        revert(sink, ours)
        versions.append(version(settings))
    assert versions == sorted(set(versions))
    assert visible(settings) == []


def test_the_next_generation_is_published_again(settings: SparkSettings, sink: ParquetSink) -> None:
    ours = stage(settings, APPEND, ONE)
    publish(sink, ours)
    revert(sink, ours)
    publish(sink, stage(settings, APPEND, TWO, generation=2))
    assert visible(settings) == [2]


def test_undo_of_an_overwrite_without_its_previous_version_is_refused(
    settings: SparkSettings, sink: ParquetSink
) -> None:
    publish(sink, stage(settings, APPEND, ONE, saga="a"))
    ours = stage(settings, OVERWRITE, TWO, saga="b")
    publish(sink, ours)
    (settings.root / "out" / "_versions" / "1.json").unlink()
    with pytest.raises(UndoConflict, match="no longer kept"):
        revert(sink, ours)


def test_clean_removes_every_attempt_of_this_generation_only(settings: SparkSettings, sink: ParquetSink) -> None:
    publish(sink, stage(settings, APPEND, ONE, saga="a"))
    attempts = [stage(settings, APPEND, TWO, saga="b", epoch=epoch) for epoch in (1, 2)]
    tenth = stage(settings, APPEND, THREE, saga="b", generation=10)
    for publication in (*attempts, tenth):
        sink.prepare(publication)
    state = sink.read_state(attempts[1:])
    sink.clean_up(attempts[1])
    names = sorted(path.name for path in (settings.root / "out" / "_data").iterdir())
    assert len(names) == 2
    assert f"{tenth.tag.target.name}-e1" in names
    with pytest.raises(Rejected, match="missing"):
        sink.publish(attempts[1:], state, together=False)  # one that was frozen meanwhile
    assert visible(settings) == [1]


def data(settings: SparkSettings) -> set[str]:
    """The sagas whose data is on disk."""
    targets = {Target(saga, "facts", 1).name: saga for saga in "abcd"}
    return {targets[path.name.rpartition("-e")[0]] for path in (settings.root / "out" / "_data").iterdir()}


def test_files_no_undo_needs_are_deleted(settings: SparkSettings, sink: ParquetSink) -> None:
    made = {
        saga: stage(settings, {"parquet": "out", "mode": mode}, rows, saga=saga)
        for saga, mode, rows in (("a", "append", ONE), ("b", "overwrite", TWO), ("c", "overwrite", THREE))
    }
    for publication in made.values():
        publish(sink, publication)
    waiting = stage(settings, APPEND, ONE, saga="d")
    sink.prepare(waiting)
    sink.drop_undo_data(made["b"])
    assert data(settings) == {"a", "b", "c", "d"}, "undoing c shows b again, and undoing b then shows a"
    revert(sink, made["c"])
    sink.drop_undo_data(made["c"])
    assert data(settings) == {"a", "b", "d"}
    assert visible(settings) == [2]
    for _ in range(2):
        sink.drop_undo_data(made["b"])
        assert data(settings) == {"b", "d"}
    assert list((settings.root / "out" / "_versions").iterdir()) == []
    publish(sink, waiting)
    assert visible(settings) == [1, 2]
    revert(sink, waiting)
    revert(sink, made["b"])
    assert visible(settings) == []


def test_files_are_linked_and_survive_the_stage(settings: SparkSettings, sink: ParquetSink) -> None:
    ours = stage(settings, APPEND, ONE)
    publish(sink, ours)
    staged = Path(ours.manifest.files[0].uri.removeprefix("file://"))
    assert os.path.samefile(staged, read_pointer(str(settings.root / "out"))[0])
    staged.unlink()
    assert visible(settings) == [1]


def test_files_of_another_device_are_copied(settings: SparkSettings) -> None:
    ours = settings.root.stat().st_dev
    places = (Path("/dev/shm"), Path("/var/tmp"))
    other_device = next((place for place in places if place.is_dir() and place.stat().st_dev != ours), None)
    if other_device is None:
        pytest.skip("there is no second file system")
    folder = other_device / f"saga-test-{os.getpid()}"
    other = SparkSettings(root=settings.root, stage=folder.as_uri())
    try:
        publish(ParquetSink(other), stage(other, APPEND, ONE + TWO, files=2))
    finally:
        for place in sorted(folder.rglob("*"), reverse=True):
            place.unlink() if place.is_file() else place.rmdir()
        folder.rmdir()
    assert visible(settings) == [1, 2]


def test_preparing_twice_changes_nothing(settings: SparkSettings, sink: ParquetSink) -> None:
    ours = stage(settings, APPEND, ONE)
    publish(sink, ours)
    file = Path(read_pointer(str(settings.root / "out"))[0])
    before = file.stat()
    sink.prepare(ours)
    assert file.stat().st_ino == before.st_ino
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    os.truncate(file, 4)
    with pytest.raises(Rejected, match="were changed"):
        sink.prepare(ours)


def test_check_reports_what_publish_would_refuse(settings: SparkSettings, sink: ParquetSink) -> None:
    publish(sink, stage(settings, APPEND, ONE, saga="a"))
    wrong = pa.table({"id": pa.array([1], pa.int32()), "more": ["x"]})
    problems = sink.check(stage(settings, APPEND, wrong, saga="b"))
    assert [problem.split(";")[0] for problem in problems] == [
        "the column name is missing",
        "the column more is new",
        "the column id is int32, but int64 in published files",
    ]
    assert sink.check(stage(settings, OVERWRITE, wrong, saga="b")) == []
    (settings.root / "plain").mkdir()
    (settings.root / "plain" / "x.parquet").touch()
    assert "without a pointer" in sink.check(stage(settings, {"parquet": "plain"}, ONE))[0]
    assert "is a file" in sink.check(stage(settings, {"parquet": "plain/x.parquet/out"}, ONE))[0]


def test_a_concurrently_changed_schema_is_refused(settings: SparkSettings, sink: ParquetSink) -> None:
    ours = stage(settings, APPEND, ONE, saga="a")
    sink.prepare(ours)
    publish(sink, stage(settings, APPEND, [{"id": "text"}], saga="b"))
    with pytest.raises(Rejected, match="no longer accepts the files: the column name is new"):
        sink.publish([ours], sink.read_state([ours]), together=False)


def test_unsupported_options_are_refused(settings: SparkSettings, sink: ParquetSink) -> None:
    def output(**more: Any) -> Output:
        return Output.parse("facts", {"parquet": "out", **more})

    sink.validate(output())
    with pytest.raises(UsageError, match="append and overwrite, not merge"):
        sink.validate(output(mode="merge", key="id"))
    with pytest.raises(UsageError, match="local or mounted"):
        sink.validate(output(parquet="s3://bucket/out"))
    with pytest.raises(UsageError, match="cannot be published together"):
        validate_together([output(), output()], settings)
    table = Output.parse("facts", {"connection": "shop", "table": "t"})
    with pytest.raises(UsageError, match="of the kinds parquet and postgresql"):
        validate_together([output(), table], settings)


def test_a_full_or_read_only_disk_gives_a_one_line_error(settings: SparkSettings, sink: ParquetSink) -> None:
    (settings.root / "out").write_text("no folder")
    with pytest.raises(InfrastructureError, match=r"Not a directory|File exists"):
        sink.prepare(stage(settings, APPEND, ONE))


def test_a_lock_that_is_never_released_is_a_conflict(
    settings: SparkSettings, sink: ParquetSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_pointer, "LOCK_TIMEOUT", 0.1)
    ours = stage(settings, APPEND, ONE)
    sink.prepare(ours)
    with PointerFolder(settings.root / "out").locked(), pytest.raises(CommitConflict, match="held by another"):
        sink.publish([ours], sink.read_state([ours]), together=False)


def test_a_corrupt_pointer_gives_a_one_line_error(settings: SparkSettings, sink: ParquetSink) -> None:
    ours = stage(settings, APPEND, ONE)
    publish(sink, ours)
    place = settings.root / "out" / "_current.json"
    for text in ("{", "[]", json.dumps({"format": "other"}), json.dumps({"format": "saga-parquet", "version": 1})):
        place.write_text(text)
        with pytest.raises(UsageError, match="is not a pointer"):
            sink.read_state([ours])


def test_write_once(tmp_path: Path) -> None:
    uri = (tmp_path / "once.json").as_uri()
    write_once(uri, b"a")
    write_once(uri, b"a")
    with pytest.raises(FileExistsError, match="different content"):
        write_once(uri, b"b")
    assert [path.name for path in tmp_path.iterdir()] == ["once.json"]
