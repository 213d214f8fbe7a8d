"""The undo of a publication in a PostgreSQL table whose rows later publications have deleted or written again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from saga_spark.sinks.sink import Publication, UndoConflict
from tests.helpers.database_servers import DatabaseServer
from tests.integration.spark.sinks.postgresql.warehouse import Warehouse, open_warehouse

NOTES = "create table keyed (id int primary key, p text); create table plain (id int, p text)"
KEYS = {"keyed": {"key": "id"}, "plain": {}}


@pytest.fixture
def warehouse(server: DatabaseServer, tmp_path: Path) -> Warehouse:
    return open_warehouse(server, tmp_path, NOTES)


def _publish(warehouse: Warehouse, saga: str, mode: str, table: str, id: int, p: str, **more: Any) -> Publication:
    publication = warehouse.stage(warehouse.output(mode, table, **more), [{"id": id, "p": p}], saga=saga)
    warehouse.publish(publication)
    return publication


def _check_refused(warehouse: Warehouse, publication: Publication, table: str, saga: str) -> None:
    """The undo changes nothing, and names the saga that has to be undone first."""
    before = warehouse.rows(table)
    with pytest.raises(UndoConflict, match=f"later publications: {saga}/facts") as refused:
        warehouse.revert(publication)
    assert refused.value.by_hand is not None
    assert f"`saga undo {saga} --reason '…'`" in refused.value.by_hand
    assert warehouse.rows(table) == before


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("table", KEYS)
@pytest.mark.parametrize("base", [[], [(9, "base")]])
def test_rows_that_a_later_overwrite_has_deleted_are_not_undone(
    warehouse: Warehouse, table: str, base: list[tuple[int, str]]
) -> None:
    for row in base:
        warehouse.run(f"insert into {table} values (%s, %s)", *row)
    before = warehouse.rows(table)
    first = _publish(warehouse, "a", "append", table, 1, "a")
    later = _publish(warehouse, "b", "overwrite", table, 2, "b")
    _check_refused(warehouse, first, table, "b")
    warehouse.revert(later)
    warehouse.revert(first)
    assert warehouse.rows(table) == before


def test_values_that_a_later_merge_has_restored_are_not_undone(warehouse: Warehouse) -> None:
    warehouse.run("insert into keyed values (1, 'one')")
    first = _publish(warehouse, "a", "merge", "keyed", 1, "two", key="id")
    later = _publish(warehouse, "b", "merge", "keyed", 1, "one", key="id")
    _check_refused(warehouse, first, "keyed", "b")
    warehouse.revert(later)
    warehouse.revert(first)
    assert warehouse.rows("keyed") == ["(1,one)"]


@pytest.mark.parametrize("table", KEYS)
def test_equal_rows_of_a_later_publication_are_not_deleted(warehouse: Warehouse, table: str) -> None:
    first = _publish(warehouse, "a", "append", table, 1, "x")
    second = _publish(warehouse, "b", "overwrite", table, 1, "y")
    third = _publish(warehouse, "c", "overwrite", table, 1, "x")
    _check_refused(warehouse, first, table, "b" if table == "plain" else "c")
    for publication in (third, second, first):
        warehouse.revert(publication)
    assert warehouse.rows(table) == []


def test_a_row_that_a_later_append_has_written_again_is_not_undone(warehouse: Warehouse) -> None:
    warehouse.run("insert into keyed values (1, 'a')")
    first = _publish(warehouse, "a", "overwrite", "keyed", 2, "b")
    later = _publish(warehouse, "b", "append", "keyed", 1, "a")
    _check_refused(warehouse, first, "keyed", "b")
    warehouse.revert(later)
    warehouse.revert(first)
    assert warehouse.rows("keyed") == ["(1,a)"]


@pytest.mark.slow
def test_a_later_publication_in_a_wider_column_is_recognised(warehouse: Warehouse) -> None:
    for table in KEYS:
        warehouse.run(f"alter table {table} alter p type numeric(6, 1) using 0")
    for table in KEYS:
        output = warehouse.output("append", table)
        first = warehouse.stage(output, [{"id": 1, "p": 2}], saga=f"{table}-a")
        warehouse.publish(first)
        warehouse.run(f"alter table {table} alter p type numeric(9, 3)")
        later = warehouse.stage(warehouse.output("overwrite", table), [{"id": 2, "p": 2}], saga=f"{table}-b")
        warehouse.publish(later)
        _check_refused(warehouse, first, table, f"{table}-b")
        warehouse.revert(later)
        warehouse.revert(first)
        assert warehouse.rows(table) == []


def test_a_closed_later_publication_does_not_block(warehouse: Warehouse) -> None:
    first = _publish(warehouse, "a", "append", "keyed", 1, "a")
    later = _publish(warehouse, "b", "overwrite", "keyed", 2, "b")
    warehouse.sink.close(later)
    assert warehouse.revert(first).details["as_before"] == 1


def test_rows_restored_by_hand_after_a_later_publication_count_as_undone(warehouse: Warehouse) -> None:
    warehouse.run("insert into keyed values (1, 'one')")
    first = _publish(warehouse, "a", "merge", "keyed", 1, "two", key="id")
    later = _publish(warehouse, "b", "merge", "keyed", 1, "three", key="id")
    _check_refused(warehouse, first, "keyed", "b")
    warehouse.run("update keyed set p = 'one'")
    assert warehouse.revert(first).details["as_before"] == 1
    with pytest.raises(UndoConflict, match="was changed or deleted after the publication"):
        warehouse.revert(later)
    assert warehouse.rows("keyed") == ["(1,one)"]


def test_equal_rows_without_a_key_of_two_publications_are_undone_in_any_order(warehouse: Warehouse) -> None:
    first = _publish(warehouse, "a", "append", "plain", 1, "x")
    later = _publish(warehouse, "b", "append", "plain", 1, "x")
    warehouse.revert(first)
    assert warehouse.rows("plain") == ["(1,x)"]
    warehouse.revert(later)
    assert warehouse.rows("plain") == []


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("rows", [["(9,BASE)", "(1,A)", "(2,B)"], ["(9,base)"], ["(9,base)", "(1,A)"]])
def test_missing_rows_without_a_key_do_not_count_as_undone(warehouse: Warehouse, rows: list[str]) -> None:
    """Deleted rows cannot be told from changed ones."""
    warehouse.run("insert into plain values (9, 'base')")
    ours = warehouse.stage(warehouse.output("append", "plain"), [{"id": 1, "p": "a"}, {"id": 2, "p": "b"}])
    warehouse.publish(ours)
    warehouse.run("delete from plain")
    for row in rows:
        warehouse.run("insert into plain select r.* from (select (%s::text::plain).*) as r", row)
    with pytest.raises(UndoConflict, match=r"2 rows of public\.plain were changed or deleted after") as refused:
        warehouse.revert(ours)
    assert refused.value.report["rows"] == 2
    assert warehouse.rows("plain") == sorted(rows)
