"""Publications that an operator has reverted by hand: the sink keeps them as CLOSED."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_spark.sinks.sink import CommitConflict, UndoConflict
from tests.helpers.database_servers import DatabaseServer
from tests.integration.spark.sinks.postgresql.warehouse import Warehouse, open_warehouse


@pytest.fixture
def warehouse(server: DatabaseServer, tmp_path: Path) -> Warehouse:
    return open_warehouse(server, tmp_path)


def test_a_closed_overwrite_does_not_block_the_undo_of_an_earlier_one(warehouse: Warehouse) -> None:
    before = warehouse.rows()
    first = warehouse.stage(warehouse.output("overwrite"), [{"id": 5, "note": "first"}], saga="s1")
    warehouse.publish(first)
    between = warehouse.rows()
    second = warehouse.stage(warehouse.output("overwrite"), [{"id": 6, "note": "second"}], saga="s2")
    warehouse.publish(second)
    warehouse.run("delete from sales")
    warehouse.run("insert into sales (id, note) values (5, 'first')")
    assert warehouse.rows() == between
    with pytest.raises(UndoConflict, match="was overwritten by later publications: s2/facts"):
        warehouse.sink.revert([first], together=False)
    warehouse.sink.close(second)
    warehouse.sink.close(second)
    states = "select saga_id, state from saga_publication order by 1"
    assert warehouse.run(states) == [("s1", "PUBLISHED"), ("s2", "CLOSED")]
    warehouse.sink.revert([first], together=False)
    assert warehouse.rows() == before


def test_a_closed_publication_is_not_published_again(warehouse: Warehouse) -> None:
    ours = warehouse.stage(warehouse.output(), [{"id": 7}])
    warehouse.publish(ours)
    warehouse.run("delete from sales where id = 7")
    warehouse.sink.close(ours)
    later = warehouse.stage(warehouse.output(), [{"id": 7}], epoch=2)
    for publication in (ours, later):
        with pytest.raises(CommitConflict, match="was reverted concurrently"):
            warehouse.again(publication)
    assert warehouse.sink.find(ours.output, ours.tag.target) is None
    warehouse.sink.clean_up(ours)
    warehouse.sink.drop_undo_data(ours)
    assert len(warehouse.rows()) == 2
