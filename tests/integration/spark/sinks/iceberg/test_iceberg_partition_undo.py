"""The undo of an Iceberg publication after later commits: its own partitions are restored, or it names who is there."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.typedef import Record

from saga_spark.sinks.sink import Publication, UndoConflict
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.sampling import mostly_slow
from tests.integration.spark.sinks.iceberg.delete_files import delete_positions
from tests.integration.spark.sinks.iceberg.iceberg_environment import Lake, open_lake, some

MONDAY, TUESDAY, FRIDAY = (dt.date(2026, 3, day) for day in (2, 3, 6))


@pytest.fixture
def lake(server: DatabaseServer, tmp_path: Path) -> Iterator[Lake]:
    """Two rows on Monday, two on Tuesday, in partitions of their own."""
    with open_lake("sql", server, tmp_path) as opened:
        rows = some(1, 2, day=MONDAY) + some(3, 4, day=TUESDAY)
        opened.publish(opened.staged(rows, files=2, saga="old", partition_by="day"))
        yield opened


def replacing(lake: Lake, *ids: int, day: dt.date, saga: str, **more: Any) -> Publication:
    words = {"mode": "overwrite_partitions", **more}
    ours = lake.staged(some(*ids, day=day), saga=saga, partition_by="day", **words)
    lake.publish(ours)
    return ours


@pytest.mark.slow
def test_partitions_are_restored_before_and_after_an_undo_in_another_partition(lake: Lake) -> None:
    monday = replacing(lake, 11, day=MONDAY, saga="s1")
    tuesday = replacing(lake, 12, day=TUESDAY, saga="s2")
    [done] = lake.revert(monday)
    assert done.details["how"] == "partitions restored"
    assert lake.rows() == some(1, 2, day=MONDAY) + some(12, day=TUESDAY)
    assert lake.sink.find(monday.output, monday.tag.target) is None
    [done] = lake.revert(tuesday)
    assert done.details["how"] == "partitions restored"
    assert lake.rows() == some(1, 2, day=MONDAY) + some(3, 4, day=TUESDAY)
    lake.revert(monday)
    assert lake.ids() == [1, 2, 3, 4]


MODES: dict[str, Mapping[str, Any]] = {
    "overwrite": {},
    "overwrite_where": {"where": {"day": str(MONDAY)}},
    "merge": {"key": "id"},
}


@pytest.mark.parametrize("mode", mostly_slow(MODES, {"merge"}))
def test_every_replacing_mode_restores_its_partitions(lake: Lake, mode: str) -> None:
    before = lake.rows()
    ours = replacing(lake, 2, day=MONDAY, saga="s1", mode=mode, **MODES[mode])
    lake.append(some(9, day=FRIDAY))
    lake.revert(ours)
    assert lake.rows() == [*before, *some(9, day=FRIDAY)]


def test_a_commit_in_the_own_partition_parks_and_is_the_only_one_named(lake: Lake) -> None:
    ours = replacing(lake, 11, day=MONDAY, saga="s1")
    replacing(lake, 12, day=TUESDAY, saga="s2")
    theirs = lake.append(some(9, day=MONDAY))
    refusal = rf"it replaced rows, and a later change exists: the snapshot {theirs} of [^,]*, not of a saga$"
    with pytest.raises(UndoConflict, match=refusal) as refused:
        lake.revert(ours)
    assert [change["snapshot"] for change in refused.value.report["later_snapshots"]] == [theirs]
    assert lake.ids() == [9, 11, 12]


@pytest.mark.slow
def test_later_publications_that_were_undone_do_not_count(lake: Lake) -> None:
    before = lake.rows()
    ours = replacing(lake, 11, day=MONDAY, saga="s1", mode="overwrite")
    appended = [replacing(lake, 20 + number, day=MONDAY, saga=f"s{number}", mode="append") for number in (2, 3)]
    assert [lake.revert(each)[0].details["how"] for each in appended] == ["files removed", "files removed"]
    [done] = lake.revert(ours)
    assert done.details["how"] == "rolled back"
    assert lake.rows() == before


def test_rows_that_others_had_deleted_are_not_restored(lake: Lake) -> None:
    [file] = [task.file for task in lake.table().scan(f"day = '{MONDAY}'").plan_files()]
    delete_positions(lake.table(), {file.file_path: [0]}, Record((MONDAY - dt.date(1970, 1, 1)).days))
    assert lake.ids() == [2, 3, 4]
    ours = replacing(lake, 11, day=MONDAY, saga="s1")
    lake.append(some(9, day=FRIDAY))
    lake.revert(ours)
    assert lake.ids() == [2, 3, 4, 9]


def test_restored_rows_outlive_the_files_that_were_replaced(lake: Lake) -> None:
    """Iceberg's own expiry deletes the files that an expired snapshot had replaced."""
    replaced = {task.file.file_path for task in lake.table().scan(f"day = '{MONDAY}'").plan_files()}
    ours = replacing(lake, 11, day=MONDAY, saga="s1")
    lake.append(some(9, day=FRIDAY))
    lake.revert(ours)
    lake.table().maintenance.expire_snapshots().older_than(dt.datetime.now() + dt.timedelta(days=1)).commit()
    lake.sink.drop_undo_data(ours)
    for path in replaced:
        Path(path.removeprefix("file://")).unlink()
    assert lake.ids() == [1, 2, 3, 4, 9]


@pytest.mark.slow
def test_an_undo_without_the_rows_before_says_so(lake: Lake) -> None:
    ours = replacing(lake, 11, day=MONDAY, saga="s1")
    kept = f"saga-{ours.tag.target.name}"
    with lake.table().manage_snapshots() as snapshots:
        for name in set(lake.table().refs()) - {"main", kept}:
            snapshots.remove_tag(name)
    lake.table().maintenance.expire_snapshots().older_than(dt.datetime.now() + dt.timedelta(days=1)).commit()
    with pytest.raises(
        UndoConflict, match=r"it replaced rows, which have expired from the table's history$"
    ) as refused:
        lake.revert(ours)
    assert lake.ids() == [3, 4, 11]
    advice = refused.value.by_hand or ""
    assert "before the publication have expired from its history" in advice
    assert f"snapshot {refused.value.report['before']}" not in advice
    assert f"(tag {kept}) that its parent did not have" in advice


@pytest.mark.parametrize("mode", ["append", "overwrite_partitions"])
def test_nan_is_a_partition(lake: Lake, mode: str) -> None:
    table = "sales.rates"
    rows = [{"id": 1, "rate": float("nan")}, {"id": 2, "rate": 1.0}]
    lake.publish(lake.staged(rows, table, files=2, partition_by="rate", saga="first"))
    again = lake.staged([{"id": 3, "rate": float("nan")}], table, mode=mode, partition_by="rate", saga="second")
    lake.publish(again)
    assert lake.ids(table) == ([1, 2, 3] if mode == "append" else [2, 3])
    lake.revert(again)
    assert lake.ids(table) == [1, 2]
    mixed = lake.staged([{"id": 4, "rate": float("nan")}, {"id": 5, "rate": 1.0}], table, saga="mixed")
    assert "has several values of rate" in " ".join(lake.sink.check(mixed))
