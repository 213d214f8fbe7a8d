"""Everything that could refuse a publication into a PostgreSQL table is reported before the commit point."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import conninfo, sql

from saga_spark.inputs.postgresql_input import input_query
from saga_spark.job.job_spec import Output
from saga_spark.manifest import ManifestColumn
from saga_spark.sinks.postgresql import postgresql_sink
from saga_spark.sinks.postgresql.postgresql_sink import PostgreSqlSink
from saga_spark.sinks.postgresql.where_clause import where_clause
from saga_spark.sinks.sink import CommitConflict
from sagas.builtins.spark import PUBLISH_TIMEOUT
from sagas.errors import InfrastructureError, Rejected, UsageError
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.free_ports import free_port
from tests.integration.spark.sinks.postgresql.warehouse import Warehouse, open_warehouse


@pytest.fixture
def warehouse(server: DatabaseServer, tmp_path: Path) -> Warehouse:
    return open_warehouse(server, tmp_path)


def problems(warehouse: Warehouse, output: dict[str, Any], **columns: Any) -> list[str]:
    return warehouse.sink.check(warehouse.stage(output, pa.table({name: [value] for name, value in columns.items()})))


def test_incompatible_columns_are_reported(warehouse: Warehouse) -> None:
    warehouse.run("delete from sales; alter table sales add shop integer not null")
    warehouse.run("alter table sales add twice bigint generated always as (id * 2) stored")
    assert problems(warehouse, warehouse.output(), id="x", more=1, twice=1) == [
        "the column id: string does not fit bigint",
        "public.sales has no column more",
        "the column twice of public.sales is computed by the database and cannot be written",
        "the column shop of public.sales is NOT NULL, but the output has no such column",
    ]


def test_nulls_that_were_counted_in_the_write_pass(warehouse: Warehouse) -> None:
    ours = warehouse.stage(warehouse.output(), [{"id": 1}])
    ours = replace(ours, manifest=replace(ours.manifest, columns=(ManifestColumn("id", "long", nulls=2),)))
    assert warehouse.sink.check(ours) == ["the column id of public.sales is NOT NULL, but 2 rows have no value"]


def test_keys_and_conditions_are_checked(warehouse: Warehouse) -> None:
    assert problems(warehouse, warehouse.output("merge", key="note"), id=1, note="x") == [
        "public.sales has no unique index on note, which the mode merge needs"
    ]
    assert problems(warehouse, warehouse.output("merge", key="id"), note="x") == [
        "the column id of public.sales is NOT NULL, but the output has no such column",
        "the output has no column id, which `key` names",
    ]
    assert problems(warehouse, warehouse.output("overwrite_where", where={"region": 1, "day": "2026-01-01"}), id=1) == [
        "public.sales has no column region, which `where` names",
        "the output has no column day, which `where` names",
    ]


def test_a_condition_on_floats_covers_no_row_with_another_number(warehouse: Warehouse) -> None:
    warehouse.run("alter table sales add small real, add rate float8")
    where = {"small": [Decimal("0.1"), 16777217, None], "rate": "9007199254740993"}
    output = warehouse.output("overwrite_where", where=where)
    assert problems(warehouse, output, id=1, rate=0.5) == [
        "the output has no column small, which `where` names",
        "the column small of public.sales is real and cannot be 16777217",
        "the column rate of public.sales is double precision and cannot be 9007199254740993",
    ]


def test_referenced_rows_are_not_replaced(warehouse: Warehouse) -> None:
    warehouse.run("create table refund (id bigint, sale bigint references sales)")
    assert problems(warehouse, warehouse.output("overwrite"), id=1) == [
        "refund references public.sales, so its rows cannot be replaced; use merge or append"
    ]
    assert problems(warehouse, warehouse.output("append"), id=1) == []


def test_a_merge_does_not_change_keys_that_rows_of_others_would_forget(warehouse: Warehouse) -> None:
    warehouse.run("""alter table sales add unique (note);
                     create table refund (id bigint, note text references sales (note) on update set null)""")
    output = warehouse.output("merge", key="id")
    assert problems(warehouse, output, id=1, amount=Decimal(1)) == []
    assert problems(warehouse, output, id=1, note="x") == [
        "refund loses its references to note of public.sales when a merge changes them (SET NULL or SET DEFAULT), and "
        "an undo could not restore them; use ON UPDATE CASCADE, or leave the columns out"
    ]


def test_something_other_than_a_table_is_refused(warehouse: Warehouse) -> None:
    warehouse.run("create view seen as select * from sales")
    assert problems(warehouse, warehouse.output(table="seen"), id=1) == ["public.seen is not a table"]
    assert problems(warehouse, warehouse.output(table="nowhere.sales"), id=1) == [
        "the schema nowhere for the new table sales does not exist"
    ]


def as_user(warehouse: Warehouse, name: str, grants: str) -> Warehouse:
    warehouse.run(f"create role {name} login; {grants}")
    url = warehouse.url.replace("saga@", f"{name}@")
    settings = warehouse.settings.model_copy(update={"connections": {"shop": url}})
    return Warehouse(settings, url, PostgreSqlSink(settings))


@pytest.fixture
def user(warehouse: Warehouse) -> str:
    return f"u{conninfo.conninfo_to_dict(warehouse.url)['dbname']}"


def test_permissions(warehouse: Warehouse, user: str) -> None:
    reader = as_user(warehouse, user, f"grant select on sales to {user}")
    assert problems(reader, warehouse.output("merge", key="id"), id=1) == [
        f"{user} may not create stage tables in the schema public; grant create",
        *[f"{user} has no {name} permission on public.sales" for name in ("insert", "delete", "update")],
    ]
    assert f"the table public.more does not exist, and {user} may not create it" in problems(
        reader, warehouse.output(table="more"), id=1
    )
    ours = reader.stage(warehouse.output(), [{"id": 7}])
    with pytest.raises(Rejected, match="permission denied"):
        reader.sink.prepare(ours)


def test_the_required_permissions_are_sufficient(warehouse: Warehouse, user: str) -> None:
    grants = f"grant select, insert, delete on sales to {user}; grant create on schema public to {user}"
    writer = as_user(warehouse, user, grants)
    before = warehouse.rows()
    ours = writer.stage(warehouse.output("overwrite"), [{"id": 7}])
    writer.publish(ours)
    writer.revert(ours)
    assert warehouse.rows() == before


def test_a_permission_revoked_before_publishing_gives_a_one_line_error(warehouse: Warehouse, user: str) -> None:
    grants = f"grant select, insert, delete on sales to {user}; grant create on schema public to {user}"
    writer = as_user(warehouse, user, grants)
    ours = writer.stage(warehouse.output(), [{"id": 7}])
    writer.sink.prepare(ours)
    warehouse.run(f"revoke insert on sales from {user}")
    with pytest.raises(Rejected, match=r"has no insert permission on public\.sales"):
        writer.again(ours)
    assert writer.sink.find(ours.output, ours.tag.target) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("alter table sales alter amount type numeric(12, 1)", "rounded away"),
        ("alter table sales drop note", "no column note"),
        ("drop table sales; create view sales as select 1 as id", "not a table"),
    ],
)
def test_a_table_altered_before_publishing_gives_a_one_line_error(
    warehouse: Warehouse, change: str, message: str
) -> None:
    ours = warehouse.stage(warehouse.output(), [{"id": 7, "amount": Decimal("1.25"), "note": "x"}])
    warehouse.sink.prepare(ours)
    warehouse.run(change)
    with pytest.raises(Rejected, match=message):
        warehouse.again(ours)
    assert warehouse.sink.find(ours.output, ours.tag.target) is None


LONG = "ü" * 32


def test_names_that_postgresql_would_cut_off_are_refused(warehouse: Warehouse) -> None:
    """The first append would create a table with other names, and every later one would be refused."""
    warehouse.run(f'create table "{LONG[:31]}" (id bigint)')
    new = warehouse.output(table="facts")
    assert problems(warehouse, new, **{"x" * 80: 1}) == [
        f"the column name {'x' * 80} has 80 bytes, and PostgreSQL holds 63; shorten it"
    ]
    assert problems(warehouse, new, **{LONG: 1}) == [
        f"the column name {LONG} has 64 bytes, and PostgreSQL holds 63; shorten it"
    ]
    assert problems(warehouse, new, ctid=1) == [
        "the column ctid has the name of a system column of PostgreSQL; rename it"
    ]
    warehouse.publish(warehouse.stage(new, [{"x" * 63: 1}]))
    warehouse.publish(warehouse.stage(new, [{"x" * 63: 2}], saga="later"))
    assert warehouse.rows("facts") == ["(1)", "(2)"]
    for table in (f'"{LONG}"', f"public.{'t' * 64}", f'{"s" * 64}."t"'):
        output = Output.parse("output", warehouse.output(table=table))
        with pytest.raises(UsageError, match="has 64 bytes, and PostgreSQL holds 63; shorten it"):
            warehouse.sink.validate(output)
        with pytest.raises(UsageError, match="has 64 bytes"):
            input_query({"table": table})


def test_row_security(warehouse: Warehouse, user: str) -> None:
    warehouse.run("alter table sales enable row level security")
    writer = as_user(warehouse, user, f"grant all on sales to {user}; grant create on schema public to {user}")
    assert "row security hides rows" in problems(writer, warehouse.output(), id=1)[0]


ROWS = {
    "a key that is there": ("append", {}, [{"id": 1}], "1 value of id already exists in public.sales"),
    "a key twice": ("overwrite", {}, [{"id": 5}, {"id": 5}], "1 value of id occurs more than once"),
    "a merge key twice": ("merge", {"key": "id"}, [{"id": 5}, {"id": 5}], "1 value of id occurs more than once"),
    "rows outside the part": (
        "overwrite_where",
        {"where": {"day": "2026-01-02"}},
        [{"id": 5, "day": date(2026, 1, 2)}, {"id": 6, "day": date(2026, 1, 3)}, {"id": 7, "day": None}],
        "2 rows are outside of the range `where`",
    ),
    "a key of another part": (
        "overwrite_where",
        {"where": {"day": "2026-01-02"}},
        [{"id": 1, "day": date(2026, 1, 2)}, {"id": 2, "day": date(2026, 1, 2)}],
        "1 value of id already exists in public.sales",
    ),
    "another unique column": ("merge", {"key": "id"}, [{"id": 5, "note": 'a, "b"'}], "value of note already exists"),
    "an orphan": (
        "append",
        {},
        [{"id": 5, "shop": 3}, {"id": 6, "shop": 1}, {"id": 7, "shop": None}],
        "1 row references no row of shop",
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows_that_violate_constraints_are_reported(warehouse: Warehouse, case: str) -> None:
    mode, more, rows, printed = ROWS[case]
    warehouse.run("""create table shop (id bigint primary key); insert into shop values (1);
                 alter table sales add shop bigint references shop, add unique (note)""")
    ours = warehouse.stage(warehouse.output(mode, **more), rows)
    assert warehouse.sink.check(ours) == []
    before = warehouse.tables()
    with pytest.raises(Rejected, match="does not accept the rows") as refused:
        warehouse.sink.prepare(ours)
    assert printed in str(refused.value)
    assert warehouse.tables() == before


def test_a_merge_without_a_key_value(warehouse: Warehouse) -> None:
    warehouse.run("alter table sales add unique (note)")
    with pytest.raises(Rejected, match="1 row has no note"):
        warehouse.sink.prepare(
            warehouse.stage(
                warehouse.output("merge", key="note"), pa.table({"id": [8], "note": pa.array([None], pa.string())})
            )
        )


TRIGGER = """create function act() returns trigger language plpgsql as 'begin {body} end';
             create trigger act {event} on sales for each row execute function act()"""
REHEARSED = {
    "a trigger that skips": ("append", TRIGGER.format(body="return null;", event="before insert"), "act .* skips 1"),
    "a trigger that skips a merge": (
        "merge",
        TRIGGER.format(body="return null;", event="before insert"),
        "act .* skips 1 row",
    ),
    "a trigger that changes": (
        "append",
        TRIGGER.format(body="new.amount = 0; return new;", event="before insert"),
        "act of public.sales changes 1 row",
    ),
    "a trigger that keeps": (
        "overwrite",
        TRIGGER.format(body="return null;", event="before delete"),
        "act of public.sales keeps 2 rows",
    ),
    "a trigger that raises": (
        "append",
        TRIGGER.format(body="raise exception ''no such shop''; ", event="after insert"),
        "public.sales does not accept the rows: no such shop",
    ),
    "a deferred trigger": (
        "append",
        TRIGGER.format(body="raise exception ''not balanced'';", event="after insert").replace(
            "create trigger act after insert on sales",
            "create constraint trigger act after insert on sales deferrable initially deferred",
        ),
        "not balanced",
    ),
    "a partial unique index": (
        "append",
        "create unique index only_one on sales ((amount is not null)) where id > 1",
        "duplicate key value violates unique constraint .only_one",
    ),
    "an exclusion constraint": (
        "append",
        "alter table sales add exclude using btree ((amount > 0) with =) where (id > 1)",
        "exclusion constraint",
    ),
    "a check with a column of its own default": (
        "append",
        "alter table sales add shop int default 0; alter table sales add check (shop > id) not valid",
        "violates check constraint",
    ),
    "a computed column": (
        "append",
        "alter table sales add share int generated always as (1 / (id - 8)) stored",
        "division by zero",
    ),
    "a trigger that keeps what the undo deletes": (
        "append",
        TRIGGER.format(body="if old.id = 8 then return null; end if; return old;", event="before delete"),
        "publication to public.sales could not be undone: 1 row of public.sales was kept by a trigger",
    ),
    "a trigger that forbids deletes": (
        "append",
        TRIGGER.format(body="raise exception ''sales stay'';", event="after delete"),
        "publication to public.sales could not be undone: sales stay",
    ),
    "a trigger that changes what the undo restores": (
        "overwrite",
        TRIGGER.format(body="new.note = ''seen''; return new;", event="before insert"),
        "could not be undone: 2 rows of public.sales were changed by a trigger when restored",
    ),
    "a trigger that changes what the undo of a merge restores": (
        "merge",
        "update sales set id = 8 where id = 2; "
        + TRIGGER.format(body="new.note = coalesce(new.note, ''?''); return new;", event="before update"),
        "could not be undone: 1 row of public.sales was changed by a trigger when restored",
    ),
    "an old row that a check does not allow": (
        "overwrite",
        "update sales set amount = -5 where id = 1; alter table sales add check (amount > 0) not valid",
        "could not be undone: .*violates check constraint",
    ),
    "an old row that a foreign key does not allow": (
        "overwrite",
        "create table shops (note text primary key); "
        "alter table sales add foreign key (note) references shops not valid",
        "could not be undone: .*violates foreign key constraint",
    ),
    "a missing partition": (
        "append",
        "drop table sales; create table sales (id bigint, amount numeric(12, 2)) partition by range (id); "
        "create table p partition of sales for values from (0) to (8)",
        "no partition of relation",
    ),
}


@pytest.mark.sampled(keep=8)
@pytest.mark.parametrize("case", REHEARSED)
def test_what_only_a_write_shows_is_refused_before_the_commit_point(warehouse: Warehouse, case: str) -> None:
    mode, ddl, printed = REHEARSED[case]
    warehouse.run(ddl)
    before, tables = warehouse.rows(), warehouse.tables()
    more = {"key": "id"} if mode == "merge" else {}
    ours = warehouse.stage(warehouse.output(mode, **more), [{"id": 8, "amount": Decimal("1.25")}])
    assert warehouse.sink.check(ours) == []
    with pytest.raises(Rejected, match=printed):
        warehouse.sink.prepare(ours)
    assert (warehouse.rows(), warehouse.tables()) == (before, tables)


def test_triggers_that_change_no_column_of_the_output_stay_allowed(warehouse: Warehouse) -> None:
    warehouse.run("alter table sales add at timestamptz; create table log (id bigint)")
    warehouse.run(TRIGGER.format(body="new.at = now(); return new;", event="before insert"))
    warehouse.run("""create function note() returns trigger language plpgsql as
                     'begin insert into log values (new.id); return null; end';
                     create trigger note after insert on sales for each row execute function note()""")
    ours = warehouse.stage(warehouse.output(), [{"id": 8, "amount": Decimal("1.25")}])
    warehouse.publish(ours)
    assert warehouse.rows("log") == ["(8)"], "the rehearsal was rolled back"
    warehouse.revert(ours)
    assert len(warehouse.rows()) == 2


def test_a_trigger_created_after_the_audit_is_refused_when_publishing(warehouse: Warehouse) -> None:
    ours = warehouse.stage(warehouse.output(), [{"id": 8}])
    warehouse.sink.prepare(ours)
    warehouse.run(TRIGGER.format(body="return null;", event="before insert"))
    with pytest.raises(Rejected, match=r"act of public\.sales skips 1 row"):
        warehouse.again(ours)


def test_rules_are_refused(warehouse: Warehouse) -> None:
    warehouse.run("create rule no as on insert to sales do instead nothing")
    assert problems(warehouse, warehouse.output(), id=1) == [
        "public.sales has the rule no, which rewrites writes; replace it by a trigger"
    ]


@pytest.mark.parametrize(("values", "ids"), [([Decimal("1.50"), 2], "12"), ([None, 2], "23"), ([], "")])
def test_a_list_of_numbers_selects_rows(warehouse: Warehouse, values: list[Any], ids: str) -> None:
    warehouse.run("insert into sales (id) values (3)")
    for query in (
        input_query({"table": "sales", "columns": ["id"], "where": {"amount": values}}),
        sql.SQL("select id from sales where {}").format(where_clause({"amount": values})),
    ):
        with psycopg.connect(warehouse.url) as connection:
            assert "".join(str(id) for (id,) in connection.execute(query + sql.SQL(" order by 1"))) == ids


def test_missing_or_changed_files_are_refused(warehouse: Warehouse) -> None:
    ours = warehouse.stage(warehouse.output(), [{"id": 8}])
    with pytest.raises(Rejected, match="have 1 row, but their manifest says 2"):
        warehouse.sink.prepare(replace(ours, manifest=replace(ours.manifest, rows=2)))
    Path(ours.manifest.files[0].uri.removeprefix("file://")).unlink()
    with pytest.raises(Rejected, match="does not exist any more"):
        warehouse.sink.prepare(ours)


def test_server_errors_are_retried(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = warehouse.stage(warehouse.output("overwrite"), [{"id": 8}])
    warehouse.sink.prepare(ours)
    away = PostgreSqlSink(
        warehouse.settings.model_copy(update={"connections": {"shop": f"postgresql://saga@127.0.0.1:{free_port()}/x"}})
    )
    with pytest.raises(InfrastructureError, match="connection shop"):
        away.check(ours)
    monkeypatch.setitem(postgresql_sink.TRANSACTION_TIMEOUTS, "lock_timeout", "200ms")
    with psycopg.connect(warehouse.url) as other:
        other.execute("insert into sales (id) values (77)")
        with pytest.raises(CommitConflict, match="lock timeout"):
            warehouse.again(ours)
    warehouse.again(ours)
    assert warehouse.rows() == ["(8,,,)"]


def test_statements_end_with_their_attempt(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the stage table does: it belongs to the forward attempt, which may last for hours."""
    assert float(postgresql_sink.TRANSACTION_TIMEOUTS["statement_timeout"].removesuffix("s")) <= PUBLISH_TIMEOUT
    ours = warehouse.stage(warehouse.output(), [{"id": 8}])
    sleeping = "language plpgsql as $$ begin perform pg_sleep(0.5); return new; end $$"
    warehouse.run(f"create function slowly() returns trigger {sleeping}")
    warehouse.run("create trigger slowly before insert on sales for each row execute function slowly()")
    monkeypatch.setitem(postgresql_sink.TRANSACTION_TIMEOUTS, "statement_timeout", "100ms")
    warehouse.sink.prepare(ours)
    with pytest.raises(InfrastructureError, match="statement timeout"):
        warehouse.again(ours)
    monkeypatch.setitem(postgresql_sink.TRANSACTION_TIMEOUTS, "statement_timeout", "60s")
    warehouse.again(ours)
    assert len(warehouse.rows()) == 3
