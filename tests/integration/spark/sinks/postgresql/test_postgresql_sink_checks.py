"""What could refuse a publish into a PostgreSQL table is said before the commit point."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import conninfo

from saga_spark.manifest import ManifestColumn
from saga_spark.sinks.postgresql import postgresql_sink
from saga_spark.sinks.postgresql.postgresql_sink import PostgreSqlSink
from saga_spark.sinks.sink import CommitConflict
from sagas.builtins.spark import PUBLISH_TIMEOUT
from sagas.errors import InfrastructureError, Rejected
from tests.helpers.database_servers import DatabaseServer, free_port
from tests.integration.spark.sinks.postgresql.warehouse import Warehouse, open_warehouse


@pytest.fixture
def house(server: DatabaseServer, tmp_path: Path) -> Warehouse:
    return open_warehouse(server, tmp_path)


def problems(house: Warehouse, output: dict[str, Any], **columns: Any) -> list[str]:
    return house.sink.check(house.stage(output, pa.table({name: [value] for name, value in columns.items()})))


def test_columns_that_do_not_fit(house: Warehouse) -> None:
    house.run("delete from sales; alter table sales add shop integer not null")
    house.run("alter table sales add twice bigint generated always as (id * 2) stored")
    assert problems(house, house.output(), id="x", more=1, twice=1) == [
        "the column id: string does not fit bigint",
        "public.sales has no column more",
        "the column twice of public.sales is computed by the database and cannot be written",
        "the column shop of public.sales is NOT NULL, and the output has no such column",
    ]


def test_nulls_that_were_counted_in_the_write_pass(house: Warehouse) -> None:
    ours = house.stage(house.output(), [{"id": 1}])
    ours = replace(ours, manifest=replace(ours.manifest, columns=(ManifestColumn("id", "long", nulls=2),)))
    assert house.sink.check(ours) == ["the column id of public.sales is NOT NULL, and 2 rows have no value"]


def test_keys_and_conditions(house: Warehouse) -> None:
    assert problems(house, house.output("merge", key="note"), id=1, note="x") == [
        "public.sales has no unique index on note, which merge needs"
    ]
    assert problems(house, house.output("merge", key="id"), note="x") == [
        "the column id of public.sales is NOT NULL, and the output has no such column",
        "the output has no column id, which `key` names",
    ]
    assert problems(house, house.output("overwrite_where", where={"region": 1, "day": "2026-01-01"}), id=1) == [
        "public.sales has no column region, which `where` names",
        "the output has no column day, which `where` names",
    ]


def test_rows_that_others_refer_to_are_not_replaced(house: Warehouse) -> None:
    house.run("create table refund (id bigint, sale bigint references sales)")
    assert problems(house, house.output("overwrite"), id=1) == [
        "refund refers to public.sales, so its rows cannot be replaced; use merge or append"
    ]
    assert problems(house, house.output("append"), id=1) == []


def test_what_is_no_table(house: Warehouse) -> None:
    house.run("create view seen as select * from sales")
    assert problems(house, house.output(table="seen"), id=1) == ["public.seen is not a table"]
    assert problems(house, house.output(table="nowhere.sales"), id=1) == [
        "there is no schema nowhere to create sales in"
    ]


def as_user(house: Warehouse, name: str, grants: str) -> Warehouse:
    house.run(f"create role {name} login; {grants}")
    url = house.url.replace("saga@", f"{name}@")
    settings = replace(house.settings, connections={"shop": url})
    return Warehouse(settings, url, PostgreSqlSink(settings))


@pytest.fixture
def user(house: Warehouse) -> str:
    return f"u{conninfo.conninfo_to_dict(house.url)['dbname']}"


def test_permissions(house: Warehouse, user: str) -> None:
    reader = as_user(house, user, f"grant select on sales to {user}")
    assert problems(reader, house.output("merge", key="id"), id=1) == [
        f"{user} may not create tables in the schema public, where stage tables are",
        *[f"{user} has no {name} permission on public.sales" for name in ("insert", "delete", "update")],
    ]
    assert f"there is no table public.more, and {user} may not create it" in problems(
        reader, house.output(table="more"), id=1
    )
    ours = reader.stage(house.output(), [{"id": 7}])
    with pytest.raises(Rejected, match="permission denied"):
        reader.sink.prepare(ours)


def test_the_permissions_that_are_asked_for_are_enough(house: Warehouse, user: str) -> None:
    grants = f"grant select, insert, delete on sales to {user}; grant create on schema public to {user}"
    writer = as_user(house, user, grants)
    before = house.rows()
    ours = writer.stage(house.output("overwrite"), [{"id": 7}])
    writer.publish(ours)
    writer.unpublish(ours)
    assert house.rows() == before


def test_a_permission_that_is_lost_before_publishing_is_one_sentence(house: Warehouse, user: str) -> None:
    grants = f"grant select, insert, delete on sales to {user}; grant create on schema public to {user}"
    writer = as_user(house, user, grants)
    ours = writer.stage(house.output(), [{"id": 7}])
    writer.sink.prepare(ours)
    house.run(f"revoke insert on sales from {user}")
    with pytest.raises(Rejected, match=r"has no insert permission on public\.sales"):
        writer.again(ours)
    assert writer.sink.find(ours.output, ours.tag.target) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("alter table sales alter amount type numeric(12, 1)", "rounded away"),
        ("alter table sales drop note", "no column note"),
        ("drop table sales; create view sales as select 1 as id", "not a table"),
    ],
)
def test_a_table_that_was_altered_before_publishing_is_one_sentence(house: Warehouse, change: str, said: str) -> None:
    ours = house.stage(house.output(), [{"id": 7, "amount": Decimal("1.25"), "note": "x"}])
    house.sink.prepare(ours)
    house.run(change)
    with pytest.raises(Rejected, match=said):
        house.again(ours)
    assert house.sink.find(ours.output, ours.tag.target) is None


def test_row_security(house: Warehouse, user: str) -> None:
    house.run("alter table sales enable row level security")
    writer = as_user(house, user, f"grant all on sales to {user}; grant create on schema public to {user}")
    assert "row security hides rows" in problems(writer, house.output(), id=1)[0]


ROWS = {
    "a key that is there": ("append", {}, [{"id": 1}], "1 values of id are in public.sales already"),
    "a key twice": ("overwrite", {}, [{"id": 5}, {"id": 5}], "1 values of id come more than once"),
    "a merge key twice": ("merge", {"key": "id"}, [{"id": 5}, {"id": 5}], "1 values of id come more than once"),
    "rows outside the part": (
        "overwrite_where",
        {"where": {"day": "2026-01-02"}},
        [{"id": 5, "day": date(2026, 1, 2)}, {"id": 6, "day": date(2026, 1, 3)}, {"id": 7, "day": None}],
        "2 rows are outside the `where`",
    ),
    "a key of another part": (
        "overwrite_where",
        {"where": {"day": "2026-01-02"}},
        [{"id": 1, "day": date(2026, 1, 2)}, {"id": 2, "day": date(2026, 1, 2)}],
        "1 values of id are in public.sales already",
    ),
    "another unique column": ("merge", {"key": "id"}, [{"id": 5, "note": 'a, "b"'}], "1 values of note are in"),
    "an orphan": (
        "append",
        {},
        [{"id": 5, "shop": 3}, {"id": 6, "shop": 1}, {"id": 7, "shop": None}],
        "1 rows refer to nothing in shop",
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows_that_the_table_would_refuse(house: Warehouse, case: str) -> None:
    mode, more, rows, said = ROWS[case]
    house.run("""create table shop (id bigint primary key); insert into shop values (1);
                 alter table sales add shop bigint references shop, add unique (note)""")
    ours = house.stage(house.output(mode, **more), rows)
    assert house.sink.check(ours) == []
    before = house.tables()
    with pytest.raises(Rejected, match="do not fit") as refused:
        house.sink.prepare(ours)
    assert said in str(refused.value)
    assert house.tables() == before


def test_a_merge_without_a_key_value(house: Warehouse) -> None:
    house.run("alter table sales add unique (note)")
    with pytest.raises(Rejected, match="1 rows have no note"):
        house.sink.prepare(
            house.stage(house.output("merge", key="note"), pa.table({"id": [8], "note": pa.array([None], pa.string())}))
        )


def test_a_trigger_that_keeps_rows_back(house: Warehouse) -> None:
    house.run("""create function no() returns trigger language plpgsql as 'begin return null; end';
                 create trigger no before insert on sales for each row execute function no()""")
    ours = house.stage(house.output(), [{"id": 8}])
    house.sink.prepare(ours)
    with pytest.raises(Rejected, match="kept back 1"):
        house.again(ours)


def test_files_that_are_gone_or_not_the_manifests(house: Warehouse) -> None:
    ours = house.stage(house.output(), [{"id": 8}])
    with pytest.raises(Rejected, match="hold 1 rows and their manifest says 2"):
        house.sink.prepare(replace(ours, manifest=replace(ours.manifest, rows=2)))
    Path(ours.manifest.files[0].uri.removeprefix("file://")).unlink()
    with pytest.raises(Rejected, match="is gone"):
        house.sink.prepare(ours)


def test_trouble_of_the_server_is_tried_again(house: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = house.stage(house.output("overwrite"), [{"id": 8}])
    house.sink.prepare(ours)
    away = PostgreSqlSink(replace(house.settings, connections={"shop": f"postgresql://saga@127.0.0.1:{free_port()}/x"}))
    with pytest.raises(InfrastructureError, match="shop:"):
        away.check(ours)
    monkeypatch.setitem(postgresql_sink.TRANSACTION_TIMEOUTS, "lock_timeout", "200ms")
    with psycopg.connect(house.url) as other:
        other.execute("insert into sales (id) values (77)")
        with pytest.raises(CommitConflict, match="lock timeout"):
            house.again(ours)
    house.again(ours)
    assert house.rows() == ["(8,,,)"]


def test_no_statement_of_a_publication_outlives_its_attempt(house: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the stage table does: it belongs to the forward attempt, which may last for hours."""
    assert float(postgresql_sink.TRANSACTION_TIMEOUTS["statement_timeout"].removesuffix("s")) <= PUBLISH_TIMEOUT
    ours = house.stage(house.output(), [{"id": 8}])
    sleeping = "language plpgsql as $$ begin perform pg_sleep(0.5); return new; end $$"
    house.run(f"create function slowly() returns trigger {sleeping}")
    house.run("create trigger slowly before insert on sales for each row execute function slowly()")
    monkeypatch.setitem(postgresql_sink.TRANSACTION_TIMEOUTS, "statement_timeout", "100ms")
    house.sink.prepare(ours)
    with pytest.raises(InfrastructureError, match="statement timeout"):
        house.again(ours)
    monkeypatch.setitem(postgresql_sink.TRANSACTION_TIMEOUTS, "statement_timeout", "60s")
    house.again(ours)
    assert len(house.rows()) == 3
