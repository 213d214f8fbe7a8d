"""Writes of `compensate: auto` through views, functions and operators are refused before the change."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import GuardDatabase

POSTGRESQL = (
    "create function @writes() returns int language plpgsql as"
    " $$ begin insert into @journal values (0); return 1; end $$",
    # Declared wrongly: PostgreSQL lets it call a function that writes.
    "create function @stable() returns int language plpgsql stable as $$ begin return @writes(); end $$",
    "create function @own() returns int language plpgsql stable as $$ begin return @writes_own(); end $$",
    "create function @writes_own() returns int language plpgsql as"
    " $$ begin update @stock set n = 9 where id = 2; return 1; end $$",
    "create function @plus(int, int) returns int language plpgsql immutable as $$ begin return $1 + @stable(); end $$",
    "create operator || (leftarg = int, rightarg = int, function = @plus)",
    "create schema @other create table saga_run (n int)",
    "create function @named() returns int language plpgsql as"
    " $$ begin insert into @other.saga_run values (0); return 1; end $$",
    "create function @quiet() returns int language plpgsql stable as $$ begin return @named(); end $$",
    "create view @writing as select @writes() as n",
    "create view @behind as select n + 1 as n from @writing",
    "create view @notifying as select pg_notify('c', 'x')::text as n",
)
MARIADB = (
    "create function @writes() returns int modifies sql data begin insert into @journal values (0); return 1; end",
    "create view @writing as select @writes() as n",
    "create view @behind as select n + 1 as n from @writing",
)
REFUSED = {
    "postgres": [
        ("select * from @writing", "it reads the view writing"),
        ("select * from @behind", "it reads the view writing"),
        ("select * from @notifying", "the function pg_notify has an effect outside"),
        ("insert into @stock select 3, n from @behind", "it reads the view writing"),
        ("merge into @stock s using @behind b on b.n = s.id when matched then update set n = 5", "view writing"),
        ("update @stock set n = @stable() where id = 1", "it also writes rows of"),
        ("delete from @stock where id = @stable()", "it also writes rows of"),
        ("select @stable()", "it also writes rows of"),
        ("update @stock set n = @quiet() where id = 1", "it also writes rows of other.saga_run"),
        ("update @stock set n = n || 1", "it also writes rows of"),
        ("insert into @stock values (3, @own())", "a function that it calls or an operator writes the others"),
        ("insert into @stock values (1, 1) on conflict (id) do update set n = @stable()", "it also writes rows of"),
    ],
    "mariadb": [
        ("select * from @writing", "it reads the view writing"),
        ("select * from @behind", "it reads the view writing"),
        ("insert into @stock select 3, n from @behind", "the stored function writes"),
        ("insert into @stock values (3, guard.@writes())", "the stored function writes"),
    ],
}


@pytest.fixture
async def tables(guard_database: GuardDatabase) -> AsyncIterator[Tables]:
    tables = Tables(guard_database)
    await tables.sql("create table @stock (id int primary key, n int)", "create table @journal (id int)")
    await tables.sql(
        "insert into @stock values (1, 5), (2, 6)", "create view @plain as select id + 10 as id, n from @stock"
    )
    yield tables
    if tables.kind == "postgres":
        await tables.sql(
            "drop view @behind, @writing, @notifying, @plain",
            "drop operator || (int, int)",
            "drop schema @other cascade",
        )
    else:
        for view in ("plain", *(("behind", "writing") if tables.kind == "mariadb" else ())):
            await tables.sql(f"drop view @{view}")
    await tables.drop()


async def test_a_hidden_write_is_refused(tables: Tables) -> None:
    await tables.sql(*{"postgres": POSTGRESQL, "mariadb": MARIADB, "sqlite": ()}[tables.kind])
    before = await tables.dump()
    for number, (statement, why) in enumerate(REFUSED.get(tables.kind, [])):
        refused = await tables.do([statement], f"s{number}")
        assert (refused.kind, refused.retryable) == ("failed", False), (statement, refused)
        assert why in str(refused.failure).replace(f"_{tables.id}", ""), (statement, refused.failure)
        assert await tables.dump() == before, statement
    assert (await tables.do(["insert into @stock select id, n from @plain", "select * from @plain"])).kind == "done"
    assert len(await tables.sql("select * from @stock")) == 4
    assert (await tables.undo()).kind == "done"
    assert await tables.dump() == before
