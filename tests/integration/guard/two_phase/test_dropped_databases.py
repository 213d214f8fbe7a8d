"""A database is dropped with the transactions that were prepared in it."""

from __future__ import annotations

import psycopg

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import drop_databases, new_database


def test_a_dropped_database_leaves_no_prepared_transaction(postgres_server: DatabaseServer) -> None:
    url = new_database(postgres_server)
    with psycopg.connect(url) as session:
        session.execute("create table notes (note text)")
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("begin")
        session.execute("insert into notes values ('left')")
        session.execute("prepare transaction 'it''s left'")
    open_session = psycopg.connect(url)
    drop_databases()
    name = url.rpartition("/")[2]
    with psycopg.connect(postgres_server.url()) as administrator:
        prepared = "select gid from pg_prepared_xacts where database = %s"
        assert administrator.execute(prepared, [name]).fetchall() == []
        assert administrator.execute("select from pg_database where datname = %s", [name]).fetchall() == []
    open_session.close()
