"""A PostgreSQL table as a sink: each mode, its undo to the exact rows, and what is refused before and after."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from saga_spark.job.job_spec import Output
from saga_spark.sinks.sink import CommitConflict, UndoConflict, validate_together
from sagas.errors import Rejected, UsageError
from tests.helpers.database_servers import DatabaseServer
from tests.integration.spark.sinks.postgresql.warehouse import Warehouse, open_warehouse


@pytest.fixture
def house(server: DatabaseServer, tmp_path: Path) -> Warehouse:
    return open_warehouse(server, tmp_path)


def sale(id: int, day: int = 3, amount: str = "9.99", note: str | None = "new") -> dict[str, Any]:
    return {"id": id, "day": date(2026, 1, day), "amount": Decimal(amount), "note": note}


OLD = ['(1,2026-01-01,1.50,"a, ""b""")', "(2,2026-01-02,2.00,)"]
MODES = {
    "append": ({}, [sale(3), sale(4, note=None)], [*OLD, "(3,2026-01-03,9.99,new)", "(4,2026-01-03,9.99,)"]),
    "overwrite": ({}, [sale(2), sale(3)], ["(2,2026-01-03,9.99,new)", "(3,2026-01-03,9.99,new)"]),
    "overwrite_where": ({"where": {"day": "2026-01-02"}}, [sale(5, 2)], [OLD[0], "(5,2026-01-02,9.99,new)"]),
    "merge": ({"key": "id"}, [sale(2), sale(3)], [OLD[0], "(2,2026-01-03,9.99,new)", "(3,2026-01-03,9.99,new)"]),
}


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_and_its_exact_undo(house: Warehouse, mode: str) -> None:
    more, rows, expected = MODES[mode]
    ours = house.stage(house.output(mode, **more), rows, files=2)
    house.sink.prepare(ours)
    assert house.rows() == OLD, "nothing is visible before"
    done = house.publish(ours)
    assert not done.adopted
    assert house.rows() == expected
    assert f"saga_stage_{ours.tag.target.name}-e1" not in house.tables()
    found = house.sink.find(ours.output, ours.tag.target)
    assert found is not None
    assert found.after == done.after
    assert house.again(ours).adopted
    assert house.rows() == expected
    for _ in range(2):
        house.unpublish(ours)
        assert house.rows() == OLD
    assert house.tables() == {"sales", "saga_publication"}
    assert house.sink.find(ours.output, ours.tag.target) is None
    with pytest.raises(CommitConflict, match="taken back"):
        house.again(ours)
    assert house.rows() == OLD
    house.publish(house.stage(house.output(mode, **more), rows, generation=2))
    assert house.rows() == expected


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("append", {}),
        ("overwrite", {}),
        ("overwrite_where", {"where": {"part": "b"}}),
        ("merge", {"key": "the %s"}),
    ],
)
def test_names_that_mean_something_to_the_driver_are_names(house: Warehouse, mode: str, more: dict[str, Any]) -> None:
    house.run('create table "rates%s" ("the %s" integer primary key, part text, "share%" integer)')
    house.run("insert into \"rates%s\" values (1, 'a', 10), (2, 'b', 20)")
    before = house.rows('"rates%s"')
    rows = [{"the %s": 2 if mode in ("merge", "overwrite_where") else 3, "part": "b", "share%": 30}]
    ours = house.stage(house.output(mode, '"rates%s"', **more), rows)
    house.publish(ours)
    assert len(house.rows('"rates%s"')) == {"append": 3, "overwrite": 1}.get(mode, 2)
    house.unpublish(ours)
    assert house.rows('"rates%s"') == before


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_table_without_a_key_is_restored_as_a_multiset(house: Warehouse, mode: str) -> None:
    house.run("create table log (line text, n integer)")
    house.run("insert into log values ('a', 1), ('a', 1), ('b', null)")
    before = house.rows("log")
    ours = house.stage(house.output(mode, "log"), [{"line": "a", "n": 1}, {"line": "a", "n": 1}, {"line": "c", "n": 2}])
    house.publish(ours)
    house.run("insert into log values ('others', 7)")
    house.unpublish(ours)
    assert house.rows("log") == sorted([*before, "(others,7)"])


def test_a_row_without_a_key_that_others_deleted_is_missed(house: Warehouse) -> None:
    house.run("create table log (line text)")
    ours = house.stage(house.output("append", "log"), [{"line": "a"}, {"line": "a"}])
    house.publish(ours)
    house.run("delete from log where ctid = (select min(ctid) from log)")
    with pytest.raises(UndoConflict, match="1 rows"):
        house.unpublish(ours)
    assert house.rows("log") == ["(a)"]


