"""The roles that own the databases of the embedded PostgreSQL, where somebody has made a role before."""

from __future__ import annotations

import uuid

import psycopg
import pytest
from psycopg import sql

from saga_workers.devstack.database_roles import create_databases, role_of, role_password
from sagas.errors import SagaError
from tests.helpers.database_servers import DatabaseServer


def connect(server: DatabaseServer, database: str, user: str, password: str) -> psycopg.Connection:
    with psycopg.connect(server.url("postgres").replace("+psycopg", ""), autocommit=True) as admin:
        where = admin.info
        return psycopg.connect(
            host=where.host, port=where.port, user=user, password=password, dbname=database, autocommit=True
        )


def test_a_role_that_was_made_before_gives_its_maker_nothing(postgres_server: DatabaseServer) -> None:
    name = f"billing_{uuid.uuid4().hex[:10]}"
    role, maker = sql.Identifier(role_of(name)), sql.Identifier(f"maker_{name}")
    with psycopg.connect(postgres_server.url("postgres").replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute(sql.SQL("create role {} createrole login password 'secret'").format(maker))
        with connect(postgres_server, "template1", f"maker_{name}", "secret") as inside:
            inside.execute(sql.SQL("create role {} login password 'mine'").format(role))
            inside.execute(sql.SQL("grant {} to {} with set true").format(role, maker))
            inside.execute(sql.SQL("alter role {} set search_path = somewhere").format(role))
            # The session in template1 is open: no new database is a copy of that.
            create_databases(admin, [name], "superuser")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                inside.execute(sql.SQL("set role {}").format(role))
        query = "select rolconfig from pg_roles where rolname = %s"
        assert admin.execute(query, [role_of(name)]).fetchone() == (None,)
        with connect(postgres_server, name, role_of(name), role_password(name, "superuser")):
            pass
        for database in ("template1", "postgres"):
            with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
                connect(postgres_server, database, role_of(name), role_password(name, "superuser"))

        admin.execute(sql.SQL("grant {} to {}").format(role, maker))
        admin.execute(sql.SQL("grant {} to {}").format(sql.Identifier("pg_read_all_data"), role))
        create_databases(admin, [name], "superuser")
        query = "select 1 from pg_auth_members where %s::regrole in (roleid, member)"
        assert admin.execute(query, [f'"{role_of(name)}"']).fetchall() == []

        admin.execute(
            sql.SQL("alter database {} rename to {}").format(sql.Identifier(name), sql.Identifier(f"{name}_2"))
        )
        with pytest.raises(SagaError, match=f"the role {role_of(name)} of the embedded PostgreSQL exists without"):
            create_databases(admin, [name], "superuser")
        admin.execute("grant connect on database template1 to public")
        admin.execute("grant connect on database postgres to public")


def test_a_name_that_is_too_long_for_its_role_is_refused(postgres_server: DatabaseServer) -> None:
    """PostgreSQL would cut both roles to the same name."""
    begin = f"{uuid.uuid4().hex}_{'x' * 25}"
    with psycopg.connect(postgres_server.url("postgres").replace("+psycopg", ""), autocommit=True) as admin:
        before = admin.execute("select count(*) from pg_database").fetchone()
        with pytest.raises(SagaError, match=f"connection {begin}_1: its name is longer than 58 bytes"):
            create_databases(admin, [f"{begin}_1", f"{begin}_2"], "superuser")
        assert admin.execute("select count(*) from pg_database").fetchone() == before
