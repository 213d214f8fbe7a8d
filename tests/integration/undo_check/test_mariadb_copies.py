"""`saga verify-undo` on MariaDB: the copy has all that the database has, and no statement leaves it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from saga_activities.connections import open_engine
from saga_workers.runtime.process_identity import process_identity
from sagas.errors import SagaError
from sagas.project import Project
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_mariadb_database
from tests.integration.undo_check.undo_projects import last_step, problems, sql, verified, write_project

TABLES = """
create table if not exists account (id varchar(20) primary key, n integer not null, r decimal(10, 2), f float);
insert ignore into account values ('a', 10, 1.50, 0);
create table if not exists booking (
  id integer auto_increment primary key, account varchar(20) not null, doubled integer as (id * 2),
  foreign key (account) references account (id) on delete cascade
) auto_increment = 100;
insert ignore into booking (id, account) values (7, 'a');
create table if not exists `we%ird:t` (`a:b` varchar(20) primary key, `c%s` int, `q"``q` varbinary(9));
insert ignore into `we%ird:t` values ('ü', 1, 'x');
create table if not exists log (line text);
create sequence if not exists invoice_number;
"""
OBJECTS = (
    "create view poor as select account.id from {database}.account where n < 5",
    "create view poorest as select poor.id from poor where id > ''",
    "create function doubled(x integer) returns integer deterministic return x * 2",
    "create trigger logged after update on account for each row insert into log values (new.n)",
    "create trigger numbered before insert on booking for each row"
    " insert into {database}.log values (concat(new.account, nextval({database}.invoice_number)))",
)


def run_sql(url: str, *statements: str) -> list[Sequence[Any]]:
    """The rows of the last statement."""

    async def run() -> list[Sequence[Any]]:
        engine = open_engine("test", url, 1)
        rows: list[Sequence[Any]] = []
        async with engine.connect() as session:
            for statement in statements:
                result = await session.exec_driver_sql(statement)
                rows = [tuple(row) for row in result] if result.returns_rows else []
        await engine.dispose()
        return rows

    return asyncio.run(run())


@pytest.fixture
def url(mariadb_server: DatabaseServer) -> str:
    return asyncio.run(new_mariadb_database(mariadb_server))


def shop_project(folder: Path, url: str, steps: list[dict[str, Any]], actions: str = "", settings: str = "") -> Project:
    """A project on a database with views, functions, triggers and sequences."""
    project = write_project(folder, url, TABLES, steps, actions, settings)
    database = url.rpartition("/")[2]
    run_sql(url, *(statement.format(database=database).replace("%", "%%") for statement in OBJECTS))
    return project


def test_all_that_a_database_has_is_copied_and_compared(url: str, tmp_path: Path) -> None:
    step = sql(
        "update account set n = doubled(n), r = 2, f = 1",
        "insert into booking (account) values ('a')",
        """update `we%ird:t` set `q"``q` = 'y'""",
        "insert into account (id, n) select concat(id, count(*)), 1 from poorest",
        compensate=sql(
            "update account set n = n / 2 + 1, r = 1.5, f = -0e0",
            "delete from booking where id > 100",
            "delete from account where id <> 'a'",
        ),
    )
    project = shop_project(tmp_path, url, [{"id": "a", **step}, last_step()])
    read = "select id, account, doubled from booking"
    before = run_sql(url, read)
    report = verified(project, limit=2)
    assert problems(report) == [
        "the undo of a leaves 1 changed row in shop · account (id=a): n",
        "the undo of a leaves 1 extra row in shop · booking (id=100)",
        "the undo of a leaves 4 extra rows in shop · log",
        'the undo of a leaves 1 changed row in shop · we%ird:t (a:b=ü): q"`q',
    ]
    assert run_sql(url, read) == before


def test_waived_places_and_keys_that_have_moved_on(url: str, tmp_path: Path) -> None:
    step = sql(
        "insert into booking (account) values ('a')", "update account set n = n - 1, r = 5",
        compensate=sql("delete from booking where id >= 100", "update account set n = n + 1"),
    )  # fmt: skip
    steps = [{"id": "a", "undo_leaves": ["account.r", "log"], **step}, last_step()]
    report = verified(shop_project(tmp_path, url, steps), limit=2)
    assert problems(report) == []
    assert [step.result for step in report.steps] == ["verified"]
    assert report.sequences == ("booking.id", "invoice_number")
    assert report.unused_waivers == ()


def test_two_connections_to_a_database_share_its_copy(url: str, tmp_path: Path) -> None:
    other = f'[connections.other]\nurl = "{url.replace("127.0.0.1", "localhost")}"\n'
    undo = {**sql("update account set n = n + 1")}
    undo["with"]["connection"] = "other"
    step = {"id": "a", **sql("update account set n = n - 1", compensate=undo), "undo_leaves": ["log"]}
    report = verified(shop_project(tmp_path, url, [step, last_step()], settings=other), limit=2)
    assert problems(report) == []
    assert [step.result for step in report.steps] == ["verified"]


WRITING = """
from sagas import Step, action

