"""Checks of `saga setup` and `saga doctor` on the tables of steps with `compensate: auto`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

import psycopg

from saga_workers.doctor.automatic_steps import automatic_step_problems
from sagas.project import Project
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import make_project
from tests.helpers.new_databases import new_database, new_mariadb_database
from tests.integration.guard.conftest import open_guard_database

ORDER = """
saga: order
steps:
  - id: take
    uses: sql
    with: {connection: shop, run: [{sql: "update stock set free = 1"}, {sql: "insert into log values ('x')"}]}
    compensate: auto
"""
PLAIN = "saga: plain\nsteps:\n  - {id: take, uses: sql, with: {connection: shop, run: delete from log}, pivot: true}\n"


def project(folder: Path, **definitions: str) -> Project:
    url = f"sqlite+aiosqlite:///{folder / 'shop.db'}"
    made = make_project(folder, definitions, [], address="none", connections={"shop": url})
    assert made.diagnostics == []
    return made


async def test_tables_that_cannot_be_restored_are_named(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "shop.db")
    database.executescript("create table stock (sku text primary key, free integer); create table log (note text)")
    problems = await automatic_step_problems(project(tmp_path, order=ORDER, plain=PLAIN))
    assert problems == [
        f"order/take ({tmp_path}/order.saga.yaml:4): `compensate: auto` cannot undo this statement: the table log"
        " has no primary key",
    ]
    database.executescript("drop table log; create table log (note text primary key)")
    assert await automatic_step_problems(project(tmp_path, order=ORDER)) == []
    database.close()


def keyless_tables(folder: Path, names: Iterable[str]) -> None:
    database = sqlite3.connect(folder / "shop.db")
    for name in names:
        database.execute(f"create table {name} (n int)")
    database.close()


async def test_an_obstacle_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "wide").mkdir()
    keyless_tables(tmp_path, ("kacc", "klog"))
    keyless_tables(tmp_path / "wide", (f"t{n}" for n in range(25)))
    step = "  - {{id: s{0}, uses: sql, with: {{connection: shop, run: update {1} set n = {0}}}, compensate: auto}}\n"
    many = "saga: many\nsteps:\n" + "".join(step.format(n, "kacc" if n % 3 else "klog") for n in range(1, 12))
    wide = "saga: wide\nsteps:\n" + "".join(step.format(n, f"t{n}") for n in range(25))
    told = "`compensate: auto` cannot undo this statement: the table"
    file = tmp_path / "many.saga.yaml"
    assert await automatic_step_problems(project(tmp_path, many=many)) == [
        f"many/s1 ({file}:3): {told} kacc has no primary key (7 more statements)",
        f"many/s3 ({file}:5): {told} klog has no primary key (2 more statements)",
    ]
    problems = await automatic_step_problems(project(tmp_path / "wide", wide=wide))
    assert problems is not None
    assert len(problems) == 21
    assert problems[-1] == "there are 5 more problems: correct these first"


async def test_a_project_without_automatic_steps_has_nothing_to_check(tmp_path: Path) -> None:
    assert await automatic_step_problems(project(tmp_path, plain=PLAIN)) is None


async def test_what_the_undo_may_lack_is_named(tmp_path: Path, postgres_server: DatabaseServer) -> None:
    url = new_database(postgres_server)
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(
            "create table stock (sku text primary key, free int); create table log (note tsvector primary key)"
        )
        owner.execute("alter table stock add constraint positive check (free > 0) not valid")
    made = make_project(tmp_path, {"order": ORDER}, [], address="none", connections={"shop": url})
    place = f"order/take ({tmp_path}/order.saga.yaml:4)"
    assert await automatic_step_problems(made) == [
        f"{place}: the constraint positive of public.stock is not validated, and rows that violate it are refused;"
        " validate it",
        f"{place}: `compensate: auto` cannot undo this statement: two values of the key column note of public.log"
        " (tsvector) may be equal and differ as text, so its rows cannot be told apart",
    ]


TWICE = """
saga: twice
steps:
  - {id: a, uses: sql, with: {connection: my, run: "update SCHEMA.stock set free = 1"}, compensate: auto}
  - {id: b, uses: sql, with: {connection: my2, run: "update stock set free = 2"}, compensate: auto}
"""


async def test_a_table_that_a_saga_changes_through_two_databases_is_named(
    tmp_path: Path, mariadb_server: DatabaseServer
) -> None:
    urls = [await new_mariadb_database(mariadb_server) for _ in range(2)]
    schema = urls[1].rpartition("/")[2]
    for url in urls:
        opened = await open_guard_database("mariadb", url)
        if url == urls[1]:
            async with opened.engine.connect() as connection:
                await connection.exec_driver_sql("create table stock (sku varchar(9) primary key, free int)")
        await opened.connections.close()
    connections: dict[str, str] = dict(zip(("my", "my2"), urls, strict=True))
    definitions = {"twice": TWICE.replace("SCHEMA", schema)}
    made = make_project(tmp_path, definitions, [], address="none", connections=connections)
    assert await automatic_step_problems(made) == [
        f"twice/b ({tmp_path}/twice.saga.yaml:5): it changes {schema}.stock through the connection my2, and"
        " twice/a through my: use one of them, or a saga that changes a row through both is refused",
    ]
    definitions = {
        "twice": TWICE.replace("SCHEMA", schema).replace(
            'connection: my2, run: "update stock', f'connection: my, run: "update {schema}.stock'
        )
    }
    made = make_project(tmp_path / "once", definitions, [], address="none", connections=connections)
    assert await automatic_step_problems(made) == []
