"""The copies of `saga verify-undo`: one for each database, dropped whatever ends the command."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from saga_cli.main import run
from saga_workers.runtime.process_identity import process_identity
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.integration.undo_check.undo_projects import SQLITE_TABLES, last_step, problems, sql, verified, write_project

TABLES = "create table if not exists account (id text primary key, n integer);"

ENDING = """
import asyncio
import os
import signal
from sagas import Step, action

@action("end", connection="shop")
async def end(step: Step) -> dict:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(60)
    return {}
"""


def test_two_connections_to_a_database_share_its_copy(postgres_server: DatabaseServer, tmp_path: Path) -> None:
    url = new_database(postgres_server)
    other = f'[connections.other]\nurl = "{url}?application_name=other"\n'
    undo = {**sql("update account set n = n + 1")}
    undo["with"]["connection"] = "other"
    step = {"id": "a", **sql("update account set n = n - 1", compensate=undo)}
    tables = f"{TABLES} insert into account values ('a', 10) on conflict do nothing;"
    report = verified(write_project(tmp_path, url, tables, [step, last_step()], settings=other), limit=2)
    assert problems(report) == []
    assert [step.result for step in report.steps] == ["verified"]


def test_two_connections_to_a_file_share_its_copy(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    undo = {**sql("update account set n = n + 1")}
    undo["with"]["connection"] = "other"
    step = {"id": "a", **sql("update account set n = n - 1", compensate=undo)}
    settings = f'[connections.other]\nurl = "{url}"\n'
    report = verified(write_project(tmp_path, url, SQLITE_TABLES, [step, last_step()], settings=settings), limit=2)
    assert problems(report) == []
    assert [step.result for step in report.steps] == ["verified"]


@pytest.fixture
def administrator(postgres_server: DatabaseServer) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_server.url().replace("+psycopg", ""), autocommit=True) as session:
        yield session
        for name in copies(session):
            session.execute(f"drop database {name}")  # pyright: ignore[reportArgumentType,reportCallIssue]


def copies(session: psycopg.Connection) -> list[str]:
    rows = session.execute("select datname from pg_database where starts_with(datname, 'saga_verify_undo_') order by 1")
    return [name for (name,) in rows.fetchall()]


def test_a_terminated_command_drops_its_copies(
    postgres_server: DatabaseServer,
    administrator: psycopg.Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = new_database(postgres_server)
    step = {"id": "a", "uses": "end", "compensate": sql("select 1 as x")}
    write_project(tmp_path, url, TABLES, [step, last_step()], ENDING)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    assert run(["verify-undo", "s"]) == 143
    assert copies(administrator) == []
    assert list((tmp_path / "temporary").iterdir()) == []


def test_what_a_killed_command_has_left_is_removed_by_the_next_one(
    postgres_server: DatabaseServer,
    administrator: psycopg.Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    machine, _, began, world = process_identity().rsplit("/", 3)
    dead = f"{machine}/{ended.pid}/{began}/{world}"
    for name, owner in (("dead", dead), ("alive", process_identity()), ("unclear", f"other/1/1.00/{world}")):
        administrator.execute(f"create database saga_verify_undo_{name} strategy file_copy")  # pyright: ignore[reportArgumentType,reportCallIssue]
        administrator.execute(f"comment on database saga_verify_undo_{name} is 'saga verify-undo by {owner}'")  # pyright: ignore[reportArgumentType,reportCallIssue]
    for name, owner in (("dead", dead), ("alive", process_identity())):
        (folder := tmp_path / f"saga-verify-undo-{name}").mkdir()
        (folder / "owner").write_text(owner)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    step = {"id": "a", **sql("select 1 as x", compensate=sql("select 1 as x"))}
    report = verified(write_project(tmp_path, new_database(postgres_server), TABLES, [step, last_step()]), limit=1)
    assert copies(administrator) == ["saga_verify_undo_alive", "saga_verify_undo_unclear"]
    assert report.other_copies == ("saga_verify_undo_unclear",)
    assert [path.name for path in tmp_path.glob("saga-verify-undo-*")] == ["saga-verify-undo-alive"]
