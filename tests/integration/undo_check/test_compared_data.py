"""`saga verify-undo` compares rows and sequences that are hard to see, and values as the database compares them.

Rows that it cannot compare are named.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.integration.undo_check.undo_projects import SQLITE_TABLES, last_step, problems, sql, verified, write_project

POSTGRESQL_TABLES = """
create table if not exists rcol (id text primary key, r text, n integer);
insert into rcol values ('a', 'x', 10) on conflict do nothing;
create table if not exists "we%ird:t" ("a:b" text primary key, "c%s" int, "q""q" text);
insert into "we%ird:t" values ('a', 1, 'x') on conflict do nothing;
create table if not exists equal (id numeric primary key, n numeric, f double precision, m numeric[], j jsonb, x json);
insert into equal values (1, 10, 0, '{10}', '{"a": 1}', '{"a": 1}') on conflict do nothing;
create table if not exists tenant_account (tenant text, id text, n integer, primary key (tenant, id));
insert into tenant_account values ('t1', 'a', 10) on conflict do nothing;
alter table tenant_account enable row level security;
alter table tenant_account force row level security;
drop policy if exists own on tenant_account;
create policy own on tenant_account using (tenant = current_setting('app.tenant', true)) with check (true);
create sequence if not exists invoice_number;
select setval('invoice_number', 1, true);
"""


def test_rows_and_sequences_that_are_hard_to_see_are_compared(postgres_server: DatabaseServer, tmp_path: Path) -> None:
    step = sql(
        "update rcol set n = n - 1",
        """update "we%ird:t" set "q""q" = 'y'""",
        "update tenant_account set n = n - 1",
        "select nextval('invoice_number')",
        "select lo_from_bytea(4711, 'abc')",
        compensate=sql("update rcol set n = n + 2", "select setval('invoice_number', 1, false)"),
    )
    url = new_database(postgres_server)
    report = verified(write_project(tmp_path, url, POSTGRESQL_TABLES, [{"id": "a", **step}, last_step()]), limit=2)
    assert problems(report) == [
        "the undo of a leaves 1 extra row in shop · pg_largeobject (loid=4711, pageno=0)",
        "the undo of a leaves 1 extra row in shop · pg_largeobject_metadata (oid=4711)",
        "the undo of a leaves 1 changed row in shop · rcol (id=a): n",
        "the undo of a leaves 1 changed row in shop · tenant_account (tenant=t1, id=a): n",
        'the undo of a leaves 1 changed row in shop · we%ird:t (a:b=a): q"q',
        "the undo of a leaves the sequence shop · invoice_number at an earlier value",
    ]
    assert report.hidden == ()


def test_values_are_compared_as_the_database_compares_them(postgres_server: DatabaseServer, tmp_path: Path) -> None:
    step = sql(
        "update equal set n = n + 0.10, f = 1, m = '{1}', j = '{}', x = '{}'",
        compensate=sql(
            """update equal set n = n - 0.10, f = '-0', m = '{10.00}', j = '{"a": 1.0}', x = '{"a": 1}', id = 1.00"""
        ),
    )
    url = new_database(postgres_server)
    report = verified(write_project(tmp_path, url, POSTGRESQL_TABLES, [{"id": "a", **step}, last_step()]), limit=2)
    assert problems(report) == []
    assert [step.result for step in report.steps] == ["verified"]


@pytest.mark.parametrize("second", [False, True], ids=["one connection", "two connections"])
def test_a_table_with_a_name_of_the_engine_in_another_schema_is_compared(
    postgres_server: DatabaseServer, tmp_path: Path, second: bool
) -> None:
    """The second connection has the tables of the engine in a schema of its own: those are not compared."""
    tables = """
    create schema if not exists other;
    create schema if not exists back;
    create table if not exists back.line (n int);
    insert into back.line select 1 where not exists (select from back.line);
    create table if not exists other.saga_guard (id int primary key, n int);
    insert into other.saga_guard values (1, 10) on conflict do nothing;
    create table if not exists other.saga_run (id serial primary key, n int);
    select setval('other.saga_run_id_seq', 5);
    """
    step = sql(
        "update other.saga_guard set n = n - 1",
        "insert into other.saga_run (n) values (1)",
        compensate=sql("update other.saga_guard set n = n + 2", "delete from other.saga_run",
                       "select setval('other.saga_run_id_seq', 1, false)"),
    )  # fmt: skip
    url = new_database(postgres_server)
    steps = [{"id": "a", **step}, last_step()]
    settings = ""
    if second:
        back = make_url(url).update_query_dict({"options": "-c search_path=back"}).render_as_string(hide_password=False)
        settings = f'[connections.back]\nurl = "{back}"\n'
        behind = sql("update back.line set n = 2", compensate=sql("update back.line set n = 1"))
        for part in (behind, behind["compensate"]):
            part["with"]["connection"] = "back"
        steps.insert(1, {"id": "b", **behind})
    report = verified(write_project(tmp_path, url, tables, steps, settings=settings), limit=2)
    assert problems(report) == [
        "the undo of a leaves 1 changed row in shop · other.saga_guard (id=1): n",
        "the undo of a leaves the sequence shop · other.saga_run_id_seq at an earlier value",
    ]


def test_an_undo_of_an_effect_that_changes_nothing_is_not_verified(
    postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    steps = [
        {"id": "none", **sql("update rcol set n = n - 1 where id = 'b'", compensate=sql("update rcol set n = n + 2 "
                                                                                       "where id = 'b'"))},
        {"id": "same", **sql("update rcol set n = n", compensate=sql("update rcol set r = r"))},
        {"id": "some", **sql("update rcol set n = n - 1", compensate=sql("update rcol set n = n + 1"))},
        last_step(),
    ]  # fmt: skip
    report = verified(write_project(tmp_path, new_database(postgres_server), POSTGRESQL_TABLES, steps), limit=5)
    assert problems(report) == []
    nothing = "with this input its effect changes nothing that is compared"
    assert [(step.step, step.result, step.why) for step in report.steps] == [
        ("none", "not verified", nothing),
        ("same", "not verified", nothing),
        ("some", "verified", None),
    ]


def test_keys_of_sqlite_that_are_given_again_are_named(tmp_path: Path) -> None:
    step = sql(
        "insert into journal (line) values ('third')",
        "update account set n = 10.5",
        compensate=sql("delete from journal where id > 2", "update sqlite_sequence set seq = 0",
                       "update account set n = 10.0"),
    )  # fmt: skip
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    report = verified(write_project(tmp_path, url, SQLITE_TABLES, [{"id": "a", **step}, last_step()]), limit=2)
    assert problems(report) == ["the undo of a leaves the sequence shop · sqlite_sequence.journal at an earlier value"]


@pytest.fixture
def tenant_role(postgres_server: DatabaseServer) -> Iterator[str]:
    """A role that may create databases, and is not a superuser."""
    role = f"tenant_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server.url().replace("+psycopg", ""), autocommit=True) as administrator:
        administrator.execute(f"create role {role} login createdb password 'secret'")  # pyright: ignore[reportArgumentType,reportCallIssue]
        yield role
        owned = administrator.execute("select datname from pg_database where datdba = %s::regrole", (role,)).fetchall()
        for (name,) in owned:
            administrator.execute(f"drop database {name}")  # pyright: ignore[reportArgumentType,reportCallIssue]
        administrator.execute(f"drop role {role}")  # pyright: ignore[reportArgumentType,reportCallIssue]


def test_rows_that_row_level_security_hides_are_named(
    postgres_server: DatabaseServer, tenant_role: str, tmp_path: Path
) -> None:
    database = f"{tenant_role}_shop"
    server = make_url(postgres_server.url())
    with psycopg.connect(postgres_server.url().replace("+psycopg", ""), autocommit=True) as administrator:
        administrator.execute(f"create database {database} owner {tenant_role} strategy file_copy")  # pyright: ignore[reportArgumentType,reportCallIssue]
    url = server.set(username=tenant_role, password="secret", database=database).render_as_string(hide_password=False)
    tenant = "select set_config('app.tenant', 't1', true)"
    step = sql(
        tenant, "update tenant_account set n = n - 1", compensate=sql(tenant, "update tenant_account set n = n + 5")
    )
    report = verified(write_project(tmp_path, url, POSTGRESQL_TABLES, [{"id": "a", **step}, last_step()]), limit=2)
    [verdict] = report.steps
    hidden = f"row level security hides rows of it from the role {tenant_role}"
    assert (verdict.result, verdict.why) == ("not verified", f"shop · tenant_account is not compared: {hidden}")
    assert [(table.name, table.why) for table in report.hidden] == [("tenant_account", hidden)]
    assert report.verifies_nothing
