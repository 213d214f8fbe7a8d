"""The embedded stack from the outside: what a user sees, and what is left when parts of it are killed."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import LiteralString

import psutil
import psycopg
import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

from saga_workers.devstack.dev_folder import DevFolder, ServiceRecord
from saga_workers.devstack.os_process import MARK_VARIABLE
from saga_workers.devstack.service import http_get
from saga_workers.temporal.search_attributes import missing_attributes
from saga_workers.temporal.temporal_client import connect
from sagas.settings import load_settings
from sagas.settings.dev_stack import ProcessId, start_mark
from sagas.text.printable import MASK
from tests.integration.dev.conftest import SAGA, Project, usual_port_taken


def sql(status: dict, statement: LiteralString) -> list[tuple]:
    url = status["connections"]["shop"].replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


async def test_up_starts_everything_and_a_second_up_changes_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "SQL_ASCII")  # psycopg would give bytes for every text
    first = project.up()
    assert first["temporal"]["state"] == first["postgres"]["state"] == "running"
    assert first["worker"] == {"state": "stopped", "pid": None}
    assert http_get(int(first["temporal"]["web_ui"].rpartition(":")[2]), "/")[0] == 200
    assert sql(first, "select count(*) from stock") == [(0,)]  # schema.sql has been applied
    assert sql(first, "select count(*) from saga_guard") == [(0,)]  # and the guard's tables are there

    query = [*SAGA, "dev", "psql", "shop", "-c", "select count(*) from stock"]
    monkeypatch.delenv("PGCLIENTENCODING")
    asked = await asyncio.to_thread(subprocess.run, query, cwd=project.root, capture_output=True, text=True)
    assert "(1 row)" in asked.stdout

    assert project.up() == first == project.status()

    client = await connect(load_settings(project.root, env={}))
    assert await missing_attributes(client) == []
    namespace = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
    assert namespace.config.workflow_execution_retention_ttl.ToTimedelta() == timedelta(days=30)

    assert (project.root / ".saga" / ".gitignore").read_text() == "*\n"
    assert stat.S_IMODE((project.root / ".saga" / "dev.toml").stat().st_mode) == 0o600


def test_a_web_page_cannot_reach_temporal(project: Project) -> None:
    """A cross-site POST as a browser sends it without asking: any page, also one whose name leads to this machine."""
    status = project.up("--only", "temporal")
    web_ui = int(status["temporal"]["web_ui"].rpartition(":")[2])
    ports = (DevFolder(project.root).read("temporal").ports["http_port"], web_ui)
    start = '{"workflowType": {"name": "anything"}, "taskQueue": {"name": "sagas"}}'
    for port in ports:
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", "shop.example.com", ""):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            headers = {"Host": host, "Origin": "http://shop.example.com", "Content-Type": "text/plain"}
            connection.request("POST", "/api/v1/namespaces/default/workflows/forged", start, headers)
            assert connection.getresponse().status in (400, 403)
            connection.close()
    assert http_get(ports[1], "/api/v1/namespaces/default/workflows/forged")[0] == 404
    assert http_get(ports[0], "/api/v1/namespaces/default")[0] == 403
    # Except for Nexus, which the server dispatches for any page: once it refuses, the trust model can say so.
    connection = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=30)
    headers = {"Host": "shop.example.com", "Origin": "http://shop.example.com", "Request-Timeout": "100ms"}
    connection.request("POST", "/namespaces/default/task-queues/sagas/nexus-services/any/operation", "{}", headers)
    assert b"UPSTREAM_TIMEOUT" in connection.getresponse().read(), "it has waited for a worker with Nexus services"
    connection.close()


@pytest.mark.slow
def test_a_connection_has_no_rights_outside_its_database(project: Project) -> None:
    (project.root / "saga.toml").write_text("[connections.shop]\n[connections.finance]\n", encoding="utf-8")
    status = project.up("--only", "postgres")
    role = "select rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls from pg_roles"
    assert sql(status, f"{role} where rolname = current_user") == [(False,) * 5]
    assert sql(status, "select datname from pg_database where datdba = current_user::regrole") == [("shop",)]
    for forbidden in (
        "select lo_export(lo_from_bytea(0, 'x'), '/tmp/forged')",
        "copy (select 1) to program 'true'",
        "create database other",
        "create role other superuser",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            sql(status, forbidden)
    url = status["connections"]["shop"].replace("postgresql+psycopg", "postgresql")
    for other in ("finance", "postgres"):
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            psycopg.connect(url.removesuffix("shop") + other)


SHADOWED_BY_ITS_OWNER: LiteralString = """
create function public.forged(oid, int4) returns boolean language plpgsql as $$ begin
  if current_setting('is_superuser') = 'on' then
    alter role saga_shop superuser;
  end if;
  return $1 operator(pg_catalog.=) $2::oid;
