"""`saga verify-undo` on real databases: what an undo leaves is named, and the original is not written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from sqlalchemy import make_url

from saga_cli.main import run
from saga_workers.runtime.databases import set_up_database
from saga_workers.undo_check.problem_lines import problem_lines
from saga_workers.undo_check.undo_check import GivenInput, verify_undo
from saga_workers.undo_check.undo_report import UndoReport
from sagas.errors import SagaError, UsageError
from sagas.project import Project
from sagas.settings import load_settings
from sagas.testing import Sagas
from sagas.text.exact_json import decode_json
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database, new_mariadb_database
from tests.integration.undo_check.pooler import pooler_of_one_database

SCHEMA = """
create table if not exists account (id text primary key, balance integer not null, changes integer not null default 0);
create table if not exists booking (id serial primary key, account text not null, amount integer not null);
create table if not exists audit_log (line text not null);
insert into account (id, balance) values ('anna', 10), ('ben', 10) on conflict do nothing;
"""

SAGA = """
saga: transfer
input: {{type: object, properties: {{amount: {{type: integer, examples: [3]}}}}}}
defaults: {{connection: shop}}
steps:
  - id: book
    uses: sql
    with:
      run: insert into booking (account, amount) values ('anna', :amount) returning id
      params: {{amount: "${{{{ input.amount }}}}"}}
    compensate: {{uses: sql, with: {{run: "delete from booking where id = :id",
      params: {{id: "${{{{ steps.book.result[0].id }}}}"}}}}}}
  - id: withdraw
    uses: sql
    with:
      run: "update account set balance = balance - :amount, changes = changes + 1 where id = 'anna'"
      params: {{amount: "${{{{ input.amount }}}}"}}
    compensate:
      uses: sql
      with:
        run:
          - sql: {undo}
          - sql: insert into audit_log values ('undone')
    undo_leaves: [{leaves}]
  - {{id: ask, uses: http, with: {{url: "http://127.0.0.1:9/", method: POST}}, idempotent: true,
     compensate: {{uses: http, with: {{url: "http://127.0.0.1:9/", method: DELETE}}}}}}
  - {{id: pay, uses: sql, pivot: true, with: {{run: "update account set balance = balance + 3 where id = 'ben'"}}}}
