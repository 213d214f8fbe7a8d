"""Try, confirm, and then `saga undo`: what undoes a confirmed effect, on a real PostgreSQL (rules 13, 15).

A seat is held (try), sold (confirm), given back before (compensate) or refunded after its confirm
(`compensate.confirmed`); all of it is SQL of the definition. The refunds are in the database of the seats or, in some
tests, in another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from saga_activities.guard.schema import create_tables
from sagas.errors import RefusedError
from sagas.settings import SqlConnection
from tests.helpers.database_servers import HOST, DatabaseServer
from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, resolve, row, run_saga, states

SEATS = ("seat", "meal")
TABLES = ("create table seats (what text primary key, state text)", "create table refunds (what text primary key)")


def step(id: str, *, refund: str | None = "shop") -> str:
    """One reservation; ``refund`` names the database of what undoes it after its confirm, None: nothing does."""
    confirmed = f"""
          confirmed:
            uses: sql
            with:
              connection: {refund}
              run: "insert into refunds values ('{id}') on conflict do nothing"
              expect_rows: 1
              rejected: the till is closed"""
    return f"""
      - id: {id}
        uses: sql
        with: {{connection: shop, run: "insert into seats values ('{id}', 'held') returning what"}}
        confirm:
          uses: sql
          with:
            connection: shop
            run: "update seats set state = 'sold' where what = '{id}' and state = 'held'"
            expect_rows: 1
        compensate:
          uses: sql
          with: {{connection: shop, run: "delete from seats where what = '{id}' and state = 'held'"}}""" + (
        confirmed if refund else ""
    )


def booking(*steps: str) -> str:
    return (
        "    saga: booking\n    input: {type: object, properties: {go: {type: boolean, default: true}}}\n    steps:"
        + "".join(steps)
        + '\n      - {id: checked, uses: require, with: {that: "${{ input.go }}"}}\n'
    )


@pytest.fixture
def server(postgres_server: DatabaseServer) -> DatabaseServer:
    return postgres_server


@pytest_asyncio.fixture
async def env(server: DatabaseServer, temporal: TemporalServer, tmp_path: Path) -> AsyncIterator[Environment]:
    """An environment on PostgreSQL: the databases `shop` and `books`, new for each test."""
    await asyncio.to_thread(_new_databases, server, ("shop", "books"))
    engines = [
        create_async_engine(f"postgresql+psycopg://{server.user}@{HOST}:{server.port}/{name}")
        for name in ("shop", "books")
    ]
    for engine in engines:
        await create_tables(engine)
        async with engine.begin() as connection:
            for table in TABLES:
                await connection.execute(text(table))
    env = Environment(tmp_path, temporal.address, server.url("shop"), engines[0])
    env.connections["books"] = SqlConnection(name="books", root=tmp_path, url_setting=server.url("books"))
    yield env
    for engine in engines:
        await engine.dispose()


def _new_databases(server: DatabaseServer, names: tuple[str, ...]) -> None:
    with psycopg.connect(host=HOST, port=server.port, user=server.user, dbname="postgres", autocommit=True) as admin:
        for name in names:
            admin.execute(f"drop database if exists {name} with (force)".encode())
            admin.execute(f"create database {name}".encode())


def look(server: DatabaseServer, question: str, database: str = "shop") -> list[Any]:
    """Query the database directly."""
    with psycopg.connect(host=HOST, port=server.port, user=server.user, dbname=database) as connection:
        return connection.execute(question.encode()).fetchall()


def seats(server: DatabaseServer) -> dict[str, str]:
    return dict(look(server, "select what, state from seats"))


def refunds(server: DatabaseServer, database: str = "shop") -> list[str]:
    return [what for (what,) in look(server, "select what from refunds order by what", database)]


def guarded(server: DatabaseServer, database: str = "shop") -> dict[str, str]:
    """The guard's rows: `step op` → reason."""
    return {
        f"{step} {op}": reason for step, op, reason in look(server, "select step, op, reason from saga_guard", database)
    }


