"""The undo of a publication in a PostgreSQL table that a migration or a person has changed since."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from saga_spark.sinks.sink import UndoConflict
from tests.helpers.database_servers import DatabaseServer
from tests.integration.spark.sinks.postgresql.warehouse import MODES, OLD, Warehouse, open_warehouse, sale


@pytest.fixture
def warehouse(server: DatabaseServer, tmp_path: Path) -> Warehouse:
    return open_warehouse(server, tmp_path)


def test_an_undo_across_a_changed_table_is_refused(warehouse: Warehouse) -> None:
    ours = warehouse.stage(warehouse.output(), [sale(3)])
    warehouse.publish(ours)
    warehouse.run("alter table sales add more text")
    with pytest.raises(UndoConflict, match=r"columns of public\.sales .*: column more: added \(text\); change that"):
        warehouse.revert(ours)
    warehouse.run("alter table sales drop more, drop note")
    with pytest.raises(UndoConflict, match=r"column note: dropped \(text\)"):
        warehouse.revert(ours)


WIDER = {"amount": "numeric(20, 6)", "note": "varchar(80)", "day": "timestamp", "id": "numeric"}


@pytest.mark.sampled
@pytest.mark.parametrize("column", WIDER)
@pytest.mark.parametrize("mode", MODES)
def test_an_undo_after_a_column_was_widened_restores_the_values(warehouse: Warehouse, mode: str, column: str) -> None:
    more, rows, _ = MODES[mode]
    ours = warehouse.stage(warehouse.output(mode, **more), rows)
    warehouse.publish(ours)
    warehouse.run(f"alter table sales alter {column} type {WIDER[column]}")
    warehouse.revert(ours)
    assert warehouse.run("select id::bigint, day::date, amount::numeric(12, 2), note::text from sales order by 1") == [
        (1, date(2026, 1, 1), Decimal("1.50"), 'a, "b"'), (2, date(2026, 1, 2), Decimal("2.00"), None)
    ]  # fmt: skip


def test_an_undo_after_a_conversion_names_the_column_and_the_rows(warehouse: Warehouse) -> None:
    ours = warehouse.stage(warehouse.output("merge", key="id"), [sale(2, amount="9.99"), sale(3, amount="8.00")])
    warehouse.publish(ours)
    warehouse.run("alter table sales alter amount type numeric(12, 1)")
    text = r"1 row of public\.sales was changed .*column amount: numeric\(12,2\) → numeric\(12,1\)"
    with pytest.raises(UndoConflict, match=text) as refused:
        warehouse.revert(ours)
    assert refused.value.report["samples"] == [
        {"key": {"id": "2"}, "before": {"day": "2026-01-02", "amount": "2.00", "note": "null"},
         "now": {"day": "2026-01-03", "amount": "10.0", "note": "new"}}
    ]  # fmt: skip
    warehouse.run("alter table sales alter amount type numeric(12, 2)")
    warehouse.run("update sales set amount = 9.99 where id = 2")
    warehouse.revert(ours)
    assert warehouse.rows() == OLD


def test_an_undo_after_a_null_was_replaced_by_a_value_that_its_old_type_rounds(warehouse: Warehouse) -> None:
    ours = warehouse.stage(warehouse.output(), [sale(3), {**sale(4), "amount": None}])
    warehouse.publish(ours)
    warehouse.run("alter table sales alter amount type numeric(12, 4)")
    warehouse.run("update sales set amount = 0.001 where id = 4")
    with pytest.raises(UndoConflict, match="1 row of"):
        warehouse.revert(ours)


def test_an_undo_whose_old_rows_no_longer_fit_parks(warehouse: Warehouse) -> None:
    ours = warehouse.stage(warehouse.output("overwrite"), [sale(2, amount="7.00")])
    warehouse.publish(ours)
    warehouse.run("alter table sales alter amount type numeric(12, 0)")
    with pytest.raises(UndoConflict, match=r"1 row of .* was changed by the new type of a column when restored"):
        warehouse.revert(ours)
    assert warehouse.rows() == ["(2,2026-01-03,7,new)"]


@pytest.mark.sampled
@pytest.mark.parametrize("change", ["update sales set amount = 0 where id = {id}",
                                    "alter table sales add if not exists more text"])  # fmt: skip
@pytest.mark.parametrize("mode", MODES)
def test_the_sql_by_hand_restores_what_the_undo_would(warehouse: Warehouse, mode: str, change: str) -> None:
    more, rows, _ = MODES[mode]
    ours = warehouse.stage(warehouse.output(mode, **more), rows)
    warehouse.publish(ours)
    for row in rows:
        warehouse.run(change.format(**row))
    with pytest.raises(UndoConflict) as refused:
        warehouse.revert(ours)
    assert refused.value.by_hand is not None
    warehouse.run(refused.value.by_hand)
    warehouse.run("alter table sales drop column if exists more")
    assert warehouse.rows() == OLD
    done = warehouse.revert(ours)
    assert done.details["as_before"] > 0
    assert warehouse.rows() == OLD


TYPES = {"integer": pa.int32(), "numeric(3, 2)": pa.decimal128(3, 2), "real": pa.float32(), "date": pa.date32()}

BEYOND = {
    "a numeric": ("integer", "numeric", "3e9", "3000000000"),
    "a bigint": ("integer", "bigint", "3000000000", "3000000000"),
    "a double": ("integer", "double precision", "'Infinity'", "Infinity"),
    "a rounded numeric": ("numeric(3, 2)", "numeric(12, 4)", "9.996", "9.9960"),
    "a double for a real": ("real", "double precision", "1e39", "1" + 39 * "0"),
    "a text": ("date", "text", "'no day'", "no day"),
}


@pytest.mark.sampled(keep=3)
@pytest.mark.parametrize("name", BEYOND)
def test_a_value_that_the_old_type_cannot_hold_is_a_changed_row(warehouse: Warehouse, name: str) -> None:
    """The value's conversion to the old type, for the comparison, would be an error of the database."""
    old, new, value, shown = BEYOND[name]
    warehouse.run(f"create table wide (id int primary key, v {old})")
    rows = [{"id": 1, "v": date(2026, 1, 1) if old == "date" else 1}, {"id": 2, "v": None}]
    table = pa.Table.from_pylist(rows, pa.schema([("id", pa.int32()), ("v", TYPES[old])]))
    ours = warehouse.stage(warehouse.output("append", "wide"), table)
    warehouse.publish(ours)
    warehouse.run(f"alter table wide alter v type {new}")
    warehouse.run(f"update wide set v = {value} where id = 1")
    with pytest.raises(UndoConflict, match=r"^1 row of public\.wide was changed or deleted after the pub") as refused:
        warehouse.revert(ours)
    assert refused.value.report["samples"] == [{"key": {"id": "1"}, "before": None, "now": {"id": "1", "v": shown}}]
    warehouse.run("update wide set v = '2026-01-01'" if old == "date" else "update wide set v = 1")
    warehouse.run("update wide set v = null where id = 2")
    warehouse.revert(ours)
    assert warehouse.rows("wide") == []
