"""Needs of an undo are checked before the change: rights, constraints, values, locks that all others see."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy.exc import DataError

from saga_activities.automatic import mysql, row_locks
from saga_activities.automatic.statement_check import check_statement
from saga_activities.connections import DatabaseConnections, open_engine
from saga_activities.guard.sql_session import SqlSession
from saga_workers.runtime.databases import open_command_engine
from sagas.settings import SqlConnection
from sagas.sql_text.row_changes import NotImageable
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database, new_mariadb_database
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import GuardDatabase, clock, open_guard_database


async def connected(kind: str, url: str) -> Tables:
    return Tables(await open_guard_database(kind, url))


@pytest.mark.parametrize(
    ("granted", "run", "missing"),
    [
        ("select, update, delete", "delete from stock", 'grant insert on "public"."stock"'),
        ("select, update, insert", "insert into stock values (9, 9)", 'grant delete on "public"."stock"'),
        ("select, insert, delete", "insert into stock values (9, 9)", 'grant update on "public"."stock"'),
        ("select (id), update, delete, insert", "delete from stock", "no right to read the column n"),
        ("select, update, delete, insert (id)", "delete from stock", "no right for the column n"),
    ],
)
async def test_a_missing_right_is_named_before_the_change(
    postgres_server: DatabaseServer, granted: str, run: str, missing: str
) -> None:
    url = new_database(postgres_server)
    owner = await connected("postgres", url)
    role = f"role_{owner.id}"
    await owner.sql(
        "create table stock (id int primary key, n int)",
        "insert into stock values (1, 5)",
        f"create role {role} login",
        f"grant select, insert, update, delete on all tables in schema public to {role}",
        f"revoke all on stock from {role}",
        f"grant {granted} on stock to {role}",
    )
    worker = Tables(await connected_as("postgres", url, role))
    outcome = await worker.do([run])
    assert (outcome.kind, outcome.retryable) == ("failed", False)
    assert missing in str(outcome.failure)
    assert [tuple(row) for row in await owner.sql("select * from stock")] == [(1, 5)]
    async with worker.database.engine.connect() as connection:  # as `saga doctor` asks
        with pytest.raises(NotImageable, match=missing.split(" on ")[0]):
            await check_statement(SqlSession(connection), run)
    await worker.database.connections.close()
    await owner.sql(f"drop owned by {role}", f"drop role {role}")
    await owner.database.connections.close()


async def connected_as(kind: str, url: str, user: str) -> GuardDatabase:
    own = re.sub(r"//\w+@", f"//{user}@", url)
    return GuardDatabase(DatabaseConnections([SqlConnection(name="shop", url_setting=own)], pool_size=5), kind, own)


async def test_a_missing_right_of_mariadb_is_named(mariadb_server: DatabaseServer) -> None:
    url = await new_mariadb_database(mariadb_server)
    owner = await connected("mariadb", url)
    user, name = f"user{owner.id}", url.rsplit("/", 1)[1]
    await owner.sql(
        "create table stock (id int primary key, n int)",
        "insert into stock values (1, 5)",
        f"create user {user}",
        *(
            f"grant select, insert, update, delete on {name}.{table} to {user}"
            for table in ("saga_guard", "saga_image")
        ),
        *(f"grant select, insert, update, delete on {name}.{table} to {user}" for table in ("saga_row_lock",)),
        f"grant select on {name}.saga_watermark to {user}",
        f"grant select, update, delete on {name}.stock to {user}",
        f"grant trigger on {name}.* to {user}",
    )
    worker = Tables(await connected_as("mariadb", url, user))
    outcome = await worker.do(["delete from stock"])
    assert (outcome.kind, outcome.retryable) == ("failed", False)
    assert "INSERT command denied" in str(outcome.failure)
    assert [tuple(row) for row in await owner.sql("select * from stock")] == [(1, 5)]
    async with worker.database.engine.connect() as connection:
        sql = SqlSession(connection)
        change, table = await check_statement(sql, "delete from stock")
        assert table is not None
        with pytest.raises(NotImageable, match="grant insert on"):
            await mysql.check_rights(sql, table.shape, change.kind)
        await mysql.check_rights(sql, table.shape, "insert")
    await worker.database.connections.close()
    await owner.sql(f"drop user {user}")
    await owner.database.connections.close()


async def test_a_row_that_violates_a_constraint_is_refused(tables: Tables) -> None:
    if tables.kind != "postgres":
        pytest.skip("constraints that were not validated are of PostgreSQL")
    await tables.sql(
        "create table @t (id int primary key, n int)",
        "insert into @t values (1, -5), (2, 5)",
        "alter table @t add constraint positive check (n > 0) not valid",
    )
    before = await tables.dump()
    refused = await tables.do(["delete from @t where id = 1"])
    assert (refused.kind, refused.retryable) == ("failed", False)
    assert "positive" in str(refused.failure)
    assert await tables.dump() == before
    assert (await tables.do(["delete from @t where id = 2"], step="other")).kind == "done"
    assert (await tables.undo("other")).kind == "done"
    assert await tables.dump() == before
    async with tables.database.engine.connect() as connection:
        _, table = await check_statement(SqlSession(connection), tables.named("delete from @t"))
        assert table is not None
        assert "the constraint positive of public.t" in table.shape.doubts[0]


async def test_the_number_zero_of_a_counted_key_comes_back(tables: Tables) -> None:
    if tables.kind != "mariadb":
        pytest.skip("0 means the next number on MySQL and MariaDB")
    await tables.sql(
        "create table @t (id int primary key auto_increment, d date)",
        "insert into @t (d) values ('0000-00-00')",
        "update @t set id = 0",
    )
    before = await tables.dump()
    assert (await tables.do(["delete from @t"])).kind == "done"
    assert (await tables.undo()).kind == "done"
    assert await tables.dump() == before


# Sessions


async def test_names_with_percent_signs_are_prepared_as_they_are(tables: Tables) -> None:
    if tables.kind == "sqlite":
        pytest.skip("SQLite has no rights to ask for")
    quote = '"' if tables.kind == "postgres" else "`"
    await tables.sql(f"create table @t (id int primary key, {quote}rate%{quote} int)")
    async with tables.database.engine.connect() as connection:
        for statement in ("delete from @t", "insert into @t (id) values (1)", f"update @t set {quote}rate%{quote} = 1"):
            _, table = await check_statement(SqlSession(connection), tables.named(statement))
            assert table is not None
            assert [column.name for column in table.shape.columns] == ["id", "rate%"]


async def test_a_time_zone_of_the_server_changes_nothing(tables: Tables) -> None:
    if tables.kind != "mariadb":
        pytest.skip("PostgreSQL is tested with the settings of its database")
    await tables.sql(
        "create table @t (at timestamp primary key, v int)",
        "insert into @t values ('2026-10-25 00:30:00', 1), ('2026-10-25 01:30:00', 2)",
    )
    before = await tables.dump()
    assert (await tables.do(["delete from @t"])).kind == "done"
    await tables.sql("set global time_zone = '+05:30'")
    try:
        await tables.database.engine.dispose()
        assert (await tables.undo()).kind == "done"
        assert await tables.dump() == before
    finally:
        await tables.sql("set global time_zone = 'SYSTEM'")


LEFT_BEHIND = {
    "postgres": (
        "select pg_advisory_lock(77), set_config('timezone', 'Asia/Tokyo', false)",
        "select (select count(*) from pg_locks where locktype = 'advisory' and objid = 77),"
        " current_setting('timezone')",
        (0, "UTC"),
    ),
    "mariadb": (
        "select get_lock('left_behind', 1), @left_behind := 7",
        "select is_used_lock('left_behind'), (select max(variable_name) from information_schema.user_variables),"
        " variable_value from information_schema.session_variables"
        " where variable_name = 'TIME_ZONE'",
        (None, None, "+00:00"),
    ),
}


@pytest.mark.parametrize("fails", [False, True])
async def test_a_step_leaves_nothing_in_its_session(tables: Tables, fails: bool) -> None:
    if tables.kind == "sqlite":
        pytest.skip("a session of SQLite has no locks of its own")
    step, question, clean = LEFT_BEHIND[tables.kind]

    async def body(sql: SqlSession) -> None:
        await sql.all(step)
        if fails:
            raise ValueError("planned")

    outcome = await tables.database.guard.do(tables.entry(), "h", body, **clock())
    assert outcome.kind == ("failed" if fails else "done")
    assert [tuple(row) for row in await tables.sql(question)] == [clean]


async def test_a_healthy_undo_logs_nothing(tables: Tables, caplog: pytest.LogCaptureFixture) -> None:
    await tables.sql("create table @t (id int primary key, n int)", "insert into @t values (1, 5)")
    with caplog.at_level(logging.WARNING):
        assert (await tables.do(["update @t set n = 6"])).kind == "done"
        assert (await tables.do(["update @t set n = 7"], step="again")).kind == "done"
        assert (await tables.undo("again")).kind == "done"
        assert (await tables.undo()).kind == "done"
    assert [record.getMessage() for record in caplog.records] == []


async def test_the_styles_of_a_role_do_not_reach_the_engine(postgres_server: DatabaseServer) -> None:
    url = new_database(postgres_server)
    administrator = open_engine("a", url, 1)
    async with administrator.connect() as connection:
        name = url.rsplit("/", 1)[1]
        await connection.exec_driver_sql(f"alter database {name} set datestyle = 'German, DMY'")
        await connection.exec_driver_sql(f"alter database {name} set timezone = 'Europe/Berlin'")
    await administrator.dispose()
    for engine in (
        open_engine("b", url, 1),
        open_command_engine(SqlConnection(name="b", root=Path(), url_setting=url)),
    ):
        async with engine.connect() as connection:
            rows = await connection.exec_driver_sql(
                "select '2026-10-25 00:30+00'::timestamptz, '2026-02-03'::date::text"
            )
            row = tuple(rows.one())
            assert (row[0].isoformat(), row[1]) == ("2026-10-25T00:30:00+00:00", "2026-02-03")
        await engine.dispose()


# The same row through two connections


async def schemas(kind: str, request: pytest.FixtureRequest) -> tuple[list[str], str]:
    """The URLs of two connections with engine tables of their own, and the schema of the second."""
    server: DatabaseServer = request.getfixturevalue(f"{kind}_server")
    if kind == "mariadb":
        urls = [await new_mariadb_database(server) for _ in range(2)]
        return urls, urls[1].rsplit("/", 1)[1]
    url = new_database(server)
    engine = open_engine("a", url, 1)
    async with engine.connect() as connection:
        for name in ("my", "shop2", "third"):
            await connection.exec_driver_sql(f"create schema {name}")
    await engine.dispose()
    return [f"{url}?options={quote(f'-csearch_path={name}')}" for name in ("my", "shop2")], "shop2"


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
async def test_connections_of_two_schemas_see_each_others_locks(request: pytest.FixtureRequest, kind: str) -> None:
    urls, schema = await schemas(kind, request)
    my, own = [await connected(kind, url) for url in urls]
    own.id = my.id
    await own.sql("create table t (id int primary key, n int)", "insert into t values (1, 5)")
    assert (await my.do([f"update {schema}.t set n = 6"], saga="saga")).kind == "done"
    refused = await own.do(["update t set n = 7"], saga="other")
    assert refused.failure is not None
    assert refused.failure.type == "RowLocked"
    refused = await own.do(["update t set n = 7"], saga="saga", step="b")
    assert (refused.kind, refused.retryable) == ("failed", False)
    assert "this saga has changed the row id=1 of" in str(refused.failure)
    assert "through one of them" in str(refused.failure)
    assert (await my.undo()).kind == "done"
    assert await own.sql("select n from t") == [(5,)]
    await row_locks.release(my.database.engine, f"saga-{my.id}")
    assert (await own.do(["update t set n = 7"], saga="other")).kind == "done"
    refused = await my.do([f"update {schema}.t set n = 8"], saga="other", step="b")
    assert "this saga has changed the row id=1 of" in str(refused.failure)
    refused = await my.do([f"update {schema}.t set n = 8"], saga="third", step="b")
    assert refused.failure is not None
    assert refused.failure.type == "RowLocked"
    if kind == "postgres":
        await my.sql("create table third.t (id int primary key, n int)", "insert into third.t values (1, 5)")
        refused = await my.do(["update third.t set n = 8"], saga="third", step="c")
        assert "is in a schema without a table saga_row_lock" in str(refused.failure)
    for schema_tables in (my, own):
        await schema_tables.database.connections.close()


async def test_a_wrong_value_of_an_enum_is_no_empty_member(tables: Tables) -> None:
    if tables.kind != "mariadb":
        pytest.skip("only MySQL and MariaDB store wrong values")
    await tables.sql("create table @t (id int primary key, e enum('a', ''), n int)")
    async with tables.database.engine.connect() as connection:
        await connection.exec_driver_sql("set session sql_mode = ''")
        with pytest.raises(DataError, match="Data truncated"):  # it is stored all the same
            await connection.exec_driver_sql(tables.named("insert into @t values (1, 'wrong', 1), (2, '', 1)"))
        await connection.exec_driver_sql("set session sql_mode = default")
    numbers = "select id, e + 0, n from @t order by id"
    before = await tables.sql(numbers)
    assert [tuple(row) for row in before] == [(1, 0, 1), (2, 2, 1)]
    refused = await tables.do(["update @t set e = 'a'"])
    assert refused.failure is not None
    assert tables.named("the row id=1 of guard.@t cannot be restored") in refused.failure.message
    assert "column 'e'" in refused.failure.message
    for run in ("update @t set n = 2", "update @t set e = 'a' where id = 2", "delete from @t where id = 2"):
        step = f"step{len(run)}"
        assert (await tables.do([run], step=step)).kind == "done"
        assert (await tables.undo(step)).kind == "done"
        assert await tables.sql(numbers) == before


@pytest.mark.parametrize(
    ("create", "reason"),
    [
        ("create view @v as select 1 as id, 2 as n", "@v is not an ordinary table"),
        ("create virtual table @v using fts5(n)", "@v is not an ordinary table"),
        (
            "create table @v (id integer primary key, n int unique on conflict replace)",
            "@v has `on conflict replace`, which deletes rows or drops changes by itself",
        ),
        (
            "create table @v (id integer primary key, n int unique on conflict /* the newest */ replace)",
            "@v has `on conflict replace`, which deletes rows or drops changes by itself",
        ),
        (
            "create table @v (id integer primary key, n int unique on -- as it was\nconflict\nIGNORE)",
            "@v has `on conflict IGNORE`, which deletes rows or drops changes by itself",
        ),
        ("create /* of words */ virtual table @v using fts5(n)", "@v is not an ordinary table"),
    ],
)
async def test_what_is_no_plain_table_of_sqlite_is_named(tables: Tables, create: str, reason: str) -> None:
    if tables.kind != "sqlite":
        pytest.skip("the tables are SQLite's")
    await tables.database.rows(tables.named(create))
    refused = await tables.do(["update @v set n = 3"])
    assert (refused.kind, refused.retryable) == ("failed", False)
    assert tables.named(reason) in str(refused.failure)


async def test_a_table_that_keeps_a_history_is_named(tables: Tables) -> None:
    if tables.kind != "mariadb":
        pytest.skip("only MariaDB has WITH SYSTEM VERSIONING")
    await tables.sql("create table @h (id int primary key, n int) with system versioning")
    refused = await tables.do(["update @h set n = 3"])
    assert (refused.kind, refused.retryable) == ("failed", False)
    assert tables.named("@h is not an ordinary table (WITH SYSTEM VERSIONING keeps") in str(refused.failure)


@pytest.mark.parametrize(
    "statement",
    [
        "update @n set RowId = 9 where id = 1",
        "update @n set _rowid_ = 9",
        "insert into @n values (1, 2) on conflict (id) do update set oid = 9",
    ],
)
async def test_the_hidden_number_of_a_row_is_not_assigned(tables: Tables, statement: str) -> None:
    if tables.kind != "sqlite":
        pytest.skip("only rows of SQLite have it")
    await tables.sql("create table @n (id int primary key, n int)", "insert into @n values (1, 1)")
    refused = await tables.do([statement])
    assert (refused.kind, refused.retryable) == ("failed", False)
    assert "the hidden number of the rows" in str(refused.failure)
    assert await tables.database.rows(tables.named("select rowid, id, n from @n")) == [(1, 1, 1)]
    await tables.sql("create table @o (id int primary key, oid int)", "insert into @o values (1, 1)")
    assert (await tables.do(["update @o set oid = 9"])).kind == "done"