end $$;
create operator public.= (leftarg = oid, rightarg = int4, function = public.forged);
create function public.forged(name, name) returns boolean language plpgsql as $$ begin
  if current_setting('is_superuser') = 'on' then
    alter role saga_shop superuser;
  end if;
  return $1 operator(pg_catalog.=) $2;
end $$;
create operator public.= (leftarg = name, rightarg = name, function = public.forged);
alter database shop set search_path = public, pg_catalog;
create type mood as enum ('calm');
"""


@pytest.mark.slow
def test_what_an_owner_creates_does_not_run_as_superuser(project: Project) -> None:
    """Each `up` enters the databases as superuser."""
    sql(project.up("--only", "postgres"), SHADOWED_BY_ITS_OWNER)
    status = project.up("--only", "postgres")
    [(is_superuser,)] = sql(status, "select rolsuper from pg_catalog.pg_roles where rolname::text = current_user::text")
    assert not is_superuser


@pytest.mark.slow
def test_a_database_of_the_superuser_changes_its_owner(project: Project) -> None:
    """Created by hand with the URL of the superuser."""
    status = project.up("--only", "postgres")
    admin = status["postgres"]["url"].replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("create database legacy")
    with psycopg.connect(admin.removesuffix("postgres") + "legacy", autocommit=True) as connection:
        connection.execute("""
            create extension pg_trgm;
            create schema "Old one";
            create type "Old one".colour as enum ('red');
            create domain "Old one".positive as int check (value > 0);
            create table "Old one".stock (
              id serial primary key, number int generated always as identity, colour "Old one".colour
            );
            create table events (at int) partition by range (at);
            create table events_1 partition of events for values from (1) to (9);
            create view totals as select count(*) from "Old one".stock;
            create materialized view counts as select count(*) from events;
            create sequence tickets;
            create function total(a int, b int) returns int language sql as 'select a + b';
            create procedure clear() language sql as 'delete from events';
            create statistics both_columns on id, number from "Old one".stock;
            create publication changes for table events;
            insert into "Old one".stock (colour) values ('red');
            select lo_from_bytea(0, 'x');
        """)
    (project.root / "saga.toml").write_text("[connections.legacy]\n", encoding="utf-8")
    for _ in range(2):
        status = project.up("--only", "postgres")
        status["connections"]["shop"] = status["connections"]["legacy"]
        assert sql(status, 'select colour from "Old one".stock') == [("red",)]
        sql(status, 'alter table "Old one".stock add column if not exists note text')
        sql(status, "drop publication if exists changes")
        sql(status, "drop statistics if exists both_columns")
        relations = "select distinct relowner::regrole::text from pg_class where relnamespace::regnamespace::text"
        assert sql(status, f"{relations} in ('public', '\"Old one\"')") == [("saga_legacy",)]
        assert sql(status, "select lomowner::regrole::text from pg_largeobject_metadata") == [("saga_legacy",)]
        with psycopg.connect(admin.removesuffix("postgres") + "legacy", autocommit=True) as connection:
            connection.execute("create table if not exists later (id int)")
        sql(status, "insert into later values (1)")
    assert sql(status, "select count(*) from later") == [(2,)]


@pytest.mark.slow
def test_an_owner_does_not_change_under_an_open_transaction(project: Project) -> None:
    status = project.up("--only", "postgres")
    admin = status["postgres"]["url"].replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("create database legacy")
    with psycopg.connect(admin.removesuffix("postgres") + "legacy") as connection:
        connection.execute("create table held (id int)")
        connection.commit()
        connection.execute("insert into held values (1)")
        (project.root / "saga.toml").write_text("[connections.legacy]\n", encoding="utf-8")
        assert "pg_prepared_xacts" in project.call("dev", "up", "--only", "postgres").stderr
        connection.commit()
    status = project.up("--only", "postgres")
    status["connections"]["shop"] = status["connections"]["legacy"]
    assert sql(status, "update held set id = 2 returning id") == [(2,)]


@pytest.mark.slow
async def test_killed_servers_restart_with_their_data_and_ports(project: Project) -> None:
    with usual_port_taken():
        before = project.up()
    sql(before, "insert into stock values ('apple')")
    client = await connect(load_settings(project.root, env={}))
    await client.start_workflow("nobody-serves-this", id="kept", task_queue="none")

    for name in ("temporal", "postgres"):
        os.kill(before[name]["pid"], signal.SIGKILL)
    assert {name: project.status()[name]["state"] for name in ("temporal", "postgres")} == {
        "temporal": "failed",
        "postgres": "failed",
    }
    after = project.up()
    for name in ("temporal", "postgres"):
        assert after[name]["pid"] != before[name]["pid"]
        assert after[name]["address"] == before[name]["address"]
    assert sql(after, "select sku from stock") == [("apple",)]
    described = await (await connect(load_settings(project.root, env={}))).get_workflow_handle("kept").describe()
    assert described.workflow_type == "nobody-serves-this"


@pytest.mark.slow
def test_a_frozen_server_is_restarted(project: Project) -> None:
    before = project.up("--only", "temporal")
    os.kill(before["temporal"]["pid"], signal.SIGSTOP)
    after = project.up("--only", "temporal")
    assert after["temporal"]["state"] == "running"
    assert after["temporal"]["pid"] != before["temporal"]["pid"]
    assert start_mark(before["temporal"]["pid"]) is None


@pytest.mark.slow
def test_down_keeps_the_data_and_wipe_deletes_it(project: Project) -> None:
    status = project.up("--only", "postgres")
    sql(status, "insert into stock values ('apple')")
    assert "stopped: postgres" in project.saga("dev", "down")
    assert project.status()["postgres"] == {"state": "stopped", "pid": None}
    assert project.status()["connections"] == {}
    assert sql(project.up("--only", "postgres"), "select sku from stock") == [("apple",)]
    project.saga("dev", "down", "--wipe")
    assert sql(project.up("--only", "postgres"), "select sku from stock") == []
    project.saga("dev", "down")
    assert "nothing was running" in project.saga("dev", "down")


@pytest.mark.slow
def test_a_port_in_use_is_left_to_its_owner(project: Project) -> None:
    first = project.up("--only", "postgres")
    project.saga("dev", "down")
    port = int(first["postgres"]["address"].rpartition(":")[2])
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        second = project.up("--only", "postgres")
        assert second["postgres"]["address"] != first["postgres"]["address"]
        assert sql(second, "select 1") == [(1,)]


@pytest.mark.slow
def test_a_reused_pid_is_never_signalled(project: Project) -> None:
    project.up("--only", "postgres")
    project.saga("dev", "down")
    with subprocess.Popen(["sleep", "60"]) as stranger:
        folder = DevFolder(project.root)
        record = folder.read("postgres")
        folder.write("postgres", ServiceRecord(True, ProcessId(stranger.pid, "another moment"), record.ports))
        (folder.data_folder("postgres") / "cluster" / "postmaster.pid").write_text(f"{stranger.pid}\n{folder.root}\n")

        assert project.status()["postgres"]["state"] == "failed"
        assert sql(project.up("--only", "postgres"), "select 1") == [(1,)]
        project.saga("dev", "down")
        assert stranger.poll() is None
        stranger.kill()


@pytest.mark.slow
def test_a_process_without_its_record_is_rediscovered(project: Project) -> None:
    before = project.up("--only", "temporal")
    DevFolder(project.root).dev.joinpath("temporal.json").unlink()
    project.up("--only", "temporal")
    # Two servers on one file would destroy it.
    ours = f"{DevFolder(project.root).owner()}/temporal"
    assert marks_of("temporal").count(ours) == 1
    assert start_mark(before["temporal"]["pid"]) is None


def marks_of(name: str) -> list[str | None]:
    """The marks of all programs of that name on this machine; those of other tests may end at any time."""
    marks: list[str | None] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.name() == name:
                marks.append(process.environ().get(MARK_VARIABLE))
    return marks


@pytest.mark.slow
def test_concurrent_up_commands_start_one_stack(project: Project) -> None:
    calls = [
        subprocess.Popen(
            [*SAGA, "dev", "up", "--only", "postgres", "--json"], cwd=project.root, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    answers = [json.loads(call.communicate(timeout=120)[0]) for call in calls]
    assert [call.returncode for call in calls] == [0, 0, 0]
    assert answers[0]["postgres"]["state"] == "running"
    assert answers[0]["postgres"] == answers[1]["postgres"] == answers[2]["postgres"]


@pytest.mark.slow
def test_a_copied_project_gets_its_own_stack(project: Project) -> None:
    original = project.up("--only", "postgres")
    copy = Project(project.root.parent / "copy")
    shutil.copytree(project.root, copy.root)  # it fails at a socket
    try:
        assert copy.status()["postgres"] == {"state": "stopped", "pid": None}
        assert copy.up("--only", "postgres")["postgres"]["address"] != original["postgres"]["address"]
    finally:
        copy.saga("dev", "down", "--wipe")
    assert project.status() == original


@pytest.mark.slow
def test_a_configured_server_is_not_started(project: Project) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        (project.root / "saga.toml").write_text(f'[temporal]\naddress = "{address}"\n', encoding="utf-8")
        status = project.up("--only", "temporal")
        assert status["temporal"] == {"state": "running", "pid": None, "address": address, "web_ui": None}


def test_an_invalid_schema_file_gives_a_one_line_error(project: Project) -> None:
    (project.root / "schema.sql").write_text("select 1;\n\ncreate tabel x ();", encoding="utf-8")
    done = project.call("dev", "up", "--only", "postgres")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "schema.sql:3: the database of shop refuses `create tabel x ()`: syntax error" in done.stderr
    assert "the engine's own tables in this database are there already" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_logs(project: Project) -> None:
    assert "no log" in project.call("dev", "logs", "temporal").stderr
    project.up("--only", "postgres")
    assert "ready to accept connections" in project.saga("dev", "logs", "postgres")
    assert project.saga("dev", "logs", "postgres", "--lines", "1").count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="a normal user runs every test here as a normal user")
def test_a_non_root_user_can_run_the_stack(project: Project) -> None:
    """PostgreSQL is started in another way for root; a user namespace makes this process a normal user."""
    user = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if subprocess.run([*user, "true"], check=False).returncode:
        pytest.skip("user namespaces are not allowed here")
    words = [*user, *SAGA, "dev", "up", "--only", "temporal,postgres", "--json"]
    done = subprocess.run(words, cwd=project.root, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert MASK in json.loads(done.stdout)["postgres"]["url"]
    assert sql(project.status(), "select 1") == [(1,)]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="becoming the user nobody needs root")
def test_root_without_user_namespaces_gets_an_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL then runs as `nobody`, which needs access to the project's folder."""
    with tempfile.TemporaryDirectory(prefix="saga nobody ") as name:
        project = Project(Path(name))
        project.root.chmod(0o755)
        programs = project.root / "bin"
        programs.mkdir()
        (programs / "unshare").write_text("#!/bin/sh\nexit 1\n", encoding="ascii")
        (programs / "unshare").chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        try:
            status = project.up("--only", "postgres")
            assert psutil.Process(status["postgres"]["pid"]).username() == "nobody"
        finally:
            project.saga("dev", "down", "--wipe")


