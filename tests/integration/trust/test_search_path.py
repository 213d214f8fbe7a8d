"""Roles that may create objects in a schema of the search_path run no code as the worker through the engine's SQL."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest

from saga_activities.guard import watermark
from saga_activities.guard.schema import create_tables
from saga_activities.ledger.records import RunFilter
from saga_activities.ledger.rows import list_runs
from saga_activities.ledger.schema import create_ledger
from saga_activities.locks import tables as lock_tables
from saga_workers.doctor.schema_rights import check_schema_rights
from saga_workers.location.traces import read_holdings, recorded_effects
from saga_workers.reconcile.prepared_transactions import find_committed_outside, find_unowned
from saga_workers.relay.outbox_table import read_lag
from saga_workers.runtime.databases import open_command_engine
from sagas import Rejected, Step, action
from sagas.settings import SqlConnection
from sagas.text.sql_names import sql_name
from tests.helpers import shadowing_objects
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer

BOOKING = """
saga: booking
input: {type: object, required: [fails], properties: {fails: {type: boolean}}}
locks: {keys: [the-room], wait: 1m}
steps:
  - {id: reserve, uses: reserve, compensate: release}
  - id: pay
    uses: sql
    with:
      connection: shop
      run: insert into payment values (1)
      two_phase: true
      emit: [{topic: paid, key: room, value: {}}]
  - id: mark
    uses: sql
    with: {connection: shop, run: "update seat set label = 'taken' where id = 1"}
    compensate: auto
  - {id: close, uses: close, with: {fails: "${{ input.fails }}"}, effect: none}
"""


def actions() -> list[Any]:
    @action("reserve", connection="shop")
    async def reserve(step: Step) -> None:
        await step.sql.execute("insert into payment values (2)")

    @action("release", connection="shop")
    async def release(step: Step) -> None:
        await step.sql.execute("insert into payment values (-2)")

    @action("close")
    async def close(fails: bool) -> None:
        if fails:
            raise Rejected("no room")

    return [reserve, release, close]


async def test_no_operator_or_function_of_another_schema_is_called(
    tmp_path: Path, temporal: TemporalServer, postgres_server: DatabaseServer
) -> None:
    url = new_database(postgres_server)
    assert shadowing_objects.install(postgres_server, url) > 5000
    engine = open_command_engine(SqlConnection(name="shop", root=tmp_path, url_setting=url))
    for create in (create_tables, lock_tables.create_tables, create_ledger):
        await create(engine)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table payment (amount int)")
        connection.execute("create table seat (id int primary key, label text, prices numeric[])")
        connection.execute("insert into seat values (1, 'free', '{1.50}')")
    project = make_project(
        tmp_path / "project",
        {"booking": BOOKING},
        actions(),
        address=temporal.address,
        connections={"shop": url},
        outbox="shop",
        locks="shop",
        ledger="shop",
    )
    async with running_worker(project) as client:
        states = []
        for fails in (False, True):
            run = await client.start("booking", {"fails": fails}, id=f"booking-{uuid.uuid4()}")
            states.append((await finished(client, run.id))["state"])
            await recorded_effects(project.settings, run.id)
        assert states == ["COMPLETED", "COMPENSATED"]
        await find_unowned(client.locator, project.settings, None, {})
        await find_committed_outside(client.locator, project.settings, None)
    await read_holdings(project.settings)
    await read_lag(engine)
    await list_runs(engine, RunFilter(), 10)
    await watermark.clean_up(engine, oldest_open=None, now=time.time() + 10, longest_transaction=0.0, retention=0.0)
    await engine.dispose()
    assert shadowing_objects.sprung(postgres_server) == []


@pytest.mark.parametrize("grantee", ["public", "somebody"])
async def test_the_doctor_names_who_may_create_objects(
    tmp_path: Path, postgres_server: DatabaseServer, grantee: str
) -> None:
    url = new_database(postgres_server)
    role = "public" if grantee == "public" else f"somebody_{uuid.uuid4().hex[:12]}"
    engine = open_command_engine(SqlConnection(name="shop", root=tmp_path, url_setting=url))
    [result] = await check_schema_rights("shop", engine)
    assert result.ok, result.message
    with psycopg.connect(url, autocommit=True) as connection:
        if role != "public":
            connection.execute(f"create role {role}")  # pyright: ignore[reportArgumentType,reportCallIssue]
        connection.execute(f"grant create on schema public to {role}")  # pyright: ignore[reportArgumentType,reportCallIssue]
        [result] = await check_schema_rights("shop", engine)
        assert not result.ok
        assert f"{role} in public" in result.message
        grantee = role if role == "public" else sql_name(role)
        statement = f'revoke create on schema "public" from {grantee}'
        assert result.help == f"{statement}, or name {grantee} in trusted_roles"
        connection.execute(statement)  # pyright: ignore[reportArgumentType,reportCallIssue]
    assert (await check_schema_rights("shop", engine))[0].ok
    await engine.dispose()


@pytest.mark.parametrize(
    ("right", "named"),
    [
        ("grant create on database {database} to {role}", "{plain} by a new schema {user}"),
        ("create schema {user} authorization {role}", "{plain} owns {user}"),
        ("grant trigger on stock to {role}", "{plain} by triggers of public.stock"),
    ],
    ids=["missing schema", "schema of another", "triggers"],
)
async def test_the_doctor_names_who_may_come_before_the_tables(
    tmp_path: Path, postgres_server: DatabaseServer, right: str, named: str
) -> None:
    """With the default search_path, a schema with the name of the role comes before the schema public."""
    url = new_database(postgres_server)
    plain = f'x"; alter role {uuid.uuid4().hex[:12]} superuser'
    words = {"role": sql_name(plain), "database": url.rpartition("/")[2], "plain": plain}
    engine = open_command_engine(SqlConnection(name="shop", root=tmp_path, url_setting=url))
    with psycopg.connect(url, autocommit=True) as connection:
        words["user"] = connection.info.user
        for statement in ("create table stock (id int)", "create role {role}", right):
            connection.execute(statement.format(**words))  # pyright: ignore[reportArgumentType,reportCallIssue]
        [result] = await check_schema_rights("shop", engine)
        assert not result.ok
        assert named.format(**words) in result.message
        assert result.help is not None
        connection.execute(result.help.partition(", or name ")[0])  # pyright: ignore[reportArgumentType,reportCallIssue]
        assert (await check_schema_rights("shop", engine))[0].ok
    await engine.dispose()


async def test_the_doctor_wants_pg_catalog_first(tmp_path: Path, postgres_server: DatabaseServer) -> None:
    url = f"{postgres_server.url()}?options=-csearch_path%3Dpublic%2Cpg_catalog"
    engine = open_command_engine(SqlConnection(name="shop", root=tmp_path, url_setting=url))
    [result] = await check_schema_rights("shop", engine)
    await engine.dispose()
    assert not result.ok
    assert "public before pg_catalog" in result.message