@pytest.mark.parametrize("mode", MODES)
def test_undo_refuses_where_others_changed_our_rows(house: Warehouse, mode: str) -> None:
    more, rows, _ = MODES[mode]
    ours = house.stage(house.output(mode, **more), rows)
    house.publish(ours)
    key = rows[0]["id"]
    house.run("update sales set amount = 0 where id = %s", key)
    before = house.rows()
    with pytest.raises(UndoConflict, match=r"1 rows of public\.sales") as refused:
        house.unpublish(ours)
    sample = refused.value.report["samples"][0]
    assert sample["key"] == {"id": key}
    assert sample["now"]["amount"] == 0
    assert house.rows() == before
    house.run("delete from sales where id = %s", key)
    with pytest.raises(UndoConflict) as refused:
        house.unpublish(ours)
    assert refused.value.report["samples"][0]["now"] is None
    house.run("insert into sales values (%s, %s, %s, %s)", key, rows[0]["day"], rows[0]["amount"], rows[0]["note"])
    house.unpublish(ours)
    assert house.rows() == OLD


@pytest.mark.parametrize("mode", MODES)
def test_undo_leaves_the_rows_of_others(house: Warehouse, mode: str) -> None:
    more, rows, _ = MODES[mode]
    ours = house.stage(house.output(mode, **more), rows)
    house.publish(ours)
    house.publish(house.stage(house.output(), [sale(90)], saga="other"))
    house.unpublish(ours)
    assert house.rows() == [*OLD, "(90,2026-01-03,9.99,new)"]


def test_what_an_overwrite_replaced_comes_back_only_where_nothing_stands(house: Warehouse) -> None:
    ours = house.stage(house.output("overwrite"), [sale(9)])
    house.publish(ours)
    house.run("insert into sales values (1, null, null, 'others')")
    before = house.rows()
    with pytest.raises(UndoConflict, match="cannot be brought back"):
        house.unpublish(ours)
    assert house.rows() == before


def test_an_overwrite_is_not_taken_back_beneath_another(house: Warehouse) -> None:
    empty = [sale(1)][:0]
    schema = house.stage(house.output(), [sale(1)]).manifest.schema
    ours = house.stage(house.output("overwrite"), empty, files=0, saga="a")
    ours.manifest.schema.update(schema)  # pyright: ignore
    house.publish(ours)
    later = house.stage(house.output("overwrite"), [sale(7)], saga="b")
    house.publish(later)
    with pytest.raises(UndoConflict, match="b/facts") as refused:
        house.unpublish(ours)
    assert refused.value.report["after"][0]["saga_id"] == "b"
    house.unpublish(later)
    house.unpublish(ours)
    assert house.rows() == OLD


def test_overwrites_of_different_parts_are_taken_back_alone(house: Warehouse) -> None:
    def part(day: int, id: int, saga: str) -> Any:
        return house.stage(
            house.output("overwrite_where", where={"day": f"2026-01-0{day}"}), [sale(id, day)], saga=saga
        )

    first, second, third = part(1, 11, "a"), part(2, 12, "b"), part(1, 13, "c")
    house.publish(first)
    house.publish(second)
    house.unpublish(first)
    assert house.rows() == [OLD[0], "(12,2026-01-02,9.99,new)"]
    again = part(1, 14, "d")
    house.publish(again)
    house.publish(third)
    with pytest.raises(UndoConflict, match="c/facts"):
        house.unpublish(again)


@pytest.mark.parametrize("mode", ["append", "overwrite", "overwrite_where", "merge"])
def test_a_missing_table_is_created_and_dropped_again(house: Warehouse, mode: str) -> None:
    more = {"overwrite_where": {"where": {"day": ["2026-01-03"]}}, "merge": {"key": "id"}}.get(mode, {})
    ours = house.stage(house.output(mode, "public.made", **more), [sale(3)])
    house.publish(ours)
    assert house.rows("made") == ["(3,2026-01-03,9.99,new)"]
    (primary,) = house.run("select count(*) from pg_index where indrelid = 'made'::regclass and indisprimary")
    assert primary == (1 if mode == "merge" else 0,)
    house.unpublish(ours)
    assert house.tables() == {"sales", "saga_publication"}


def test_a_created_table_that_others_use_stays(house: Warehouse) -> None:
    first = house.stage(house.output("append", "made"), [sale(3)], saga="a")
    second = house.stage(house.output("append", "made"), [sale(4)], saga="b")
    house.publish(first)
    house.publish(second)
    house.unpublish(first)
    assert house.rows("made") == ["(4,2026-01-03,9.99,new)"]
    house.unpublish(second)
    assert house.rows("made") == []


