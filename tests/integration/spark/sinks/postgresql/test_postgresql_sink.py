"""A PostgreSQL table as a sink: each mode, its undo to the exact rows, and what is refused before and after."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from saga_spark.job.job_spec import Output
from saga_spark.sinks.postgresql.tables import describe_table
from saga_spark.sinks.postgresql.undo_images import may_overlap
from saga_spark.sinks.sink import CommitConflict, UndoConflict, validate_together
from sagas.errors import Rejected, UsageError
from tests.helpers.database_servers import DatabaseServer
from tests.integration.spark.sinks.postgresql.warehouse import MODES, OLD, Warehouse, open_warehouse, sale


@pytest.fixture
def warehouse(server: DatabaseServer, tmp_path: Path) -> Warehouse:
    return open_warehouse(server, tmp_path)


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_and_its_exact_undo(warehouse: Warehouse, mode: str) -> None:
    more, rows, expected = MODES[mode]
    ours = warehouse.stage(warehouse.output(mode, **more), rows, files=2)
    warehouse.sink.prepare(ours)
    assert warehouse.rows() == OLD, "nothing is visible before"
    done = warehouse.publish(ours)
    assert not done.adopted
    assert warehouse.rows() == expected
    assert f"saga_stage_{ours.tag.target.name}-e1" not in warehouse.tables()
    record = warehouse.sink.find(ours.output, ours.tag.target)
    assert record is not None
    assert record.after == done.after
    assert warehouse.again(ours).adopted
    assert warehouse.rows() == expected
    for _ in range(2):
        warehouse.revert(ours)
        assert warehouse.rows() == OLD
    assert warehouse.tables() == {"sales", "saga_publication"}
    assert warehouse.sink.find(ours.output, ours.tag.target) is None
    with pytest.raises(CommitConflict, match="reverted"):
        warehouse.again(ours)
    assert warehouse.rows() == OLD
    warehouse.publish(warehouse.stage(warehouse.output(mode, **more), rows, generation=2))
    assert warehouse.rows() == expected


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("append", {}),
        ("overwrite", {}),
        ("overwrite_where", {"where": {"part": "b"}}),
        ("merge", {"key": "the %s"}),
    ],
)
def test_names_with_driver_syntax_are_quoted(warehouse: Warehouse, mode: str, more: dict[str, Any]) -> None:
    warehouse.run('create table "rates%s" ("the %s" integer primary key, part text, "share%" integer)')
    warehouse.run("insert into \"rates%s\" values (1, 'a', 10), (2, 'b', 20)")
    before = warehouse.rows('"rates%s"')
    rows = [{"the %s": 2 if mode in ("merge", "overwrite_where") else 3, "part": "b", "share%": 30}]
    ours = warehouse.stage(warehouse.output(mode, '"rates%s"', **more), rows)
    warehouse.publish(ours)
    assert len(warehouse.rows('"rates%s"')) == {"append": 3, "overwrite": 1}.get(mode, 2)
    warehouse.revert(ours)
    assert warehouse.rows('"rates%s"') == before


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_table_without_a_key_is_restored_as_a_multiset(warehouse: Warehouse, mode: str) -> None:
    warehouse.run("create table log (line text, n integer)")
    warehouse.run("insert into log values ('a', 1), ('a', 1), ('b', null)")
    before = warehouse.rows("log")
    ours = warehouse.stage(
        warehouse.output(mode, "log"), [{"line": "a", "n": 1}, {"line": "a", "n": 1}, {"line": "c", "n": 2}]
    )
    warehouse.publish(ours)
    warehouse.run("insert into log values ('others', 7)")
    warehouse.revert(ours)
    assert warehouse.rows("log") == sorted([*before, "(others,7)"])


def test_a_deleted_row_without_a_key_is_reported_missing(warehouse: Warehouse) -> None:
    warehouse.run("create table log (line text)")
    ours = warehouse.stage(warehouse.output("append", "log"), [{"line": "a"}, {"line": "a"}])
    warehouse.publish(ours)
    warehouse.run("delete from log where ctid = (select min(ctid) from log)")
    with pytest.raises(UndoConflict, match=r"1 row of public\.log was"):
        warehouse.revert(ours)
    assert warehouse.rows("log") == ["(a)"]


def test_changed_rows_of_a_table_with_columns_b_and_t_are_reported(warehouse: Warehouse) -> None:
    warehouse.run("create table log (id text primary key, b text, t text)")
    warehouse.run("insert into log values ('x', 'b', 'old')")
    ours = warehouse.stage(warehouse.output("merge", "log", key="id"), [{"id": "x", "b": "b", "t": "new"}])
    warehouse.publish(ours)
    warehouse.run("update log set t = 'other'")
    with pytest.raises(UndoConflict, match=r"1 row of public\.log was changed") as refused:
        warehouse.revert(ours)
    [sample] = refused.value.report["samples"]
    assert (sample["before"], sample["now"]["t"]) == ({"t": "old"}, "other")


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("mode", MODES)
def test_undo_of_rows_changed_by_others_is_refused(warehouse: Warehouse, mode: str) -> None:
    more, rows, _ = MODES[mode]
    ours = warehouse.stage(warehouse.output(mode, **more), rows)
    warehouse.publish(ours)
    key = rows[0]["id"]
    warehouse.run("update sales set amount = 0 where id = %s", key)
    before = warehouse.rows()
    with pytest.raises(UndoConflict, match=r"1 row of public\.sales was changed") as refused:
        warehouse.revert(ours)
    sample = refused.value.report["samples"][0]
    assert sample["key"] == {"id": str(key)}
    assert sample["now"]["amount"] in ("0", "0.00")
    assert (sample["before"] is not None) == (key == 2), "the row that the publication has replaced"
    assert warehouse.rows() == before
    warehouse.run("delete from sales where id = %s", key)
    if key == 2:  # another key was not there before
        with pytest.raises(UndoConflict) as refused:
            warehouse.revert(ours)
        assert refused.value.report["samples"][0]["now"] is None
        day, amount, note = (rows[0][name] for name in ("day", "amount", "note"))
        warehouse.run("insert into sales values (%s, %s, %s, %s)", key, day, amount, note)
    warehouse.revert(ours)
    assert warehouse.rows() == OLD


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("mode", MODES)
def test_rows_that_were_restored_by_hand_count_as_undone(warehouse: Warehouse, mode: str) -> None:
    more, rows, _ = MODES[mode]
    ours = warehouse.stage(warehouse.output(mode, **more), rows)
    warehouse.publish(ours)
    warehouse.run("insert into sales values (90, null, 1, 'others')")
    first = rows[0]["id"]
    warehouse.run("delete from sales where id = %s", first)
    if first == 2:
        warehouse.run("insert into sales values (2, '2026-01-02', 2.00, null)")
    done = warehouse.revert(ours)
    assert done.details["as_before"] == 1
    assert warehouse.rows() == [*OLD, "(90,,1.00,others)"]


@pytest.mark.parametrize(("mode", "rows"), [("append", []), ("overwrite", ["old", "old"])])
def test_rows_without_a_key_count_as_undone_if_the_whole_table_is_restored(
    warehouse: Warehouse, mode: str, rows: list[str]
) -> None:
    warehouse.run("create table log (line text)")
    warehouse.run("insert into log values ('old'), ('old')")
    ours = warehouse.stage(warehouse.output(mode, "log"), [{"line": "new"}, {"line": "new"}])
    warehouse.publish(ours)
    warehouse.run("delete from log")
    warehouse.run("insert into log select unnest(%s::text[])", [*rows, "others"])
    with pytest.raises(UndoConflict, match=r"2 rows of public\.log were"):
        warehouse.revert(ours)
    warehouse.run("delete from log where line = 'others'")
    assert warehouse.revert(ours).details["as_before"] == 2 + len(rows)
    assert warehouse.rows("log") == [f"({row})" for row in rows]


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("mode", MODES)
def test_undo_keeps_the_rows_of_others(warehouse: Warehouse, mode: str) -> None:
    more, rows, _ = MODES[mode]
    ours = warehouse.stage(warehouse.output(mode, **more), rows)
    warehouse.publish(ours)
    warehouse.publish(warehouse.stage(warehouse.output(), [sale(90)], saga="other"))
    warehouse.revert(ours)
    assert warehouse.rows() == [*OLD, "(90,2026-01-03,9.99,new)"]


def test_replaced_rows_are_restored_only_where_the_key_is_free(warehouse: Warehouse) -> None:
    ours = warehouse.stage(warehouse.output("overwrite"), [sale(9)])
    warehouse.publish(ours)
    warehouse.run("insert into sales values (1, null, null, 'others')")
    before = warehouse.rows()
    with pytest.raises(UndoConflict, match="cannot be undone"):
        warehouse.revert(ours)
    assert warehouse.rows() == before


def test_an_overwrite_below_another_is_not_reverted(warehouse: Warehouse) -> None:
    empty = [sale(1)][:0]
    schema = warehouse.stage(warehouse.output(), [sale(1)]).manifest.schema
    ours = warehouse.stage(warehouse.output("overwrite"), empty, files=0, saga="a")
    ours.manifest.schema.update(schema)  # pyright: ignore
    warehouse.publish(ours)
    later = warehouse.stage(warehouse.output("overwrite"), [sale(7)], saga="b")
    warehouse.publish(later)
    with pytest.raises(UndoConflict, match="b/facts") as refused:
        warehouse.revert(ours)
    assert refused.value.report["after"][0]["saga_id"] == "b"
    warehouse.revert(later)
    warehouse.revert(ours)
    assert warehouse.rows() == OLD


def test_overwrites_of_different_partitions_are_reverted_independently(warehouse: Warehouse) -> None:
    def part(day: int, id: int, saga: str) -> Any:
        return warehouse.stage(
            warehouse.output("overwrite_where", where={"day": f"2026-01-0{day}"}), [sale(id, day)], saga=saga
        )

    first, second, third = part(1, 11, "a"), part(2, 12, "b"), part(1, 13, "c")
    warehouse.publish(first)
    warehouse.publish(second)
    warehouse.revert(first)
    assert warehouse.rows() == [OLD[0], "(12,2026-01-02,9.99,new)"]
    again = part(1, 14, "d")
    warehouse.publish(again)
    warehouse.publish(third)
    with pytest.raises(UndoConflict, match="c/facts"):
        warehouse.revert(again)


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("mode", ["append", "overwrite", "overwrite_where", "merge"])
def test_a_missing_table_is_created_and_dropped_again(warehouse: Warehouse, mode: str) -> None:
    more = {"overwrite_where": {"where": {"day": ["2026-01-03"]}}, "merge": {"key": "id"}}.get(mode, {})
    ours = warehouse.stage(warehouse.output(mode, "public.made", **more), [sale(3)])
    warehouse.publish(ours)
    assert warehouse.rows("made") == ["(3,2026-01-03,9.99,new)"]
    (primary,) = warehouse.run("select count(*) from pg_index where indrelid = 'made'::regclass and indisprimary")
    assert primary == (1 if mode == "merge" else 0,)
    warehouse.revert(ours)
    assert warehouse.tables() == {"sales", "saga_publication"}


def test_a_created_table_used_by_others_is_kept(warehouse: Warehouse) -> None:
    first = warehouse.stage(warehouse.output("append", "made"), [sale(3)], saga="a")
    second = warehouse.stage(warehouse.output("append", "made"), [sale(4)], saga="b")
    warehouse.publish(first)
    warehouse.publish(second)
    warehouse.revert(first)
    assert warehouse.rows("made") == ["(4,2026-01-03,9.99,new)"]
    warehouse.revert(second)
    assert warehouse.rows("made") == []


def test_together_is_one_transaction(warehouse: Warehouse) -> None:
    warehouse.run("create table totals (day date primary key check (day > '2026-01-02'), n bigint)")
    facts = warehouse.stage(warehouse.output(), [sale(3)], name="facts")
    totals = warehouse.stage(warehouse.output("append", "totals"), [{"day": date(2026, 1, 3), "n": 1}], name="totals")
    validate_together([facts.output, totals.output], warehouse.settings)
    for publication in (facts, totals):
        warehouse.sink.prepare(publication)
    warehouse.run("insert into totals values ('2026-01-03', 0)")
    with pytest.raises(Rejected, match="duplicate key"):
        warehouse.sink.publish([facts, totals], None, together=True)
    assert warehouse.rows() == OLD
    warehouse.run("delete from totals")
    warehouse.sink.publish([facts, totals], None, together=True)
    assert len(warehouse.rows()) == 3
    assert warehouse.rows("totals") == ["(2026-01-03,1)"]
    warehouse.run("update totals set n = 2")
    with pytest.raises(UndoConflict, match="totals"):
        warehouse.sink.revert([facts, totals], together=True)
    assert len(warehouse.rows()) == 3
    warehouse.run("update totals set n = 1")
    warehouse.sink.revert([facts, totals], together=True)
    assert (warehouse.rows(), warehouse.rows("totals")) == (OLD, [])


def test_another_manifest_under_our_key_is_not_adopted(warehouse: Warehouse) -> None:
    warehouse.publish(warehouse.stage(warehouse.output(), [sale(3)]))
    other = warehouse.stage(warehouse.output(), [sale(4)], epoch=2)
    warehouse.sink.prepare(other)
    with pytest.raises(Rejected, match="another manifest"):
        warehouse.again(other)


def test_a_missing_or_foreign_stage_table_is_loaded_again(warehouse: Warehouse) -> None:
    ours = warehouse.stage(warehouse.output(), [sale(3)])
    warehouse.sink.prepare(ours)
    name = f'"saga_stage_{ours.tag.target.name}-e1"'
    warehouse.run(f"delete from {name}; comment on table {name} is null")
    warehouse.again(ours)
    assert warehouse.rows() == [*OLD, "(3,2026-01-03,9.99,new)"]


def test_clean_leaves_nothing_and_stops_older_attempts(warehouse: Warehouse) -> None:
    first, second = (warehouse.stage(warehouse.output(), [sale(epoch)], epoch=epoch) for epoch in (3, 4))
    for publication in (first, second):
        warehouse.sink.prepare(publication)
    warehouse.sink.clean_up(first)
    assert warehouse.tables() == {"sales", "saga_publication"}
    with pytest.raises(CommitConflict, match="reverted"):
        warehouse.again(first)
    warehouse.publish(second)
    with pytest.raises(CommitConflict, match="before its clean-up"):
        warehouse.sink.clean_up(second)
    assert warehouse.rows() == [*OLD, "(4,2026-01-03,9.99,new)"]


def test_an_undo_without_undo_data_is_refused(warehouse: Warehouse) -> None:
    ours = warehouse.stage(warehouse.output(), [sale(3)])
    warehouse.publish(ours)
    warehouse.sink.drop_undo_data(ours)
    assert warehouse.tables() == {"sales", "saga_publication"}
    with pytest.raises(UndoConflict, match="no longer kept"):
        warehouse.revert(ours)


def test_one_table_has_one_name_in_the_publications(warehouse: Warehouse) -> None:
    published, discarded = (warehouse.stage(warehouse.output(), [sale(id)], saga=f"s{id}") for id in (3, 4))
    warehouse.publish(published)
    warehouse.sink.prepare(discarded)
    warehouse.sink.clean_up(discarded)
    warehouse.revert(warehouse.stage(warehouse.output(), [sale(5)], saga="s5"))
    assert warehouse.run("select distinct target from saga_publication") == [("public.sales",)]


def test_generated_and_identity_columns_and_triggers_are_restored(warehouse: Warehouse) -> None:
    warehouse.run("""
        create table orders (nr bigint generated always as identity primary key, ref text unique not null,
                             price numeric(8, 2), gross numeric generated always as (price * 1.19) stored,
                             changed integer not null default 1);
        create function touch() returns trigger language plpgsql as
            'begin new.changed := old.changed + 1; return new; end';
        insert into orders (ref, price) values ('a', 1), ('b', 2)""")
    touch = """create trigger touch before update on orders for each row when (old.price is distinct from new.price)
            execute function touch()"""
    before = warehouse.rows("orders")
    rows = [{"ref": "b", "price": Decimal("3.00")}, {"ref": "c", "price": Decimal("4.00")}]
    merged = warehouse.stage(warehouse.output("merge", "orders", key=["ref"]), rows, saga="a")
    warehouse.publish(merged)
    assert [row.split(",")[1:3] for row in warehouse.rows("orders")] == [["a", "1.00"], ["b", "3.00"], ["c", "4.00"]]
    warehouse.run(touch)
    with pytest.raises(UndoConflict, match="by a trigger"):  # it also runs when the old price is put back
        warehouse.revert(merged)
    warehouse.run("drop trigger touch on orders")
    warehouse.revert(merged)
    assert warehouse.rows("orders") == before
    replaced = warehouse.stage(warehouse.output("overwrite", "orders"), rows, saga="b")
    warehouse.publish(replaced)
    warehouse.revert(replaced)
    assert warehouse.rows("orders") == before


def test_an_overlap_of_conditions_is_decided_by_the_database(warehouse: Warehouse) -> None:
    """Values may be equal and written differently, or written alike and differ."""
    warehouse.run("create table kinds (n numeric, d date, t timestamptz, x text, c char(3), b boolean)")
    with psycopg.connect(warehouse.url) as connection:
        table = describe_table(connection, "kinds")
        for left, right, overlap in OVERLAPS:
            assert may_overlap(connection, table, left, right) == overlap, (left, right)
            assert may_overlap(connection, table, right, left) == overlap, (left, right)


OVERLAPS: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({"n": Decimal("1.0")}, {"n": 1}, True),
    ({"n": [Decimal("1.10"), 7]}, {"n": ["1.1"]}, True),
    ({"n": "NaN"}, {"n": "nan"}, True),
    ({"n": 1}, {"n": [2, None]}, False),
    ({"n": None}, {"n": [2, None]}, True),
    ({"n": []}, {"n": 1}, False),
    ({"d": "2026-01-02"}, {"d": "20260102"}, True),
    ({"t": "2026-10-25T00:30:00Z"}, {"t": "2026-10-25 02:30+02"}, True),
    ({"t": "2026-10-25T00:30:00Z"}, {"t": "2026-10-25 02:30+01"}, False),
    ({"t": "2026-10-25 00:30"}, {"t": "2026-10-25 00:30Z"}, True),
    ({"x": None}, {"x": "None"}, False),
    ({"x": "A"}, {"x": "a"}, False),
    ({"x": True}, {"x": "true"}, True),
    ({"c": "a"}, {"c": "a  "}, True),
    ({"x": "a"}, {"x": "a  "}, False),
    ({"b": True}, {"b": "t"}, True),
    ({"n": 1}, {"x": "a"}, True),
    ({"n": 1, "x": "a"}, {"n": Decimal("1.0"), "x": "b"}, False),
]


def test_the_hash_of_a_row_does_not_depend_on_the_settings_of_a_role(warehouse: Warehouse) -> None:
    warehouse.run("""create table readings (id int primary key, f float8, i interval, raw bytea, at timestamptz,
                                            m money);
                     insert into readings values (1, 0.1, '1 day', 'ab', '2026-10-25 00:30+00', 1.5)""")
    before = warehouse.rows("readings")
    ours = warehouse.stage(warehouse.output("merge", "readings", key="id"), [{"id": 1, "f": 0.30000000000000004}])
    warehouse.publish(ours)
    for setting in ("extra_float_digits = -15", "timezone = 'Asia/Tokyo'", "datestyle = 'German'",
                    "intervalstyle = 'iso_8601'", "bytea_output = 'escape'", "lc_monetary = 'C.UTF-8'"):  # fmt: skip
        warehouse.run(f"alter role current_user set {setting}")
    try:
        warehouse.run("update readings set f = 0.3")
        with pytest.raises(UndoConflict, match="1 row of"):
            warehouse.revert(ours)
        warehouse.run("update readings set f = 0.30000000000000004")
        warehouse.revert(ours)
    finally:
        warehouse.run("alter role current_user reset all")
    assert warehouse.rows("readings") == before


def test_rows_of_others_that_refer_to_published_rows_are_not_deleted(warehouse: Warehouse) -> None:
    """ON DELETE CASCADE or SET NULL would delete or change them with the rows that an undo deletes."""
    for action in ("cascade", "set null"):
        warehouse.run("drop table if exists refund")
        warehouse.run(f"""create table refund (id int, sale bigint references sales on delete {action},
                                               again bigint references sales)""")
        ours = warehouse.stage(warehouse.output(), [sale(8), sale(9)], saga=action.replace(" ", "-"))
        warehouse.publish(ours)
        warehouse.run("insert into refund values (1, 1, null), (2, 9, null)")
        before = warehouse.rows(), warehouse.rows("refund")
        with pytest.raises(UndoConflict, match=r"1 row of refund refers to rows of .* that the undo deletes"):
            warehouse.revert(ours)
        assert (warehouse.rows(), warehouse.rows("refund")) == before
        warehouse.run("delete from refund where id = 2")
        warehouse.revert(ours)
        assert (warehouse.rows(), warehouse.rows("refund")) == (OLD, ["(1,1,)"])


@pytest.mark.parametrize(
    "foreign_key",
    [
        "references sales",
        "references sales deferrable initially deferred",
    ],
)
def test_rows_that_must_keep_their_parents_are_named(warehouse: Warehouse, foreign_key: str) -> None:
    warehouse.run(f"create table refund (id int, sale bigint {foreign_key})")
    ours = warehouse.stage(warehouse.output(), [sale(8)])
    warehouse.publish(ours)
    warehouse.run("insert into refund values (1, 8)")
    with pytest.raises(
        UndoConflict, match=r"the publication to public\.sales cannot be undone: .*foreign key"
    ) as refused:
        warehouse.revert(ours)
    assert refused.value.report["constraint"] == "refund_sale_fkey"
    assert len(warehouse.rows()) == 3


def test_a_partition_that_others_refer_to(warehouse: Warehouse) -> None:
    warehouse.run("""create table parts (id int primary key) partition by range (id);
        create table low partition of parts for values from (0) to (10);
        create table child (id int references low on delete cascade)""")
    ours = warehouse.stage(warehouse.output("append", "parts"), [{"id": 1}, {"id": 2}])
    warehouse.publish(ours)
    warehouse.run("insert into child values (2)")
    with pytest.raises(UndoConflict, match=r"1 row of child refers to rows of public\.parts"):
        warehouse.revert(ours)
    assert (warehouse.rows("parts"), warehouse.rows("child")) == (["(1)", "(2)"], ["(2)"])


@pytest.mark.parametrize("key", ["primary key", "unique"])
def test_a_tree_of_published_rows_is_deleted_as_a_whole(warehouse: Warehouse, key: str) -> None:
    warehouse.run(f"create table tree (id int {key}, up int references tree (id) on delete cascade)")
    ours = warehouse.stage(warehouse.output("append", "tree"), [{"id": 1, "up": None}, {"id": 2, "up": 1}])
    warehouse.publish(ours)
    warehouse.run("insert into tree values (3, 2)")
    with pytest.raises(UndoConflict, match=r"1 row of tree refers to rows of .*tree"):
        warehouse.revert(ours)
    warehouse.run("delete from tree where id = 3")
    warehouse.revert(ours)
    assert warehouse.rows("tree") == []


def test_unsupported_options_are_refused(warehouse: Warehouse) -> None:
    with pytest.raises(UsageError, match="does not support the mode overwrite_partitions"):
        warehouse.sink.validate(Output.parse("facts", warehouse.output("overwrite_partitions")))
    with pytest.raises(UsageError, match="the SQL connection other is not configured"):
        warehouse.sink.validate(Output.parse("facts", {"connection": "other", "table": "t"}))
    with pytest.raises(UsageError, match="not a table name"):
        warehouse.sink.check(warehouse.stage(warehouse.output("append", "a b"), [sale(3)]))
    two = [Output.parse(name, {"connection": name, "table": "t"}) for name in ("a", "b")]
    with pytest.raises(UsageError, match="no single commit"):
        validate_together(two, warehouse.settings)
