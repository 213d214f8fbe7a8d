"""What `saga setup` and `saga doctor` say about the tables of steps with `compensate: auto`."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from saga_workers.doctor.automatic_steps import automatic_step_problems
from sagas.settings.project import Project
from tests.helpers.local_worker import make_project

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
        "order/take: `compensate: auto` cannot undo this statement: the table log has no primary key",
    ]
    database.executescript("drop table log; create table log (note text primary key)")
    assert await automatic_step_problems(project(tmp_path, order=ORDER)) == []
    database.close()


async def test_a_project_without_automatic_steps_has_nothing_to_check(tmp_path: Path) -> None:
    assert await automatic_step_problems(project(tmp_path, plain=PLAIN)) is None