def test_together_is_one_transaction(house: Warehouse) -> None:
    house.run("create table totals (day date primary key check (day > '2026-01-02'), n bigint)")
    facts = house.stage(house.output(), [sale(3)], name="facts")
    totals = house.stage(house.output("append", "totals"), [{"day": date(2026, 1, 3), "n": 1}], name="totals")
    validate_together([facts.output, totals.output], house.settings)
    for one in (facts, totals):
        house.sink.prepare(one)
    house.run("insert into totals values ('2026-01-03', 0)")
    with pytest.raises(Rejected, match="duplicate key"):
        house.sink.publish([facts, totals], None, together=True)
    assert house.rows() == OLD
    house.run("delete from totals")
    house.sink.publish([facts, totals], None, together=True)
    assert len(house.rows()) == 3
    assert house.rows("totals") == ["(2026-01-03,1)"]
    house.run("update totals set n = 2")
    with pytest.raises(UndoConflict, match="totals"):
        house.sink.unpublish([facts, totals], together=True)
    assert len(house.rows()) == 3
    house.run("update totals set n = 1")
    house.sink.unpublish([facts, totals], together=True)
    assert (house.rows(), house.rows("totals")) == (OLD, [])


def test_another_manifest_under_our_key_is_not_adopted(house: Warehouse) -> None:
    house.publish(house.stage(house.output(), [sale(3)]))
    other = house.stage(house.output(), [sale(4)], epoch=2)
    house.sink.prepare(other)
    with pytest.raises(Rejected, match="another manifest"):
        house.again(other)


def test_a_stage_table_that_is_gone_or_not_ours_is_loaded_again(house: Warehouse) -> None:
    ours = house.stage(house.output(), [sale(3)])
    house.sink.prepare(ours)
    name = f'"saga_stage_{ours.tag.target.name}-e1"'
    house.run(f"delete from {name}; comment on table {name} is null")
    house.again(ours)
    assert house.rows() == [*OLD, "(3,2026-01-03,9.99,new)"]


def test_clean_leaves_nothing_and_stops_older_attempts(house: Warehouse) -> None:
    first, second = (house.stage(house.output(), [sale(epoch)], epoch=epoch) for epoch in (3, 4))
    for one in (first, second):
        house.sink.prepare(one)
    house.sink.clean_up(first)
    assert house.tables() == {"sales", "saga_publication"}
    with pytest.raises(CommitConflict, match="taken back"):
        house.again(first)
    house.publish(second)
    with pytest.raises(CommitConflict, match="not cleaned up"):
        house.sink.clean_up(second)
    assert house.rows() == [*OLD, "(4,2026-01-03,9.99,new)"]


def test_what_is_forgotten_stays(house: Warehouse) -> None:
    ours = house.stage(house.output(), [sale(3)])
    house.publish(ours)
    house.sink.drop_undo_data(ours)
    assert house.tables() == {"sales", "saga_publication"}
    with pytest.raises(UndoConflict, match="no longer kept"):
        house.unpublish(ours)


def test_an_undo_across_a_changed_table_is_refused(house: Warehouse) -> None:
    ours = house.stage(house.output(), [sale(3)])
    house.publish(ours)
    house.run("alter table sales add more text")
    with pytest.raises(UndoConflict, match=r"columns of public\.sales"):
        house.unpublish(ours)


def test_generated_and_identity_columns_and_triggers_are_restored(house: Warehouse) -> None:
    house.run("""
        create table orders (nr bigint generated always as identity primary key, ref text unique not null,
                             price numeric(8, 2), gross numeric generated always as (price * 1.19) stored,
                             changed integer not null default 1);
        create function touch() returns trigger language plpgsql as
            'begin new.changed := old.changed + 1; return new; end';
        create trigger touch before update on orders for each row when (old.price is distinct from new.price)
            execute function touch();
        insert into orders (ref, price) values ('a', 1), ('b', 2)""")
    before = house.rows("orders")
    rows = [{"ref": "b", "price": Decimal("3.00")}, {"ref": "c", "price": Decimal("4.00")}]
    merged = house.stage(house.output("merge", "orders", key=["ref"]), rows, saga="a")
    house.publish(merged)
    assert [[*row.split(",")[1:3], row[-2]] for row in house.rows("orders")] == [
        ["a", "1.00", "1"],
        ["b", "3.00", "2"],
        ["c", "4.00", "1"],
    ]
    with pytest.raises(UndoConflict, match="by a trigger"):  # it also runs when the old price is put back
        house.unpublish(merged)
    house.run("drop trigger touch on orders")
    house.unpublish(merged)
    assert house.rows("orders") == before
    replaced = house.stage(house.output("overwrite", "orders"), rows, saga="b")
    house.publish(replaced)
    house.unpublish(replaced)
    assert house.rows("orders") == before


def test_what_the_sink_cannot_do_is_refused(house: Warehouse) -> None:
    with pytest.raises(UsageError, match="no mode overwrite_partitions"):
        house.sink.validate(Output.parse("facts", house.output("overwrite_partitions")))
    with pytest.raises(UsageError, match="no SQL connection other"):
        house.sink.validate(Output.parse("facts", {"connection": "other", "table": "t"}))
    with pytest.raises(UsageError, match="not the name of a table"):
        house.sink.check(house.stage(house.output("append", "a b"), [sale(3)]))
    two = [Output.parse(name, {"connection": name, "table": "t"}) for name in ("a", "b")]
    with pytest.raises(UsageError, match="no single commit"):
        validate_together(two, house.settings)