@pytest.mark.slow
def test_setup_is_repeatable_and_doctor_passes(project: Project) -> None:
    project.up()
    for _ in range(2):
        assert json.loads(project.saga("setup", "--json"))["done"][0] == "tables of shop"
    plan = json.loads(project.saga("setup", "--print", "--json"))
    assert "saga_guard" in plan["sql"]["shop"]
    assert any("SagaLabels" in command for command in plan["commands"])

    checks = {row["check"]: row for row in json.loads(project.call("doctor", "--json").stdout)}
    for name in ("server", "namespace", "search attributes", "connection shop", "clock of shop", "clock of the server"):
        assert checks[name]["ok"] is True, checks[name]
    assert checks["workers"]["ok"] is False  # none was started


def test_doctor_without_a_server(project: Project) -> None:
    done = project.call("doctor", "--json")
    assert done.returncode == 1
    checks = {row["check"]: row for row in json.loads(done.stdout)}
    assert checks["connection shop"]["ok"] is False
    assert "saga dev up" in checks["connection shop"]["help"]
    assert checks["definition keys"]["ok"] is None  # doctor itself makes none

    (project.root / "saga.toml").write_text('[worker]\naccept = "any"\n', encoding="utf-8")
    checks = {row["check"]: row for row in json.loads(project.call("doctor", "--json").stdout)}
    assert checks["definition keys"]["ok"] is False
    (project.root / "saga.toml").write_text(f'[worker]\ndefinition_key = "{"n" * 32} {"o" * 32}"\n', encoding="utf-8")
    checks = {row["check"]: row for row in json.loads(project.call("doctor", "--json").stdout)}
    assert checks["definition keys"]["ok"] is True
    assert "also verifies (worker.definition_key)" in checks["definition keys"]["message"]


