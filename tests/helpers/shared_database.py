"""A database in which a worker's role and another one have rights, and what the first is told about the second."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from saga_activities.foreign_rights import ForeignRights, find_foreign_rights
from sagas.text.sql_names import sql_name
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database


@dataclass(frozen=True)
class Shop:
    """A database of the superuser, which the role of the worker does not own; ``stranger`` is another role."""

    admin: psycopg.Connection
    url: str
    worker: str
    stranger: str

    def execute(self, statement: str) -> None:
        words = {
            "worker": sql_name(self.worker),
            "stranger": sql_name(self.stranger),
            "database": self.admin.info.dbname,
        }
        self.admin.execute(statement.format(**words))  # pyright: ignore[reportArgumentType,reportCallIssue]


@contextmanager
def new_shop(server: DatabaseServer) -> Iterator[Shop]:
    mark = uuid.uuid4().hex[:10]
    url = new_database(server)
    with psycopg.connect(url, autocommit=True) as admin:
        worker, stranger = f"worker_{mark}", f"stranger {mark}"
        before, _, behind = url.partition("@")
        made = Shop(admin, f"{before.partition('://')[0]}://{worker}:secret@{behind}", worker, stranger)
        made.execute("create role {worker} login password 'secret'")
        made.execute("create role {stranger}")
        made.execute("create table seat (taken int); insert into seat values (0)")
        made.execute("grant create on schema public to {worker}")
        made.execute("grant select, insert, update on seat to {worker}")
        yield made


def look(shop: Shop, trusted: Collection[str] = ()) -> ForeignRights | None:
    with psycopg.connect(shop.url, autocommit=True) as connection:
        return find_foreign_rights(connection, trusted)