"""

WHOLE_UNDO = "update account set balance = balance + 3, changes = changes - 1 where id = 'anna'"
HALF_UNDO = "update account set balance = balance + 2 where id = 'anna'"
NO_SUCH_COLUMN = "update account set nothing = 1 where id = 'anna'"


@pytest.fixture(params=["postgresql", "mariadb", "sqlite"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database for the connection `shop`."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    if request.param == "mariadb":
        return asyncio.run(new_mariadb_database(request.getfixturevalue("mariadb_server")))
    return new_database(request.getfixturevalue("postgres_server"))


def write_project(folder: Path, url: str, undo: str, leaves: str = "") -> Project:
    schema = SCHEMA
    if url.startswith("sqlite"):
        schema = schema.replace("serial primary", "integer primary")
    if url.startswith("mariadb"):
        schema = schema.replace("text primary", "varchar(20) primary").replace(" on conflict do nothing", "")
        schema = schema.replace("insert into", "insert ignore into")
    (folder / "saga.toml").write_text(f'[connections.shop]\nurl = "{url}"\nschema = "schema.sql"\n')
    (folder / "schema.sql").write_text(schema)
    (folder / "definitions").mkdir()
    (folder / "definitions" / "transfer.saga.yaml").write_text(SAGA.format(undo=undo, leaves=leaves))
    project = Project(load_settings(folder))
    [connection] = project.settings.sql_connections()
    asyncio.run(set_up_database(connection))
    return project


def verified(project: Project) -> UndoReport:
    return asyncio.run(verify_undo(project, project.definition("transfer"), [GivenInput({"amount": 3})], limit=6))


def test_a_complete_undo_passes_and_what_is_not_run_is_named(shop: str, tmp_path: Path) -> None:
    project = write_project(tmp_path, shop, WHOLE_UNDO, "audit_log")
    report = verified(project)
    assert not report.differs, list(problem_lines(report))
    results = {step.step: step.result for step in report.steps}
    assert results == {"book": "verified", "withdraw": "verified", "ask": "not verified"}
    assert {order.undone for order in report.orders} >= {("book",), ("withdraw", "book"), ("ask", "withdraw", "book")}
    assert report.unused_waivers == ()


def test_rows_and_columns_that_an_undo_leaves_are_named(tmp_path: Path) -> None:
    project = write_project(tmp_path, f"sqlite:///{tmp_path / 'shop.db'}", HALF_UNDO, "account.changes")
    lines = list(problem_lines(verified(project)))
    assert [line.partition(" (after")[0] for line in lines] == [
        "the undo of withdraw leaves 1 changed row in shop · account (id=anna): balance",
        "the undo of withdraw leaves 1 extra row in shop · audit_log",
    ]


def test_an_undo_that_the_database_refuses_is_named(tmp_path: Path) -> None:
    report = verified(write_project(tmp_path, f"sqlite:///{tmp_path / 'shop.db'}", NO_SUCH_COLUMN))
    assert report.differs
    [line] = problem_lines(report)
    assert line.startswith("the undo of withdraw fails: ")


@pytest.fixture
def used_database(postgres_server: DatabaseServer) -> Iterator[tuple[str, psycopg.Connection]]:
    """A database to which another session is connected, and that session."""
    url = new_database(postgres_server)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as session:
        yield url, session


def test_the_original_is_only_read_while_others_use_it(
    used_database: tuple[str, psycopg.Connection],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, session = used_database
    write_project(tmp_path, url, HALF_UNDO)
    session.execute("insert into booking (account, amount) values ('ben', 1)")
    rows = "select account.xmin::text, * from account, booking order by 2"
    before = session.execute(rows).fetchall()
    monkeypatch.chdir(tmp_path)
    assert run(["verify-undo", "transfer", "--input", '{"amount": 3}', "--limit", "3", "-o", "json"]) == 8
    report = decode_json(capsys.readouterr().out)
    assert report["sequences"] == ["booking_id_seq"]
    assert session.execute(rows).fetchall() == before
    assert session.execute("select count(*) from saga_guard").fetchone() == (0,)
    copies = session.execute("select datname from pg_database where datname like 'saga_verify_undo_%'").fetchall()
    assert copies == []


def test_a_url_that_gives_the_database_as_an_argument_is_refused(
    used_database: tuple[str, psycopg.Connection], tmp_path: Path
) -> None:
    url, session = used_database
    name = url.rpartition("/")[2]
    project = write_project(tmp_path, f"{url}?dbname={name}", WHOLE_UNDO, "audit_log")
    with pytest.raises(UsageError, match=r"connections\.shop\.url must name the database as its path"):
        verified(project)
    assert session.execute("select last_value, is_called from booking_id_seq").fetchone() == (1, False)


@pytest.mark.parametrize(
    ("alias", "message"),
    [(False, "leads to the database test_.* also with the name of a copy"), (True, "has no database alias")],
)
def test_a_pooler_that_leads_to_another_database_is_refused(
    alias: bool, message: str, used_database: tuple[str, psycopg.Connection], tmp_path: Path
) -> None:
    url, session = used_database
    project = write_project(tmp_path, url, WHOLE_UNDO, "audit_log")
    database, server = make_url(url).database, make_url(url)
    given = server.set(database="alias") if alias else server

    async def verify() -> None:
        async with pooler_of_one_database(server) as port:
            through = given.set(port=port, query={"sslmode": "disable", "gssencmode": "disable"})
            written = (tmp_path / "saga.toml").read_text().replace(url, through.render_as_string(hide_password=False))
            (tmp_path / "saga.toml").write_text(written)
            other = Project(load_settings(tmp_path))
            await verify_undo(other, project.definition("transfer"), [GivenInput({"amount": 3})], limit=1)

    with pytest.raises(SagaError, match=message):
        asyncio.run(verify())
    assert session.execute("select last_value, is_called from booking_id_seq").fetchone() == (1, False)
    copies = session.execute("select datname from pg_database where datname like 'saga_verify_undo_%'").fetchall()
    assert (database, copies) == (session.info.dbname, [])


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("create extension dblink", "extension dblink"),
        ("create foreign data wrapper other; create server far foreign data wrapper other", "foreign server far"),
    ],
)
def test_a_database_that_reaches_others_is_refused(
    statement: LiteralString, name: str, used_database: tuple[str, psycopg.Connection], tmp_path: Path
) -> None:
    url, session = used_database
    session.execute(statement)
    with pytest.raises(SagaError, match=f"has the {name}, through which a copy would write"):
        verified(write_project(tmp_path, url, WHOLE_UNDO, "audit_log"))


def test_the_inputs_of_tests_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(tmp_path, f"sqlite:///{tmp_path / 'shop.db'}", WHOLE_UNDO, "audit_log")
    (tmp_path / "test_transfer.py").write_text(
        'from decimal import Decimal\nINPUT = {"amount": 3}\n\n\ndef test_it(saga):\n    saga.run("transfer", INPUT)\n'
    )
    monkeypatch.chdir(tmp_path)
    assert run(["verify-undo", "transfer", "--limit", "3", "-o", "json"]) == 0
    assert decode_json(capsys.readouterr().out)["input"] == {"amount": 3}


def test_the_pytest_plugin_fails_a_test_with_what_is_left(tmp_path: Path) -> None:
    project = write_project(tmp_path, f"sqlite:///{tmp_path / 'shop.db'}", HALF_UNDO, "audit_log")
    with pytest.raises(pytest.fail.Exception, match="changed row in shop · account"):
        Sagas(project).verify_undo("transfer", {"amount": 3}, limit=3)