@action("write", connection="shop")
async def write(step: Step) -> dict:
    await step.sql.execute("update {database}.account set n = 99")
    return {{}}
"""


def test_a_statement_that_names_the_original_is_not_run(url: str, tmp_path: Path) -> None:
    database = url.rpartition("/")[2]
    step = {"id": "a", "uses": "write", "compensate": sql("select 1 as x")}
    actions = WRITING.format(database=database)
    project = shop_project(tmp_path, url, [step, last_step()], actions)
    with pytest.raises(SagaError, match=f"the statement names the database {database}"):
        verified(project, limit=2)
    assert run_sql(url, "select n from account") == [(10,)]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("create view far as select host from mysql.db", "the view far names the database mysql"),
        (
            "create trigger far after delete on account for each row update {other}.log set line = 1",
            "the trigger far names the database {other}",
        ),
        (
            "create table twice (line text) engine = merge union = (other_log)",
            r"rows of the table twice are elsewhere \(its engine is MRG_",
        ),
        (
            "create table child (a int, foreign key (a) references {other}.parent (a))",
            "the table child names the database {other}",
        ),
    ],
)
def test_what_reaches_another_database_is_refused(
    statement: str, message: str, url: str, mariadb_server: DatabaseServer, tmp_path: Path
) -> None:
    other = asyncio.run(new_mariadb_database(mariadb_server))
    run_sql(other, "create table log (line text)", "create table parent (a int primary key)")
    name = other.rpartition("/")[2]
    project = write_project(tmp_path, url, TABLES, [last_step()])
    run_sql(url, "create table other_log (line text) engine = myisam", statement.format(other=name))
    with pytest.raises(SagaError, match=f"shop cannot be copied: {message.format(other=name)}"):
        verified(project, limit=1)


def test_what_a_killed_command_has_left_is_removed_by_the_next_one(
    url: str, mariadb_server: DatabaseServer, tmp_path: Path
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    machine, _, began, world = process_identity().rsplit("/", 3)
    owners = {
        "dead": f"{machine}/{ended.pid}/{began}/{world}",
        "alive": process_identity(),
        "unclear": f"other/1/1.00/{world}",
    }
    for name, owner in owners.items():
        copy = f"saga_verify_undo_{name}"
        comment = f"saga verify-undo by {owner}"
        run_sql(
            url,
            f"create database {copy}",
            f"create table {copy}.saga_verify_undo_owner (made int) comment '{comment}'",
        )
    step = {"id": "a", **sql("select 1 as x", compensate=sql("select 1 as x"))}
    try:
        report = verified(write_project(tmp_path, url, TABLES, [step, last_step()]), limit=1)
        copies = run_sql(url, "show databases like 'saga\\_verify\\_undo\\_%%'")
        assert [name for (name,) in copies] == ["saga_verify_undo_alive", "saga_verify_undo_unclear"]
        assert report.other_copies == ("saga_verify_undo_unclear",)
    finally:
        for name in owners:
            run_sql(url, f"drop database if exists saga_verify_undo_{name}")


def test_a_user_without_the_right_to_make_copies_is_told_so(
    url: str, mariadb_server: DatabaseServer, tmp_path: Path
) -> None:
    database = url.rpartition("/")[2]
    user = f"u{database[5:20]}"
    run_sql(url, f"create user {user} identified by 'secret'", f"grant all on {database}.* to {user}")
    own = url.replace("root@", f"{user}:secret@")
    step = {"id": "a", **sql("update account set n = n - 1", compensate=sql("update account set n = n + 1"))}
    project = write_project(tmp_path, own, TABLES, [step, last_step()])
    with pytest.raises(SagaError, match="cannot be copied: Access denied") as refused:
        verified(project, limit=2)
    assert "GRANT ALL ON `saga\\_verify\\_undo\\_%`.*" in (refused.value.help or "")
    run_sql(url, f"grant all on `saga\\_verify\\_undo\\_%%`.* to {user}")
    try:
        report = verified(project, limit=2)
        assert [step.result for step in report.steps] == ["verified"]
        assert report.hidden == ()
    finally:
        run_sql(url, f"drop user {user}")
