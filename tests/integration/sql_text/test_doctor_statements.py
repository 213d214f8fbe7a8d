"""`saga doctor` lets the database of each connection prepare the statements of the definitions."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from saga_workers.doctor.doctor_result import DoctorResult, results_of
from saga_workers.doctor.statement_checks import check_statements
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database, new_url

TABLES = ("create table stock (sku varchar(20) primary key, free int)", "create table secret (a int)")
PROCEDURE = "create procedure settle() language sql begin atomic select 1; end"
SAGA = """saga: shop
steps:
  - id: good
    uses: sql
    with:
      connection: shop
      run:
        - {sql: "update stock set free = free - :n where sku = :sku", params: {n: 1, sku: a}}
        - {sql: "select free from stock where sku = 'it''s :no % 5' -- :no\\n", params: {}}
    compensate:
      uses: sql
      with:
        connection: shop
        run: |
          update stock
          set fre = free + :n  -- a column that is not there
          where sku = :sku
        params: {n: 1, sku: a}
  - id: missing
    uses: sql
    with: {connection: shop, run: "select 1 from stok where sku = :sku", params: {sku: a}}
    effect: none
  - {id: ask, uses: wait, with: {signal: go}}
"""


def project(folder: Path, url: str, *extra: str) -> Project:
    (folder / "shop.saga.yaml").write_text(SAGA + "".join(extra))
    (folder / "saga.toml").write_text(f'definitions = ["."]\n[connections.shop]\nurl = "{url}"\n')
    result = Project(load_settings(config=str(folder / "saga.toml")))
    assert [diagnostic for diagnostic in result.diagnostics if diagnostic.severity == "error"] == []
    return result


async def problems(project: Project) -> list[DoctorResult]:
    return [check for check in await check_statements(project) if check.ok is not True]


def step(run: str, more: str = "", connection: str = "shop") -> str:
    arguments = f"{{connection: {connection}, run: '{run}'{more}}}"
    return f"  - {{id: extra, uses: sql, effect: none, with: {arguments}}}\n"


async def test_postgresql(tmp_path: Path, postgres_server: DatabaseServer) -> None:
    url = new_database(postgres_server)
    role = make_url(url).database
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in TABLES:
            connection.execute(statement)  # pyright: ignore[reportArgumentType,reportCallIssue]
        connection.execute(f"create role {role} login")  # pyright: ignore[reportArgumentType,reportCallIssue]
        connection.execute(f"grant select, update on stock to {role}")  # pyright: ignore[reportArgumentType,reportCallIssue]
    own = make_url(url).set(username=role).render_as_string(hide_password=False)
    extra = step("delete from stock where sku = :a", ", params: {a: 1}")
    actual_problems = await problems(project(tmp_path, own, extra.replace("effect: none", "pivot: true")))
    file = tmp_path / "shop.saga.yaml"
    first, second, third = [problem.message for problem in actual_problems]
    assert first.startswith(f"{file}:16:15 shop/good (compensate): PostgreSQL cannot prepare the statement: ")
    assert '"fre"' in first
    assert second.startswith(f"{file}:21:50 shop/missing: ")
    assert 'relation "stok" does not exist' in second
    assert third.startswith(f"{file}:24:")
    assert "permission denied for table stock" in third
    assert [problem.help for problem in actual_problems] == [
        "create the column, or correct its name",
        "create the table, or correct its name",
        "grant the right to the user of the connection's url",
    ]


MISSING = """saga: missing
defaults: {connection: shop}
steps:
"""


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])
async def test_missing_tables_are_one_result(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    url = await new_url(kind, request, tmp_path)
    reads = "".join(
        f"  - {{id: s{number}, uses: sql, effect: none, with: {{run: 'select {number} from stock{number % 3}'}}}}\n"
        for number in range(9)
    )
    wrong = "  - {id: wrong, uses: sql, effect: none, with: {run: select nowhere}}\n"
    (tmp_path / "missing.saga.yaml").write_text(MISSING + reads + wrong)
    (tmp_path / "schema.sql").write_text("create table stock (a int)")
    settings = f'definitions = ["."]\n[connections.shop]\nurl = "{url}"\nschema = "schema.sql"\n'
    (tmp_path / "saga.toml").write_text(settings)
    actual_problems = await problems(Project(load_settings(config=str(tmp_path / "saga.toml"))))
    first, other = actual_problems
    file = tmp_path / "missing.saga.yaml"
    assert first.message.startswith(f"{file}:4:")
    assert "stock0" in first.message
    assert "; tables are also missing for 8 more statements: " in first.message
    assert first.message.endswith(" missing/s5 and 3 more")
    assert first.help == "saga setup    applies schema.sql; or create the table, or correct its name"
    assert "nowhere" in other.message


async def test_a_view_that_cannot_be_updated_is_no_busy_database(
    tmp_path: Path, postgres_server: DatabaseServer
) -> None:
    url = new_database(postgres_server)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table stock (sku varchar(20) primary key, free int)")
        connection.execute("create view both_stocks as select a.sku, b.free from stock a join stock b using (sku)")
    extra = step("update both_stocks set free = 1").replace("effect: none", "pivot: true")
    (tmp_path / "view.saga.yaml").write_text(f"saga: view\nsteps:\n{extra}")
    (tmp_path / "saga.toml").write_text(f'definitions = ["."]\n[connections.shop]\nurl = "{url}"\n')
    actual_problems = await problems(Project(load_settings(config=str(tmp_path / "saga.toml"))))
    (refused,) = [result for result in actual_problems if result.ok is False]
    assert "cannot prepare the statement: cannot update view" in refused.message


async def test_many_statements_on_one_connection(tmp_path: Path, postgres_server: DatabaseServer) -> None:
    """The driver prepares what it sends for the sixth time."""
    url = new_database(postgres_server)
    (tmp_path / "many.saga.yaml").write_text(
        "saga: many\ndefaults: {connection: shop}\nsteps:\n"
        + "".join(step(f"select {number} as n" if number % 5 else "select nowhere")
                  .replace("extra", f"s{number}").replace("connection: shop, ", "", number % 2)
                  for number in range(1, 16))
    )  # fmt: skip
    (tmp_path / "saga.toml").write_text(f'definitions = ["."]\n[connections.shop]\nurl = "{url}"\n')
    findings = await check_statements(Project(load_settings(config=str(tmp_path / "saga.toml"))))
    assert [(problem.ok, "nowhere" in problem.message) for problem in findings] == [(True, False), *[(False, True)] * 3]
    assert findings[0].message == "shop: the database prepares 12 of 15"


async def test_an_error_of_one_check_is_a_result(tmp_path: Path) -> None:
    async def check() -> list[DoctorResult]:
        return [DoctorResult("good", True, f"{1 // len(os.listdir(tmp_path))}")]

    (result,) = await results_of("statements", check())
    assert (result.check, result.ok) == ("statements", False)
    assert "ended with an error of its own, ZeroDivisionError: " in result.message
    (tmp_path / "file").touch()
    assert await results_of("statements", check()) == [DoctorResult("good", True, "1")]


async def test_what_postgresql_cannot_judge_is_said(tmp_path: Path, postgres_server: DatabaseServer) -> None:
    url = new_database(postgres_server)
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in (
            *TABLES,
            "create sequence tickets",
            PROCEDURE,
        ):
            connection.execute(statement)  # pyright: ignore[reportArgumentType,reportCallIssue]
    (tmp_path / "none.saga.yaml").write_text(
        "saga: none\nsteps:\n"
        + step("select 1 where :a is null", ", params: {a: 1}")
        + step("call settle()").replace("extra", "more")
        + step("select nextval(''tickets'')").replace("extra", "next")
    )
    actual_project = project(tmp_path, url)
    (tmp_path / "shop.saga.yaml").unlink()
    first, second = await problems(Project(actual_project.settings))
    assert (first.ok, second.ok) == (None, None)
    cast = "cast it (`:a::bigint` or `:a::text`)"
    assert f"not checked because the type of `:a` is only known when it runs; {cast}" in first.message
    assert "not checked because PostgreSQL cannot prepare CALL" in second.message
    with psycopg.connect(url) as connection:
        assert connection.execute("select is_called from tickets").fetchone() == (False,), "nothing was executed"


@pytest.mark.parametrize(
    ("run", "params", "expected"),
    [
        (
            "with w as (select :a as sku, :n as n) update stock set free = free - w.n from w where stock.sku = w.sku",
            "a: x, n: 1",
            "not checked because the type of `:n` is only known",
        ),
        (
            "insert into stock select v.s, v.n from (values (:s, :n)) v(s, n)",
            "s: x, n: 1",
            "not checked because the type of `:n` is only known",
        ),
        # The run sends the text that becomes a column's value apart from the same text as an argument.
        ("update secret set a = :a where ''x'' = lower(:a)", "a: '5'", "permission denied for table secret"),
        ("select sku - free from stock where sku = :a", "a: x", "operator does not exist"),
        ("select no_such(free) from stock where sku = :a", "a: x", "function no_such(integer) does not exist"),
        ("insert into secret select v.n from (values (:n)) v(n)", "n: 1", "permission denied for table secret"),
        ("insert into held values (:n)", "n: 1", "permission denied for table held"),
    ],
)
async def test_types_that_only_the_run_knows(
    tmp_path: Path, postgres_server: DatabaseServer, run: str, params: str, expected: str
) -> None:
    url = new_database(postgres_server)
    role = make_url(url).database
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in (
            *TABLES,
            "create domain filled as int not null",
            "create table held (a filled)",
            f"create role {role} login",
            f"grant select, insert, update on stock to {role}",
        ):
            connection.execute(statement.encode())
    own = make_url(url).set(username=role).render_as_string(hide_password=False)
    extra = step(run, f", params: {{{params}}}").replace("effect: none", "pivot: true")
    result = (await problems(project(tmp_path, own, extra)))[-1]
    assert expected in result.message
    assert result.ok is (None if "not checked" in expected else False)
    if "operator" in expected:
        assert result.help == "cast the operands to types that have the operator, or create it"


_CAST_FUNCTION = "create the function, or cast its arguments"
_CAST_OPERATOR = "cast the operands to types that have the operator, or create it"

CERTAIN = {
    "select uper(:x)": ("<uper(:x)", "function uper(unknown) does not exist", _CAST_FUNCTION),
    "select 1 from stock where sku = uper(:x)": ("<uper(:x)", "function uper(unknown)", _CAST_FUNCTION),
    "select 1 from stock where free == :x": ("<== :x", "operator does not exist: integer == unknown", _CAST_OPERATOR),
    "select 1 from stock where sku =~ :x": ("<=~ :x", "operator does not exist", _CAST_OPERATOR),
    "select ifnull(sku, :x) from stock": ("<ifnull(sku", "function ifnull(character varying, unknown)", _CAST_FUNCTION),
    "select date_add(:x, 1)": ("<date_add(:x", "function date_add(unknown, integer)", _CAST_FUNCTION),
    "select 1 from stock where free like :x": ("<like :x", "operator does not exist: integer ~~", _CAST_OPERATOR),
    "select uper(:x, :y) from stock where free - :x > 0": ("<uper(:x", "function uper(unknown, ", _CAST_FUNCTION),
    "select left(:x, :x)": (
        "<:x)",
        "inconsistent types deduced for parameter :x",
        "cast each place of `:x` to the type that it has there",
    ),
    "select extract(year from :x)": ("<extract(", "extract", "cast it (`:x::date` or `:x::timestamptz`)"),
    "update stock set free = ? where sku = :x": (
        "<where",
        "syntax error",
        "a parameter has a name: write `:name` for `?`",
    ),
    "select date :x": ("<:x", 'syntax error at or near ":x"', "write `:x::date` for `date :x`"),
    "select now() - interval :x": ("<:x", 'syntax error at or near ":x"', "write `:x::interval` for `interval :x`"),
    "select 1 from :x": (
        "<:x",
        'syntax error at or near ":x"',
        "a parameter is a value: write names of tables and columns, and keywords, into the statement itself",
    ),
}
"""Statements with the place, the error and the advice; for each type of a parameter, the run has the error too."""

OPEN = {
    "with w as (select :x as n) select free - w.n from stock, w": "cast it (`:x::bigint` or `:x::numeric`)",
    "with w as (select :x as n, :y as b) select free - w.n from stock, w where w.b": "cast them (`:x::bigint` and "
    "`:y::boolean`)",
    "select :x + :y": "cast it (`:x::bigint` or `:x::numeric`)",
}


async def test_errors_that_no_type_of_a_parameter_changes(tmp_path: Path, postgres_server: DatabaseServer) -> None:
    url = new_database(postgres_server)
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in TABLES:
            connection.execute(statement.encode())
    steps = [
        step(run, f", params: {{{', '.join(f'{name}: 1' for name in 'xy' if f':{name}' in run)}}}").replace(
            "id: extra", f"id: s{at}"
        )
        for at, run in enumerate([*CERTAIN, *OPEN])
    ]
    lines = ["saga: certain", "recovery: forward", "steps:", *(each.rstrip() for each in steps)]
    lines = [line.replace("effect: none, ", "") if "update" in line else line for line in lines]
    (tmp_path / "certain.saga.yaml").write_text("\n".join(lines) + "\n")
    (tmp_path / "saga.toml").write_text(f'definitions = ["."]\n[connections.shop]\nurl = "{url}"\n')
    of_project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    assert [each for each in of_project.diagnostics if each.severity == "error"] == []
    results = (await check_statements(of_project))[1:]
    assert len(results) == len(CERTAIN) + len(OPEN), results
    for (run, (place, error, help)), result, line in zip(CERTAIN.items(), results, lines[3:], strict=False):
        assert (result.ok, result.help) == (False, help), (run, result)
        assert error in result.message, (run, result)
        column = line.index(place[1:], line.index("run:")) + 1
        assert f"certain.saga.yaml:{lines.index(line) + 1}:{column} " in result.message, (run, result)
    for (run, why), result in zip(OPEN.items(), results[len(CERTAIN) :], strict=True):
        assert result.ok is None, (run, result)
        assert why in result.message, (run, result)


async def test_mariadb(tmp_path: Path, mariadb_server: DatabaseServer) -> None:
    url = make_url(mariadb_server.url("mysql")).set(drivername="mariadb+asyncmy")
    name = f"doctor_{os.getpid()}"
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        hosts = ("%", "localhost")
        for statement in (
            f"create database {name}",
            f"use {name}",
            *TABLES,
            *(f"create user {name}@'{host}'" for host in hosts),
            *(f"grant select, update on {name}.stock to {name}@'{host}'" for host in hosts),
        ):
            await connection.execute(text(statement))
        await connection.invalidate()
    await engine.dispose()
    own = url.set(username=name, database=name, drivername="mariadb").render_as_string(hide_password=False)
    extra = step("delete from stock where sku = :a", ", params: {a: 1}").replace("effect: none", "pivot: true")
    actual_problems = await problems(project(tmp_path, own, extra))
    first, second, third = [problem.message for problem in actual_problems]
    assert first.startswith(f"{tmp_path}/shop.saga.yaml:15:")
    assert "'fre'" in first
    assert second.startswith(f"{tmp_path}/shop.saga.yaml:21:")
    assert "stok" in second
    assert "DELETE command denied" in third
    assert next(problem.help for problem in actual_problems) == "create the column, or correct its name"
    assert actual_problems[2].help == "grant the right to the user of the connection's url"


async def test_a_table_without_transactions(tmp_path: Path, mariadb_server: DatabaseServer) -> None:
    name = f"doctor_engines_{os.getpid()}"
    url = make_url(mariadb_server.url("mysql")).set(drivername="mariadb+asyncmy")
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        await connection.execute(text(f"create database {name}"))
        await connection.execute(text(f"create table {name}.visits (id int primary key) engine = MyISAM"))
    await engine.dispose()
    own = url.set(database=name, drivername="mariadb").render_as_string(hide_password=False)
    (tmp_path / "saga.toml").write_text(f'definitions = ["."]\n[connections.shop]\nurl = "{own}"\n')
    write = step("delete from visits").replace("effect: none", "pivot: true").replace("extra", "write")
    (tmp_path / "engines.saga.yaml").write_text(f"saga: engines\nsteps:\n{step('select * from visits')}{write}")
    findings = await check_statements(Project(load_settings(config=str(tmp_path / "saga.toml"))))
    assert [problem.ok for problem in findings] == [True, False]
    place = f"{tmp_path}/engines.saga.yaml:4:71 engines/write: the table visits has no transactions (MyISAM), so that"
    assert findings[1].message.startswith(place), findings[1].message


async def test_numbers_that_are_compared_with_texts(tmp_path: Path, mariadb_server: DatabaseServer) -> None:
    """Each run would refuse them, by the catalog alone."""
    name = f"doctor_kinds_{os.getpid()}"
    url = make_url(mariadb_server.url("mysql")).set(drivername="mariadb+asyncmy")
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        await connection.execute(text(f"create database {name}"))
        await connection.execute(text(f"create table {name}.visits (id int primary key, note varchar(20))"))
    await engine.dispose()
    own = url.set(database=name, drivername="mariadb").render_as_string(hide_password=False)
    (tmp_path / "saga.toml").write_text(f'definitions = ["."]\n[connections.shop]\nurl = "{own}"\n')
    fine = step("select id from visits where note = :note", ", params: {note: x}").replace("extra", "fine")
    (tmp_path / "kinds.saga.yaml").write_text(
        f"saga: kinds\nsteps:\n{step('select id from visits where note = id')}{fine}"
    )
    good, bad = await check_statements(Project(load_settings(config=str(tmp_path / "saga.toml"))))
    assert good.message == "shop: the database prepares 1 of 2"
    assert "kinds/extra: the number id is compared with the text note" in bad.message
    assert (bad.ok, bad.help) == (False, "write a cast, so that values of one kind are compared or assigned")


async def test_sqlite(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    with sqlite3.connect(file) as connection:
        for statement in TABLES:
            connection.execute(statement)
    first, second = [problem.message for problem in await problems(project(tmp_path, f"sqlite:///{file}"))]
    assert first.endswith("no such column: fre")
    assert second.endswith("no such table: stok")
    with sqlite3.connect(file) as connection:
        assert connection.execute("select count(*) from stock").fetchone() == (0,)
    read_only = await problems(project(tmp_path, f"sqlite:///file:{file}?mode=ro&uri=true"))
    assert any("readonly" in row.message and "shop/good" in row.message for row in read_only)


async def test_sqlite_prepares_a_blob_that_is_no_text(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute(TABLES[0])
        connection.execute("create table pictures (id int, b blob)")
    extra = step("update pictures set b = x''ff'' where id = 1").replace("effect: none", "pivot: true")
    assert not any(
        "shop/extra" in problem.message
        for problem in await problems(project(tmp_path, f"sqlite:///{tmp_path}/shop.db", extra))
    )


@pytest.mark.parametrize("kind", ["postgresql"])
async def test_the_sql_of_an_input(tmp_path: Path, postgres_server: DatabaseServer, kind: str) -> None:
    url = new_database(postgres_server)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES[0])
    (tmp_path / "load.saga.yaml").write_text(
        "saga: load\nsteps:\n  - id: load\n    uses: spark\n    with:\n"
        "      sql: select 1 as a\n      output: {parquet: out}\n"
        "      inputs:\n        good: {connection: shop, query: 'select :day::date as d', params: {day: x}}\n"
        "        gone: {connection: shop, query: 'select gone from stock where sku = :sku', params: {sku: x}}\n"
        "        some: {connection: shop, table: stock, where: 'fre > 0'}\n"
        "        text: {connection: shop, query: 'select date :day as d', params: {day: x}}\n"
        "        same: {connection: shop, query: 'select o.free as id, p.free as id from stock o, stock p'}\n"
        "        bare: {connection: shop, query: 'select 1, 2'}\n"
        "        cased: {connection: shop, query: 'select 1 as a, 2 as \"A\"'}\n"
        "        twice: {connection: shop, table: stock, columns: [sku, sku]}\n"
    )
    settings = f'definitions = ["."]\n[connections.shop]\nurl = "{url}"\n[spark]\nledger = "shop"\n'
    (tmp_path / "saga.toml").write_text(settings)
    first, second, third, *repeated = await problems(Project(load_settings(config=str(tmp_path / "saga.toml"))))
    assert [(row.ok, row.message.partition(" load/load: ")[2]) for row in repeated] == [
        (False, f"the input has two columns of the same name ({names}), and Spark ignores case")
        for names in ("id, id", "?column?, ?column?", "a, A", "sku, sku")
    ]
    assert third.ok is None
    assert "write casts (`:day::date`)" in third.message
    assert 'load.saga.yaml:10:49 load/load: PostgreSQL cannot prepare the statement: column "gone"' in first.message
    assert "load.saga.yaml:11:56 load/load: " in second.message


async def test_the_tables_and_columns_of_inputs(tmp_path: Path, postgres_server: DatabaseServer) -> None:
    url = new_database(postgres_server)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES[0])
        connection.execute('create table "Odd" ("a:b" int, free int)')
    (tmp_path / "load.saga.yaml").write_text(
        "saga: load\nsteps:\n  - id: load\n    uses: spark\n    with:\n"
        "      sql: select 1 as a\n      output: {parquet: out}\n"
        "      inputs:\n"
        "        good: {connection: shop, table: stock, columns: [sku, free], where: {sku: a}}\n"
        "        odd: {connection: shop, table: public.Odd, columns: ['a:b']}\n"
        "        computed: {connection: shop, table: '${{ vars.table }}', columns: [nowhere]}\n"
        "        gone: {connection: shop, table: stok}\n"
        "        lost: {connection: shop, table: stock, columns: [sku, fre]}\n"
        "        some: {connection: shop, table: stock, where: {skuu: a}}\n"
        "        part: {connection: shop, query: 'select sku from stock', columns: [free]}\n"
        "        both: {connection: shop, query: 'select fre from stock', columns: [sku]}\n"
        "        wrong: {connection: shop, table: stock, where: {sku: [a, null], free: monday}}\n"
        "        known: {connection: shop, table: stock, where: {sku: '${{ vars.table }}', free: 2}}\n"
        "      audit:\n"
        "        - {relationships: {column: a, field: sku, to: {connection: shop, table: stock, columns: [a]}}}\n"
        "  - {id: same, uses: reconcile, effect: none, with: {key: a, left: {parquet: x},"
        " right: {connection: shop, table: stoc}}}\n"
    )
    settings = (
        f'definitions = ["."]\n[connections.shop]\nurl = "{url}"\n[spark]\nledger = "shop"\n[vars]\ntable = "stock"\n'
    )
    (tmp_path / "saga.toml").write_text(settings)
    of_project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    assert [each for each in of_project.diagnostics if each.severity == "error"] == []
    lines = (tmp_path / "load.saga.yaml").read_text().splitlines()

    def at(line: int, word: str) -> str:
        return f"{tmp_path}/load.saga.yaml:{line}:{lines[line - 1].rindex(word) + 1}"

    refused = "load/load: PostgreSQL cannot prepare the statement: "
    assert sorted(problem.message for problem in await problems(of_project)) == [
        f'{at(12, "stok")} {refused}relation "stok" does not exist; tables are also missing for 1 more statement:'
        f" {at(21, 'stoc')} load/same",
        f'{at(13, "fre")} {refused}column "fre" does not exist',
        f'{at(14, "skuu")} {refused}column "skuu" does not exist',
        f'{at(15, "free")} {refused}column "free" does not exist',
        f'{at(16, "fre from")} {refused}column "fre" does not exist',
        f'{at(17, "monday")} {refused}invalid input syntax for type integer: "monday"',
        f'{at(20, "a]")} {refused}column "a" does not exist',
    ]