async def test_a_completed_tcc_saga_is_undone_by_its_confirmed_compensations(
    env: Environment, server: DatabaseServer
) -> None:
    async with env.serving(booking(step("seat"), step("meal"))) as client:
        saga = await begin(client, "booking")
        story = await finished(client, saga)
        assert (story["state"], states(story)["seat"]) == ("COMPLETED", "CONFIRMED")
        assert seats(server) == {"meal": "sold", "seat": "sold"}
        run = await client.undo(saga, reason="returned", who="ada")
        await run.result()
        story = await client.show(saga)
        assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "undone")
        assert [row(story, id)["state"] for id in SEATS] == ["COMPENSATED", "COMPENSATED"]
        assert refunds(server) == ["meal", "seat"]
        assert seats(server) == {"meal": "sold", "seat": "sold"}, "`compensate` itself is for what was not confirmed"
        assert guarded(server) == {
            f"{id} {op}": reason
            for id in SEATS
            for op, reason in (("do", "do"), ("confirm", "confirm"), ("undo", "undo"))
        }
        with pytest.raises(RefusedError, match="COMPENSATED"):
            await client.undo(saga, reason="twice", who="ada")


async def test_compensation_before_the_confirm_fences_a_late_confirm(env: Environment, server: DatabaseServer) -> None:
    async with env.serving(booking(step("seat"))) as client:
        story = await run_saga(client, "booking", {"go": False})
    assert story["state"] == "COMPENSATED"
    assert (seats(server), refunds(server)) == ({}, [])
    assert guarded(server) == {"seat do": "do", "seat confirm": "undo", "seat undo": "undo"}


async def test_a_confirmed_compensation_may_use_another_database(env: Environment, server: DatabaseServer) -> None:
    async with env.serving(booking(step("seat", refund="books"))) as client:
        saga = await begin(client, "booking")
        await finished(client, saga)
        await (await client.undo(saga, reason="returned", who="ada")).result()
        story = await client.show(saga)
    assert (story["state"], states(story)["seat"]) == ("COMPENSATED", "COMPENSATED")
    assert (refunds(server), refunds(server, "books")) == ([], ["seat"])
    assert guarded(server)["seat undo"] == "undo", "decided where the step ran"
    assert guarded(server, "books") == {"seat own_undo": "undo"}, "a row of its own, so that a retry finds it"


async def test_a_confirmed_step_without_compensation_cannot_be_undone(env: Environment, server: DatabaseServer) -> None:
    async with env.serving(booking(step("seat"), step("meal", refund=None))) as client:
        saga = await begin(client, "booking")
        await finished(client, saga)
        with pytest.raises(RefusedError, match="confirmed"):
            await client.undo(saga, reason="returned", who="ada")
        # A client that knows only Temporal is refused as well.
        queue = client.project.settings.temporal.task_queue
        run = await client.temporal.start_workflow("booking", {}, id=f"{saga}~undo", task_queue=queue)
        with pytest.raises(WorkflowFailureError) as refused:
            await run.result()
        assert isinstance(refused.value.cause, ApplicationError)
        assert refused.value.cause.type == "SagaRefused"
        assert (await client.show(saga))["state"] == "COMPLETED"
    assert (seats(server), refunds(server)) == ({"meal": "sold", "seat": "sold"}, [])


async def test_a_refused_undo_parks_until_an_operator_decides(env: Environment, server: DatabaseServer) -> None:
    async with env.serving(booking(step("seat"), step("meal"))) as client:
        saga = await begin(client, "booking")
        await finished(client, saga)
        change(server, "insert into refunds values ('seat')")  # in the way of the refund
        run = await client.undo(saga, reason="returned", who="ada")
        await until(lambda: _parked(client, saga))
        story = await client.show(saga)
        assert [(parked_step["step"], parked_step["op"]) for parked_step in story["parked"]] == [("seat", "undo")]
        assert (states(story)["meal"], story["parked"][0]["why"]) == ("COMPENSATED", "Rejected: the till is closed")
        change(server, "delete from refunds where what = 'seat'")
        await resolve(client, f"{saga}~undo", "seat", "retry")
        await run.result()
        assert (await client.show(saga))["state"] == "COMPENSATED"
    assert refunds(server) == ["meal", "seat"]


def change(server: DatabaseServer, statement: str) -> None:
    with psycopg.connect(host=HOST, port=server.port, user=server.user, dbname="shop", autocommit=True) as connection:
        connection.execute(statement.encode())


async def _parked(client, saga: str) -> bool:
    return (await client.show(saga))["state"] == "PARKED"