@pytest.mark.slow
def test_the_stack_outlives_the_process_that_started_it(project: Project) -> None:
    call = subprocess.Popen([*SAGA, "dev", "up", "--only", "temporal,postgres"], cwd=project.root)
    time.sleep(0.8)
    call.kill()
    call.wait()
    status = project.up()
    assert status["temporal"]["state"] == status["postgres"]["state"] == "running"
    assert sql(status, "select 1") == [(1,)]


def test_the_worker_restarts_and_reloads_changes(project: Project) -> None:
    first = project.up("--only", "temporal,postgres,worker")
    assert {first[name]["state"] for name in ("temporal", "postgres", "worker")} == {"running"}
    os.kill(first["worker"]["pid"], signal.SIGKILL)
    second = project.up("--only", "temporal,postgres,worker")
    assert second["worker"]["state"] == "running"
    assert second["worker"]["pid"] != first["worker"]["pid"]
    assert second["temporal"] == first["temporal"]

    (project.root / "new_action.py").write_text("", encoding="utf-8")
    third = project.up("--only", "worker")
    assert third["worker"]["pid"] != second["worker"]["pid"]
    assert project.up("--only", "worker") == third

    project.saga("dev", "restart")
    fourth = project.status()
    assert fourth["worker"]["pid"] != third["worker"]["pid"]
    assert fourth["worker"]["state"] == "running"
    assert fourth["temporal"] == third["temporal"]
    assert fourth["relay"]["state"] == "stopped"
    project.saga("dev", "restart", "postgres")
    assert project.status()["postgres"]["pid"] != fourth["postgres"]["pid"]
    assert project.status()["worker"] == fourth["worker"]


def test_a_restart_of_nothing_gives_a_one_line_error(project: Project) -> None:
    for words, message in (
        (["dev", "restart"], "the dev stack of this project was never started"),
        (["dev", "restart", "workers"], "there is no service workers; did you mean worker?"),
    ):
        done = project.call(*words)
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {message}"), done.stderr


def test_a_worker_that_cannot_start_reports_why(project: Project) -> None:
    text = 'actions = ["./missing.py"]\n'
    (project.root / "saga.toml").write_text(text, encoding="utf-8")
    done = project.call("dev", "up", "--only", "temporal,worker")
    assert done.returncode == 1
    assert "missing.py" in done.stderr
    assert "Traceback" not in done.stderr
