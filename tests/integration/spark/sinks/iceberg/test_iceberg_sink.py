"""The Iceberg sink over a SQL catalog on PostgreSQL and over a REST catalog: every mode and every undo."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from saga_spark.job.job_spec import Output
from saga_spark.manifest import ManifestColumn, Target
from saga_spark.settings import SparkSettings
from saga_spark.sinks.iceberg.iceberg_sink import IcebergSink
from saga_spark.sinks.sink import CommitConflict, UndoConflict
from saga_spark.storage import local_path
from sagas.errors import InfrastructureError, Rejected, UsageError
from tests.helpers.database_servers import DatabaseServer
from tests.integration.spark.sinks.iceberg.iceberg_environment import Lake, open_lake, some


# What differs with a REST catalog is the commit, which every run meets in test_iceberg_sink_crashes.py.
@pytest.fixture(params=["sql", pytest.param("rest", marks=pytest.mark.slow)])
def lake(request: pytest.FixtureRequest, server: DatabaseServer, tmp_path: Path) -> Iterator[Lake]:
    with open_lake(request.param, server, tmp_path / "my lake") as opened:
        yield opened


# ── modes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_publication_creates_namespace_and_table(lake: Lake) -> None:
    ours = lake.staged(some(1, 2, 3), files=3)
    assert lake.sink.check(ours) == []
    lake.sink.prepare(ours)
    assert not lake.exists()
    assert not lake.catalog.namespace_exists("sales")
    [done] = lake.sink.publish([ours], lake.sink.read_state([ours]), together=False)
    assert lake.rows() == some(1, 2, 3)
    snapshot = lake.table().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert done.before is None
    assert done.after == snapshot.snapshot_id
    assert not done.adopted
    words = snapshot.summary.additional_properties
    assert {key: words[key] for key in ours.tag.properties()} == ours.tag.properties()
    assert len(lake.table().snapshots()) == 1
    again = lake.sink.find(ours.output, ours.tag.target)
    assert again is not None
    assert again.after == done.after
    assert again.adopted


def test_append_adds(lake: Lake) -> None:
    lake.publish(lake.staged(some(1, 2)))
    [done] = lake.publish(lake.staged(some(2, 3), saga="s2"))
    assert lake.ids() == [1, 2, 2, 3]
    assert done.before is not None


def test_overwrite_replaces_everything_in_one_snapshot(lake: Lake) -> None:
    lake.publish(lake.staged(some(1, 2, 3), files=2))
    before = len(lake.table().snapshots())
    lake.publish(lake.staged(some(7), saga="s2", mode="overwrite"))
    assert lake.ids() == [7]
    assert len(lake.table().snapshots()) == before + 1


def test_overwrite_with_no_rows_empties_the_table(lake: Lake) -> None:
    lake.publish(lake.staged(some(1)))
    nothing = lake.staged(pa.Table.from_pylist(some(1)).slice(0, 0), saga="s2", mode="overwrite")
    lake.publish(nothing)
    assert lake.ids() == []
    assert lake.sink.find(nothing.output, nothing.tag.target) is not None
    lake.revert(nothing)
    assert lake.ids() == [1]


def test_overwrite_partitions_replaces_the_partitions_that_have_rows(lake: Lake) -> None:
    monday, tuesday = dt.date(2026, 3, 2), dt.date(2026, 3, 3)
    lake.publish(lake.staged(some(1, day=monday) + some(2, day=tuesday), files=2, partition_by="day"))
    lake.publish(lake.staged(some(7, 8, day=tuesday), saga="s2", mode="overwrite_partitions", partition_by="day"))
    assert lake.ids() == [1, 7, 8]
    assert {record["partition"]["day"] for record in lake.table().inspect.files().to_pylist()} == {monday, tuesday}


def test_overwrite_where_replaces_matching_rows_and_rewrites_mixed_files(lake: Lake) -> None:
    lake.publish(lake.staged(some(1, 2, day="mon") + some(3, 4, day="tue")))
    ours = lake.staged(some(9, day="tue"), saga="s2", mode="overwrite_where", where={"day": "tue"})
    lake.publish(ours)
    assert lake.ids() == [1, 2, 9]
    lake.revert(ours)
    assert lake.ids() == [1, 2, 3, 4]


def test_overwrite_where_supports_dates_and_refuses_rows_outside(lake: Lake) -> None:
    monday, tuesday = dt.date(2026, 3, 2), dt.date(2026, 3, 3)
    lake.publish(lake.staged(some(1, day=monday) + some(2, day=tuesday)))
    where = {"day": "2026-03-03"}
    lake.publish(lake.staged(some(5, day=tuesday), saga="s2", mode="overwrite_where", where=where))
    assert lake.ids() == [1, 5]
    outside = lake.staged(some(6, day=tuesday) + some(7, day=monday), saga="s3", mode="overwrite_where", where=where)
    [problem] = lake.sink.check(outside)
    assert problem == "1 of 2 rows is outside of the range `where` that the mode overwrites"
    [problem] = lake.sink.check(lake.staged(some(1, day=monday), mode="overwrite_where", where={"dy": 1}))
    assert "`where` of the output does not match" in problem
    assert "\n" not in problem


def test_merge_replaces_the_rows_with_the_same_key(lake: Lake) -> None:
    lake.publish(lake.staged(some(1, 2, 3, 4), files=2))
    ours = lake.staged([{"id": 2, "name": "new"}, {"id": 9, "name": "new"}], saga="s2", mode="merge", key="id")
    [done] = lake.publish(ours)
    assert [(row["id"], row["name"]) for row in lake.rows()] == [
        (1, "n1"),
        (2, "new"),
        (3, "n3"),
        (4, "n4"),
        (9, "new"),
    ]
    assert done.details["replaced_files"] == 1  # the file of 3 and 4 is not touched
    lake.revert(ours)
    assert lake.rows() == some(1, 2, 3, 4)


def test_merge_with_a_key_of_several_columns(lake: Lake) -> None:
    day = dt.date(2026, 3, 2)
    at = dt.datetime(2026, 3, 2, 12, tzinfo=dt.UTC)
    kind = pa.schema(
        [
            ("id", pa.int64()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("sum", pa.decimal128(9, 2)),
            ("tags", pa.list_(pa.string())),
        ]
    )

    def made(*rows: tuple[Any, ...]) -> pa.Table:
        return pa.Table.from_pylist([dict(zip(kind.names, row, strict=True)) for row in rows], schema=kind)

    price = decimal.Decimal("1.50")
    lake.publish(lake.staged(made((1, day, at, price, ["a"]), (2, day, at, price, None), (3, None, at, price, []))))
    change = made((2, day, at, decimal.Decimal("9.99"), ["b"]))
    lake.publish(lake.staged(change, saga="s2", mode="merge", key=["id", "day", "at"]))
    assert [(row["id"], row["sum"], row["tags"]) for row in lake.rows()] == [
        (1, price, ["a"]),
        (2, decimal.Decimal("9.99"), ["b"]),
        (3, price, []),
    ]


def test_merge_refuses_duplicate_and_null_keys(lake: Lake) -> None:
    assert lake.sink.check(lake.staged(some(1, 1), mode="merge", key="id")) == [
        "1 row has the same key (id) as another row of the output"
    ]
    rows = [{"id": None, "name": "a"}, {"id": 1, "name": "b"}]
    assert lake.sink.check(lake.staged(rows, mode="merge", key="id")) == ["1 row has no id, which is part of `key`"]
    assert lake.sink.check(lake.staged(some(1), mode="merge", key="no")) == [
        "the output has no column no, which `key` names"
    ]


# ── schema ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_schema_difference_is_one_message(lake: Lake) -> None:
    lake.publish(lake.staged(some(1, price=1.5)))
    changed = lake.staged([{"id": "x", "name": "a", "extra": 1}], saga="s2")
    assert lake.sink.check(changed) == [
        "the output has no column price, which the table lake.sales.facts has",
        "the column id is string in the output and long in the table lake.sales.facts",
        "the table lake.sales.facts has no column extra, which the output has",
    ]
    assert lake.ids() == [1]


def test_a_required_column_takes_rows_that_are_known_to_have_no_nulls(lake: Lake) -> None:
    lake.catalog.create_namespace("sales")
    kind = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    lake.catalog.create_table("sales.facts", kind)
    ours = lake.staged(some(1, 2))
    assert lake.sink.check(ours) == [
        "the column id of the table lake.sales.facts accepts no nulls, but the output may have nulls in it"
    ]
    counted = dataclasses.replace(ours.manifest, columns=(ManifestColumn("id", "bigint", 0),))
    lake.publish(dataclasses.replace(ours, manifest=counted))
    assert lake.ids() == [1, 2]


def test_a_file_with_several_values_of_a_partition_is_refused(lake: Lake) -> None:
    mixed = lake.staged(some(1, day="mon") + some(2, day="tue"), partition_by="day")
    [problem] = lake.sink.check(mixed)
    assert problem == "the file part-0.parquet has several values of day, by which the table is partitioned"
    with_null = lake.staged(some(1, day="mon") + some(2, day=None), partition_by="day")
    assert lake.sink.check(with_null) == [
        "the file part-0.parquet has several values of day, by which the table is partitioned"
    ]


def test_partitions_must_be_those_of_the_table(lake: Lake) -> None:
    lake.publish(lake.staged(some(1)))
    assert lake.sink.check(lake.staged(some(2), saga="s2", partition_by="name")) == [
        "`partition_by` is name, but the table lake.sales.facts is partitioned not at all"
    ]
    assert lake.sink.check(lake.staged(some(2), saga="s2", mode="overwrite_partitions")) == [
        "the mode overwrite_partitions needs partitions, but the table lake.sales.facts has none"
    ]


def test_invalid_names_are_refused() -> None:
    sink = IcebergSink(SparkSettings(root=Path("/"), catalogs={"lake": {"type": "sql", "uri": "x"}}))
    with pytest.raises(UsageError, match=r"must be named as catalog\.namespace\.table"):
        sink.validate(Output("output", "iceberg", "sales.facts"))
    with pytest.raises(UsageError, match="the catalog lke is not configured; did you mean lake"):
        sink.validate(Output("output", "iceberg", "lke.sales.facts"))
    with pytest.raises(UsageError, match="has 256 bytes, and catalogs and folders hold 255"):
        sink.validate(Output("output", "iceberg", f"lake.sales.{'x' * 256}"))
    with pytest.raises(UsageError, match="has a character in its name that no folder can have"):
        sink.validate(Output("output", "iceberg", "lake.sales.a/b"))


def test_columns_with_dots_are_published_and_read(lake: Lake) -> None:
    lake.publish(lake.staged([{"id": 1, "a.b": 1.5, "ein `Name`": "x"}]))
    lake.publish(lake.staged([{"id": 1, "a.b": 2.5, "ein `Name`": "y"}], mode="merge", key="id", saga="other"))
    assert lake.rows() == [{"id": 1, "a.b": 2.5, "ein `Name`": "y"}]


def test_column_names_without_a_place_in_iceberg_are_refused(lake: Lake) -> None:
    [clash] = lake.sink.check(lake.staged([{"a": {"b": 1}, "a.b": 2}]))
    assert clash == "a column named a.b and a field of a struct have one path in Iceberg; rename one"
    assert lake.sink.check(lake.staged([{"id": 1, "_pos": 2}])) == [
        "the column _pos has the name of a metadata column of Iceberg; rename it"
    ]


# ── exactly once ────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_existing_publication_is_adopted(lake: Lake) -> None:
    ours = lake.staged(some(1, 2))
    [first] = lake.publish(ours)
    lake.append(some(5))
    [second] = lake.publish(ours)
    assert second.adopted
    assert second.after == first.after
    assert lake.ids() == [1, 2, 5]


def test_a_concurrent_change_is_a_conflict_and_leaves_no_files(lake: Lake) -> None:
    lake.publish(lake.staged(some(1, 2)))
    ours = lake.staged([{"id": 2, "name": "x"}], saga="s2", mode="merge", key="id")
    lake.sink.prepare(ours)
    state = lake.sink.read_state([ours])
    files = lake.files()
    lake.append(some(3))
    with pytest.raises(CommitConflict):
        lake.sink.publish([ours], state, together=False)
    assert len(lake.files()) == len(files) + 1
    lake.publish(ours)
    assert [(row["id"], row["name"]) for row in lake.rows()] == [(1, "n1"), (2, "x"), (3, "n3")]


def test_a_frozen_publisher_cannot_publish_after_the_undo(lake: Lake) -> None:
    lake.publish(lake.staged(some(1)))
    ours = lake.staged(some(2), saga="s2", mode="overwrite")
    lake.sink.prepare(ours)
    frozen = lake.sink.read_state([ours])
    lake.publish(ours)
    lake.revert(ours)
    assert lake.ids() == [1]
    with pytest.raises(CommitConflict):
        lake.sink.publish([ours], frozen, together=False)
    assert lake.ids() == [1]


@pytest.mark.parametrize("exists", [True, False])
def test_an_undo_without_publication_fences_a_frozen_publisher(lake: Lake, exists: bool) -> None:
    if exists:
        lake.publish(lake.staged(some(1)))
    ours = lake.staged(some(2), saga="s2")
    lake.sink.prepare(ours)
    frozen = lake.sink.read_state([ours])
    lake.revert(ours)
    lake.revert(ours)
    with pytest.raises(CommitConflict):
        lake.sink.publish([ours], frozen, together=False)
    assert lake.ids() == ([1] if exists else [])
    lake.publish(lake.staged(some(3), saga="s2", generation=2))
    assert lake.ids() == ([1, 3] if exists else [3])


# ── undo ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_undo_of_the_newest_change_restores_the_pre_image(lake: Lake) -> None:
    lake.publish(lake.staged(some(1, 2)))
    ours = lake.staged(some(7), saga="s2", mode="overwrite")
    lake.publish(ours)
    [done] = lake.revert(ours)
    assert done.details["how"] == "rolled back"
    assert lake.ids() == [1, 2]
    assert lake.sink.find(ours.output, ours.tag.target) is None
    assert not [name for name in lake.table().refs() if ours.tag.target.name in name]
    # The pre-image's own publication is still known, and its undo is exact too.
    first = lake.staged(some(1, 2))
    [done] = lake.revert(first)
    assert done.details["how"] == "rolled back"
    assert lake.ids() == []
    assert lake.exists()


def test_after_an_undo_the_next_generation_publishes_again(lake: Lake) -> None:
    ours = lake.staged(some(1))
    lake.publish(ours)
    lake.revert(ours)
    again = lake.staged(some(1, 2), generation=2)
    [done] = lake.publish(again)
    assert not done.adopted
    assert lake.ids() == [1, 2]
    assert lake.sink.find(ours.output, ours.tag.target) is None
    assert lake.sink.find(again.output, again.tag.target) is not None


def test_undo_of_an_append_before_later_commits_removes_exactly_its_files(lake: Lake) -> None:
    lake.publish(lake.staged(some(1)))
    ours = lake.staged(some(2, 3), saga="s2", files=2)
    lake.publish(ours)
    lake.append(some(4))
    [done] = lake.revert(ours)
    assert done.details["how"] == "files removed"
    assert lake.ids() == [1, 4]
    assert lake.sink.find(ours.output, ours.tag.target) is None
    lake.revert(ours)
    assert lake.ids() == [1, 4]


def test_undo_of_an_overwrite_before_later_commits_names_them(lake: Lake) -> None:
    lake.publish(lake.staged(some(1)))
    ours = lake.staged(some(2), saga="s2", mode="overwrite")
    [done] = lake.publish(ours)
    theirs = lake.append(some(4))
    with pytest.raises(UndoConflict, match=r"lake\.sales\.facts cannot be reverted exactly.*a later change") as refused:
        lake.revert(ours)
    report = refused.value.report
    assert report["published"] == done.after
    [later] = report["later_snapshots"]
    assert later["snapshot"] == theirs
    assert later["operation"] == "append"
    assert later["time"].endswith("+00:00")
    assert later["summary"]["added-records"] == "1"
    assert lake.ids() == [2, 4]


def test_a_refused_undo_names_the_saga_and_the_step_of_each_later_change(lake: Lake) -> None:
    lake.publish(lake.staged(some(1)))
    other = lake.staged(some(2), saga="s2")
    lake.publish(other)
    ours = lake.staged(some(3), saga="s3", mode="overwrite")
    lake.publish(ours)
    lake.publish(lake.staged(some(4), saga="s4"))
    with pytest.raises(UndoConflict, match=r"a later change exists: .* by the step facts of the saga s4") as refused:
        lake.revert(ours)
    before = refused.value.report["before"]
    assert f"the snapshot {before} (tag saga-{ours.tag.target.name}-before)" in (refused.value.by_hand or "")
    assert f'`catalog.load_table("sales.facts").scan(snapshot_id={before}).to_arrow()`' in (refused.value.by_hand or "")
    rows = lake.table().scan(snapshot_id=int(before)).to_arrow().to_pylist()
    assert sorted(row["id"] for row in rows) == [1, 2]


def test_undo_of_an_append_with_rewritten_files_is_refused(lake: Lake) -> None:
    lake.publish(lake.staged(some(1, 2)))
    ours = lake.staged(some(3, 4), saga="s2")
    lake.publish(ours)
    lake.table().delete("id = 3")
    with pytest.raises(
        UndoConflict,
        match=r"1 of its 1 files is no longer live, and a later change exists: the snapshot .* not of a saga",
    ):
        lake.revert(ours)
    assert lake.ids() == [1, 2, 4]


def test_two_publications_are_undone_in_either_order(lake: Lake) -> None:
    first, second = (lake.staged(some(number), saga=f"s{number}", mode="overwrite") for number in (1, 2))
    lake.publish(first)
    lake.publish(second)
    lake.revert(second)
    lake.revert(first)
    assert lake.ids() == []
    assert lake.sink.find(first.output, first.tag.target) is None


def test_snapshot_expiry_keeps_the_pre_image_and_the_commit_tag(lake: Lake) -> None:
    lake.publish(lake.staged(some(1)))
    ours = lake.staged(some(2), saga="s2", mode="overwrite")
    lake.publish(ours)
    later = dt.datetime.now() + dt.timedelta(days=1)
    lake.table().maintenance.expire_snapshots().older_than(later).commit()
    lake.append(some(3))
    lake.append(some(4))
    lake.table().maintenance.expire_snapshots().older_than(later).commit()
    assert lake.sink.find(ours.output, ours.tag.target) is not None
    [again] = lake.publish(ours)
    assert again.adopted
    with pytest.raises(UndoConflict):
        lake.revert(ours)


def test_clean_removes_uncommitted_files_only(lake: Lake) -> None:
    lake.publish(lake.staged(some(1)))
    files = lake.files()
    ours = lake.staged(some(2), saga="s2")
    lake.sink.prepare(ours)
    lake.sink.prepare(ours)
    assert len(lake.files()) == len(files) + 1
    lake.sink.clean_up(ours)
    lake.sink.clean_up(ours)
    assert lake.files() == files
    lake.publish(ours)
    lake.sink.clean_up(ours)
    assert lake.ids() == [1, 2]


def test_a_plain_reader_finds_columns_by_name(lake: Lake) -> None:
    lake.publish(lake.staged(some(1, price=decimal.Decimal("2.50"), at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))))
    lake.table().update_schema().rename_column("name", "title").commit()
    assert lake.rows() == [
        {"id": 1, "title": "n1", "price": decimal.Decimal("2.50"), "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}
    ]


# ── the end of the undo period, and errors ──────────────────────────────────────────────────────────────────────


def test_expired_publications_lose_their_tags_and_rolled_back_rows(lake: Lake) -> None:
    lake.publish(lake.staged(some(1)))
    files = lake.files()
    ours = lake.staged(some(2), saga="s2", mode="overwrite")
    lake.publish(ours)
    lake.revert(ours)
    lake.sink.drop_undo_data(ours)
    lake.sink.drop_undo_data(ours)
    assert lake.files() == files
    assert lake.ids() == [1]
    assert lake.sink.find(ours.output, ours.tag.target) is None

    again = lake.staged(some(3), saga="s2", generation=2)
    lake.publish(again)
    lake.sink.drop_undo_data(again)
    assert not [name for name in lake.table().refs() if again.tag.target.name in name]
    assert lake.ids() == [1, 3]
    assert lake.sink.find(again.output, again.tag.target) is not None


def test_another_manifest_under_the_same_key_is_refused(lake: Lake) -> None:
    lake.publish(lake.staged(some(1)))
    other = lake.staged(some(1, 2), epoch=2)
    with pytest.raises(Rejected, match="another manifest is published under the key of the output"):
        lake.publish(other)
    assert lake.ids() == [1]


def test_missing_files_are_refused_in_one_line(lake: Lake) -> None:
    ours = lake.staged(some(1))
    state = lake.sink.read_state([ours])
    file = local_path(ours.manifest.files[0].uri)
    assert file is not None
    file.unlink()
    with pytest.raises(Rejected, match="files of the output output are neither in the stage area nor in lake"):
        lake.sink.publish([ours], state, together=False)
    assert not lake.exists()


def test_an_unreachable_catalog_is_retried_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    def sink(**properties: str) -> IcebergSink:
        return IcebergSink(SparkSettings(root=tmp_path, catalogs={"lake": properties}))

    output, target = Output("output", "iceberg", "lake.sales.facts"), Target("s", "facts", 1)
    for properties in (
        {"type": "sql", "uri": "postgresql+psycopg://nobody@127.0.0.1:1/none"},
        {"type": "rest", "uri": "http://127.0.0.1:1"},
    ):
        with pytest.raises(InfrastructureError) as error:
            sink(**properties).find(output, target)
        assert "lake.sales.facts" in str(error.value)
        assert "\n" not in str(error.value)
    for properties in ({"type": "sql", "uri": "nothing"}, {"type": "strange", "uri": "x"}):
        with pytest.raises(UsageError, match=r"catalogs\.lake cannot be used"):
            sink(**properties).find(output, target)
