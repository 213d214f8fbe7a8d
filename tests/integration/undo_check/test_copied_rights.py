"""Objects of a database run in a copy with the rights of the connection, never with those of another role."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncConnection

from saga_workers.undo_check import postgresql_copies
from saga_workers.undo_check.database_copies import open_plain
from saga_workers.undo_check.postgresql_copies import PostgresqlCopies
from sagas.errors import SagaError
from sagas.settings import Settings, SqlConnection
from tests.helpers.database_servers import DatabaseServer

HOSTILE = """
create function public.evil(value anyelement) returns boolean language plpgsql as $$ begin
  if session_user <> '{role}' then raise exception 'run as %', session_user; end if;
  return true;
end $$;
create table checked (id integer primary key check (public.evil(id)));
insert into checked values (1);
create function public.current_schema() returns name language sql as
  $$ select 'public'::name where public.evil(1) $$;
create view public.pg_foreign_server as select 'x'::name as srvname where public.evil(2) and false;
create view public.pg_extension as select 'x'::name as extname where public.evil(2) and false;
alter database {role} set search_path = public, pg_catalog;
"""


class Embedded:
    """A database of a server like the embedded one: it belongs to a role, and a superuser makes the copies."""

    def __init__(self, server: DatabaseServer, folder: Path) -> None:
        self.role = f"saga_rights_{uuid.uuid4().hex[:12]}"
        self.administrator = server.url().replace("+psycopg", "")
        self.execute(f"create role {self.role} login password 'secret'")
        self.execute(f"create database {self.role} owner {self.role} strategy file_copy")
        url = make_url(server.url()).set(username=self.role, password="secret", database=self.role)
        self.url = url.render_as_string(hide_password=False)
        self.settings = Settings(root=folder)
        self.folder = folder

    def execute(self, *statements: str, url: str | None = None) -> None:
        with psycopg.connect(url or self.administrator, autocommit=True) as session:
            for statement in statements:
                session.execute(statement)  # pyright: ignore[reportArgumentType,reportCallIssue]

    @property
    def libpq(self) -> str:
        return self.url.replace("+psycopg", "")

    def copy(self, *trusted: str) -> None:
        """Copy it, read the table from a copy of the copy, and end a prepared transaction there."""
        connection = SqlConnection(name="shop", root=self.folder, url_setting=self.url, trusted_roles=trusted)
        asyncio.run(self._copy(connection))

    async def _copy(self, connection: SqlConnection) -> None:
        async with (
            PostgresqlCopies.create(self.settings, [connection], make_url(self.url)) as copies,
            copies.copy() as url,
        ):
            engine = open_plain(url)
            async with engine.connect() as session:
                assert (await session.exec_driver_sql("select id from public.checked")).scalars().all() == [1]
                await session.exec_driver_sql("insert into public.checked values (2)")
                await session.exec_driver_sql("prepare transaction 'left'")
            await engine.dispose()


@dataclass(frozen=True)
class Guest:
    """A role without rights over the objects of the database."""

    embedded: Embedded
    name: str

    @property
    def inside(self) -> str:
        """The URL of the superuser for the database."""
        return make_url(self.embedded.administrator).set(database=self.embedded.role).render_as_string(False)

    def make_schema(self) -> None:
        self.embedded.execute(f"create schema own authorization {self.name}", url=self.inside)


@pytest.fixture
def embedded(postgres_server: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Embedded]:
    database = Embedded(postgres_server, tmp_path)
    administrator = make_url(postgres_server.url())
    monkeypatch.setattr(postgresql_copies, "_administrator_url", lambda *_: administrator)
    yield database
    database.execute(f"drop database {database.role} with (force)", f"drop role {database.role}")


@pytest.mark.parametrize("busy", [True, False], ids=["others are connected", "nobody is connected"])
def test_the_superuser_runs_nothing_of_the_database(embedded: Embedded, busy: bool) -> None:
    embedded.execute(HOSTILE.format(role=embedded.role), url=embedded.libpq)
    with ExitStack() as stack:
        if busy:
            stack.enter_context(psycopg.connect(embedded.libpq))
        embedded.copy()


@pytest.fixture
def guest(embedded: Embedded) -> Iterator[Guest]:
    role = Guest(embedded, f"guest_{embedded.role}")
    embedded.execute("create table checked (id integer)", "insert into checked values (1)", url=embedded.libpq)
    embedded.execute(f"create role {role.name}")
    yield role
    embedded.execute(f"drop owned by {role.name}", url=role.inside)
    embedded.execute(f"drop role {role.name}")


def test_objects_of_a_role_that_is_not_trusted_are_not_copied(embedded: Embedded, guest: Guest) -> None:
    guest.make_schema()
    with pytest.raises(SagaError, match=f"has objects of {guest.name}, and what .* {embedded.role}"):
        embedded.copy()
    embedded.copy(guest.name)


@pytest.mark.parametrize("busy", [True, False], ids=["others are connected", "nobody is connected"])
def test_objects_that_are_made_during_the_copy_are_not_copied(
    embedded: Embedded, guest: Guest, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    read = PostgresqlCopies._read_original

    async def read_later(copies: PostgresqlCopies, session: AsyncConnection) -> Any:
        guest.make_schema()
        return await read(copies, session)

    monkeypatch.setattr(PostgresqlCopies, "_read_original", read_later)
    with ExitStack() as stack:
        if busy:
            stack.enter_context(psycopg.connect(embedded.libpq))
        with pytest.raises(SagaError, match=f"has objects of {guest.name}, and what .* {embedded.role}"):
            embedded.copy()
