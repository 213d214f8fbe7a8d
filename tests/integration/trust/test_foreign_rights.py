"""Roles that can run code as the role of a worker are reported, and a schema in place of its own is refused."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from saga_activities.connections import DatabaseConnections, open_engine
from saga_activities.foreign_rights import ForeignRights, find_foreign_rights
from saga_activities.guard.schema import create_tables
from saga_spark.database_sessions import database_session
from saga_spark.settings import SparkSettings
from saga_spark.sinks.iceberg.catalog import open_catalog, translate_errors
from saga_workers.runtime.databases import open_command_engine
from saga_workers.worker.refused_databases import log_refused_databases
from sagas.errors import InfrastructureError
from sagas.settings import SqlConnection
from sagas.text.sql_names import sql_name
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.rights_looks import looking_always
from tests.helpers.shared_database import Shop, look, new_shop
from tests.helpers.waiting import until

COUNT = """
saga: count-seats
steps:
  - id: count
    uses: sql
    with: {connection: shop, run: "update seat set taken = taken + 1"}
    compensate: {uses: sql, with: {connection: shop, run: "update seat set taken = taken - 1"}}
"""


@pytest.fixture(autouse=True)
def every_pool_looks() -> Iterator[None]:
    with looking_always():
        yield


@pytest.fixture
def shop(postgres_server: DatabaseServer) -> Iterator[Shop]:
    with new_shop(postgres_server) as made:
        yield made


PRICE = "create table price (item text); alter table price owner to {stranger}"
ROUTINE = (
    "create function looks_alike(varchar, varchar) returns boolean language sql return true; "
    "alter function looks_alike(varchar, varchar) owner to {stranger}"
)
CHILD = (
    "alter table seat add id int default 0 primary key; "
    "create table {plain}_child (id int references seat on delete cascade); "
    "alter table {plain}_child owner to {stranger}"
)
RIGHTS = {
    "schema of the user": ("create schema {worker} authorization {stranger}", "owns worker_"),
    "new schema": ("grant create on database {database} to {stranger}", "by a new schema worker_"),
    "create": ("grant create on schema public to {stranger}", "in public"),
    "trigger": ("grant trigger on seat to {stranger}", "by triggers of public.seat"),
    "references": ("grant references on seat to {stranger}", "by foreign keys to public.seat"),
    "references of a column": ("grant references (taken) on seat to {stranger}", "by foreign keys to public.seat"),
    "foreign key": (CHILD, "by the foreign key worker_"),
    "foreign key behind another": (
        "alter table seat add id int default 0 primary key; "
        "create table link (id int primary key references seat on update cascade); "
        "create table leaf (id int default 0 references link on update set default); "
        "alter table leaf owner to {stranger}",
        "by the foreign key leaf_id_fkey of public.leaf",
    ),
    "trigger behind a foreign key": (
        "alter table seat add id int default 0 primary key; "
        "create table link (id int references seat on delete set null); "
        "grant trigger on link to {stranger}",
        "by triggers of public.link",
    ),
    "table": ("alter table seat owner to {stranger}; grant insert, update on seat to {worker}", "owns public.seat"),
    "member of the worker": ("grant {worker} to {stranger}", "as a member of worker_"),
    "member of a member": (
        "create role {worker}_team; grant {worker} to {worker}_team; grant {worker}_team to {stranger}",
        "_team in public",
    ),
    "public": ("grant create on schema public to public", "public in public"),
    "select": (f"{PRICE}; grant select on price to {{worker}}", "owns public.price"),
    "column": (f"{PRICE}; grant select (item), update (item) on price to {{worker}}", "owns public.price"),
    "view": (
        "create view price as select 1; alter view price owner to {stranger}; grant select on price to {worker}",
        "owns public.price",
    ),
    "below a view": (
        f"{PRICE}; create view prices as select * from price; grant select on prices to {{worker}}",
        "owns public.price",
    ),
    "partition": (
        "create table sold (n int) partition by range (n); create table sold_1 partition of sold default; "
        "grant insert on sold to {worker}; alter table sold_1 owner to {stranger}",
        "owns public.sold_1",
    ),
    "schema of a table": (
        "create schema app_{plain} authorization {stranger}; create table app_{plain}.price (item text); "
        "grant usage on schema app_{plain} to {worker}; grant select on app_{plain}.price to {worker}",
        "owns app_",
    ),
    "domain": (
        "create domain mail as text; alter table seat add mail mail[]; alter domain mail owner to {stranger}",
        "owns the type public.mail",
    ),
    "enum": (
        "create type mood as enum ('good'); alter table seat add m mood; alter type mood owner to {stranger}",
        "owns the type public.mood",
    ),
    "operator": (
        f"{ROUTINE}; create operator public.= (leftarg = varchar, rightarg = varchar, function = looks_alike); "
        "alter operator public.= (varchar, varchar) owner to {stranger}",
        "owns the operator public.= (character varying, character varying)",
    ),
    "routine": (ROUTINE, "owns the routine public.looks_alike(character varying, character varying)"),
}
"""How another role gets the right, and the words that name it."""

BEHIND = {
    "cast": (
        "create type mood as enum ('good')",
        "create function hidden.f(mood) returns text language sql return 'x'",
        "create cast (mood as text) with function hidden.f(mood) as assignment",
    ),
    "trigger": (
        "create function hidden.f() returns trigger language plpgsql as 'begin return new; end'",
        "create trigger t before update on seat for each row execute function hidden.f()",
    ),
    "trigger behind a foreign key": (
        "create function hidden.f() returns trigger language plpgsql as 'begin return new; end'",
        "alter table seat add id int default 0 primary key",
        "create table hidden.child (id int references seat on delete cascade)",
        "create trigger t before delete on hidden.child for each row execute function hidden.f()",
    ),
    "rule": (
        "create function hidden.f() returns int language sql return 1",
        "create rule r as on update to seat do also select hidden.f()",
    ),
    "trigger of a partition": (
        "create function hidden.f() returns trigger language plpgsql as 'begin return new; end'",
        "create table sold (n int) partition by range (n)",
        "create table sold_1 partition of sold default",
        "grant insert on sold to {worker}",
        "create trigger t before insert on sold_1 for each row execute function hidden.f()",
    ),
    "trigger of a child": (
        "create function hidden.f() returns trigger language plpgsql as 'begin return new; end'",
        "create table balcony () inherits (seat)",
        "create trigger t before update on balcony for each row execute function hidden.f()",
    ),
    "generated column": (
        "create function hidden.f(int) returns int immutable language sql return 1",
        "alter table seat add twice int generated always as (hidden.f(taken)) stored",
    ),
    "index predicate": (
        "create function hidden.f(int) returns boolean immutable language sql return true",
        "create index on seat (taken) where hidden.f(taken)",
    ),
    "aggregate": (
        "create function hidden.f(int, int) returns int immutable language sql return 1",
        "create aggregate total (int) (sfunc = hidden.f, stype = int)",
    ),
    "event trigger": (
        "create function hidden.f() returns event_trigger language plpgsql as 'begin end'",
        "create event trigger e_{plain} on ddl_command_start execute function hidden.f()",
    ),
    "default": (
        "create function hidden.f() returns int language sql return 1",
        "alter table seat alter taken set default hidden.f()",
    ),
    "check": (
        "create function hidden.f(int) returns boolean language sql return true",
        "alter table seat add check (hidden.f(taken))",
    ),
    "check of a domain": (
        "create function hidden.f(text) returns boolean language sql return true",
        "create domain mail as text check (hidden.f(value))",
        "alter table seat add mail mail",
    ),
    "check of a domain that no column has": (
        "create function hidden.f(text) returns boolean language sql return true",
        "create domain mail as text check (hidden.f(value))",
    ),
    "policy": (
        "create function hidden.f() returns boolean language sql return true",
        "create policy p on seat using (hidden.f())",
    ),
    "index": (
        "create function hidden.f(int) returns int immutable language sql return 1",
        "create index on seat (hidden.f(taken))",
    ),
    "view": (
        "create function hidden.f() returns int language sql return 1",
        "create view v as select hidden.f() as n",
        "grant select on v to {worker}",
    ),
    "operator": (
        "create function hidden.f(int, text) returns boolean language sql return true",
        "create operator hidden.@@@ (leftarg = int, rightarg = text, function = hidden.f)",
        "alter table seat add check (taken operator(hidden.@@@) 'x')",
    ),
}
"""What leads from a table of a trusted role to a function of another one, outside of the search_path."""


@pytest.mark.parametrize("right", RIGHTS)
async def test_a_right_is_reported_until_it_is_taken_away(
    shop: Shop, right: str, caplog: pytest.LogCaptureFixture
) -> None:
    statement, named = RIGHTS[right]
    assert await used(shop, caplog) is None
    for part in statement.replace("{worker}_team", f'"{shop.worker}_team"').replace("{plain}", shop.worker).split("; "):
        shop.execute(part)
    reports: list[str] = []
    while (report := await used(shop, caplog)) is not None:
        reports.append(report.message)
        assert report.refused == (right == "schema of the user")
        assert len(reports) <= 3  # each has the statement against the first right, and more than one was given
        statement = report.help.rpartition(" in trusted_roles, or ")[2].partition(", or name ")[0]
        shop.admin.execute(statement)  # pyright: ignore[reportArgumentType,reportCallIssue]
    assert named in reports[0]
    assert shop.worker in reports[0]


async def used(shop: Shop, caplog: pytest.LogCaptureFixture) -> ForeignRights | None:
    """The rights of others that a new pool reports, by refusing its connection or in the log."""
    caplog.clear()
    engine = open_engine("shop", shop.url, 1)
    try:
        async with engine.connect() as connection:
            await connection.execute(text("select 1"))
            raw = (await connection.get_raw_connection()).dbapi_connection
            rights = await connection.run_sync(lambda _: find_foreign_rights(raw))
    except ForeignRights as error:
        return error
    finally:
        await engine.dispose()
    assert [str(rights) in record.message for record in caplog.records] == ([] if rights is None else [True])
    return rights


@pytest.mark.parametrize("case", BEHIND)
def test_a_function_behind_a_table_is_named(shop: Shop, case: str) -> None:
    shop.execute("create schema hidden")
    for statement in BEHIND[case]:
        shop.execute(statement.replace("{plain}", shop.worker))
    assert look(shop) is None
    [(signature,)] = shop.admin.execute(
        "select oid::regprocedure::text from pg_proc where pronamespace = 'hidden'::regnamespace"
    ).fetchall()
    shop.execute(f"alter routine {signature} owner to {{stranger}}")
    report = look(shop)
    assert report is not None
    assert f"{shop.stranger} owns the routine hidden.f(" in report.message
    assert not report.refused
    assert look(shop, trusted=[shop.stranger]) is None


def test_a_foreign_key_of_another_role_runs_its_code_as_the_worker(shop: Shop) -> None:
    """The right to reference a table suffices: a trigger behind the foreign key sets the search_path of the session."""
    for statement in (
        "alter table seat add id int default 0 primary key",
        "create table loot (who text)",
        "grant insert on loot to public",
        "create schema theirs authorization {stranger}",
        "grant usage on schema theirs to public",
        "grant references, select on seat to {stranger}",
    ):
        shop.execute(statement)
    report = look(shop)
    assert report is not None
    assert f"{shop.stranger} by foreign keys to public.seat" in report.message
    for statement in (
        "set role {stranger}",
        "create table theirs.child (id int references seat on update cascade)",
        "insert into theirs.child values (0)",
        "create table theirs.seat (taken int)",
        "insert into theirs.seat values (0)",
        "grant select, update on theirs.seat to public",
        "create function theirs.elsewhere() returns trigger language plpgsql as"
        " 'begin perform set_config(''search_path'', ''theirs'', false); return new; end'",
        "create trigger t before update on theirs.child for each row execute function theirs.elsewhere()",
        "create function theirs.steal() returns trigger language plpgsql as"
        " 'begin insert into public.loot values (current_user); return new; end'",
        "create trigger t before update on theirs.seat for each row execute function theirs.steal()",
        "reset role",
    ):
        shop.execute(statement)
    with psycopg.connect(shop.url) as connection:
        connection.execute("update seat set id = 1")
        connection.execute("update seat set taken = 1")
    assert shop.admin.execute("select who from public.loot").fetchall() == [(shop.worker,)]
    shop.execute("revoke references on seat from {stranger}")
    report = look(shop)
    assert report is not None
    assert f"{shop.stranger} by the foreign key child_id_fkey of theirs.child" in report.message


def test_a_foreign_key_without_an_action_is_no_right(shop: Shop) -> None:
    """The database refuses what the role does to such rows, and nothing of the other role runs."""
    shop.execute("alter table seat add id int default 0 primary key")
    shop.execute("create table child (id int references seat)")
    shop.execute("alter table child owner to {stranger}")
    assert look(shop) is None


def test_a_role_that_owns_everything_is_one_short_sentence(shop: Shop) -> None:
    for number in range(30):
        shop.execute(f"create table t_{number} (n int); grant all on t_{number} to {{worker}}")
        shop.execute(f"alter table t_{number} owner to {{stranger}}")
    report = look(shop)
    assert report is not None
    assert f"({shop.stranger} owns public.t_0 and 29 more)" in report.message
    assert report.help.startswith(f"name {sql_name(shop.stranger)} in trusted_roles, or ")
    assert not report.refused


async def test_trusted_roles_are_accepted_and_a_look_is_rare_and_cheap(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.execute("grant create on schema public to {stranger}")
    engine = open_engine("shop", shop.url, 1, [shop.stranger])
    async with engine.connect() as connection:
        await connection.execute(text("select 1"))
    assert caplog.records == []
    shop.execute("create schema {worker} authorization {stranger}")
    began = time.monotonic()
    for _ in range(20):
        async with engine.connect():
            pass
    assert time.monotonic() - began < 5
    await engine.dispose()


async def test_members_of_the_owner_and_of_a_trusted_role_are_trusted(shop: Shop) -> None:
    shop.execute(f'create role "{shop.worker}_team" in role {{stranger}}')
    shop.execute("grant create on schema public to {stranger}")
    report = str(look(shop))
    assert f"{shop.stranger} in public" in report
    assert f"{shop.worker}_team as a member of {shop.stranger} in public" in report
    assert look(shop, trusted=[shop.stranger]) is None
    shop.execute("alter database {database} owner to {stranger}")
    assert look(shop) is None


async def test_a_login_that_becomes_the_owner_is_not_advised_to_lock_itself_out(shop: Shop) -> None:
    """The tables belong to a role that the worker becomes when it logs in, through another one."""
    team = f'"{shop.worker}_team"'
    for statement in (
        "alter table seat owner to {stranger}",
        f"create role {team} in role {{stranger}}",
        f"grant {team} to {{worker}}",
        "alter role {worker} set role {stranger}",
        "grant create on schema public to {stranger}",
    ):
        shop.execute(statement)
    with psycopg.connect(shop.url, autocommit=True) as connection:
        assert connection.execute("select current_user, session_user").fetchone() == (shop.stranger, shop.worker)
    assert look(shop) is None
    shop.execute(f'create role "{shop.worker}_next" in role {{stranger}}')
    report = look(shop)
    assert report is not None
    login = f'"{shop.worker}_next"'
    assert report.help == f"name {login} in trusted_roles, or revoke {sql_name(shop.stranger)} from {login}"


async def test_trust_comes_before_another_owner_of_a_partition(shop: Shop) -> None:
    shop.execute("create table sold (n int) partition by range (n)")
    shop.execute("create table sold_1 partition of sold for values from (0) to (10)")
    shop.execute("grant insert on sold, sold_1 to {worker}")
    shop.execute("alter table sold_1 owner to {stranger}")
    shop.execute("grant insert on sold_1 to {worker}")
    report = look(shop)
    assert report is not None
    trust = f"name {sql_name(shop.stranger)} in trusted_roles"
    assert report.help == f'{trust}, or alter table "public"."sold_1" owner to {sql_name(shop.worker)}'


async def test_a_worker_waits_with_one_sentence_until_the_right_is_gone(
    tmp_path: Path, temporal: TemporalServer, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    connection = SqlConnection.model_validate({"name": "shop", "root": tmp_path, "url": shop.url})
    owner = open_command_engine(connection)
    await create_tables(owner)
    await owner.dispose()
    shop.execute("create schema {worker} authorization {stranger}")
    shop.execute("create table {worker}.seat (taken int)")
    shop.execute("grant usage on schema {worker} to {worker}")
    shop.execute("grant all on {worker}.seat to {worker}")
    with caplog.at_level(logging.ERROR, logger="saga.worker"):
        databases = DatabaseConnections([connection])
        await log_refused_databases(databases)
        await databases.close()
    sentence = f'alter schema "{shop.worker}" owner to "{shop.worker}"'
    assert [record.message.endswith(sentence) for record in caplog.records] == [True]
    project = make_project(tmp_path / "project", {"count-seats": COUNT}, [], address=temporal.address,
                           options={"shop": connection})  # fmt: skip
    async with running_worker(project) as client:
        run = await client.start("count-seats", {}, id=f"count-{uuid.uuid4()}")

        async def refused() -> bool:
            story = await client.show(run.id)
            return "the connection shop is refused" in str(story)

        await until(refused)
        await asyncio.sleep(1)
        assert shop.admin.execute("select taken from public.seat").fetchone() == (0,)
        shop.execute("drop schema {worker} cascade")
        assert (await finished(client, run.id))["state"] == "COMPLETED"
    assert shop.admin.execute("select taken from public.seat").fetchone() == (1,)


def test_spark_steps_and_catalogs_look_as_well(shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = "postgresql+psycopg://" + shop.url.partition("://")[2]

    def lake(warehouse: str, *trusted: str) -> SparkSettings:
        return SparkSettings(
            root=tmp_path,
            catalogs={"lake": {"type": "sql", "uri": url, "warehouse": (tmp_path / warehouse).as_uri()}},
            connections={"shop": url},
            trusted_roles={"shop": trusted},
        )

    shop.execute("grant create on schema public to {stranger}")
    with database_session(shop.url, "shop") as connection:
        assert connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
    open_catalog(lake("one"), "lake").list_namespaces()
    assert [f"{shop.stranger} in public" in record.message for record in caplog.records] == [True] * 3
    caplog.clear()
    with database_session(shop.url, "shop", [shop.stranger]):
        open_catalog(lake("two", shop.stranger), "lake").list_namespaces()
    assert caplog.records == []
    shop.execute("create schema {worker} authorization {stranger}")
    with (
        pytest.raises(InfrastructureError, match="the connection orders is refused"),
        database_session(shop.url, "orders"),
    ):
        pass
    with (
        pytest.raises(InfrastructureError, match="the connection of the catalog lake is refused"),
        translate_errors("lake"),
    ):
        open_catalog(lake("three"), "lake")
