"""Variables of the environment that libpq sends with each session: they do not change what the engine stores."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import psycopg
import pytest

from tests.helpers.database_servers import DatabaseServer

VARIABLES = {
    "PGTZ": "Pacific/Kiritimati",
    "PGDATESTYLE": "German",
    "PGCLIENTENCODING": "LATIN1",
    "PGOPTIONS": "-c TimeZone=Asia/Kolkata -c IntervalStyle=iso_8601 -c work_mem=7MB",
}
NAMES = ("TimeZone", "DateStyle", "client_encoding", "IntervalStyle")
FIXED = ["UTC", "ISO, MDY", "UTF8", "postgres"]

_PROCESS = """
import asyncio, json, sys
from pathlib import Path
import psycopg
from sqlalchemy import text
from saga_activities.connections import open_engine
from saga_activities.session_settings import CLEAN_POSTGRESQL, psycopg_arguments
from saga_workers.runtime import databases
from sagas.settings import SqlConnection

url, names = sys.argv[1], sys.argv[2].split()
SHOWN = [f"select current_setting('{name}')" for name in (*names, "work_mem")]
VALUES = ["select '5 €'", "select '01/02/2026'::date::text", "select now()::text like '%+00'"]


async def read(engine):
    async with engine.connect() as connection:
        seen = []
        for clean in (None, *CLEAN_POSTGRESQL.split("; ")):
            if clean is not None:
                await connection.exec_driver_sql(clean)
        for statement in SHOWN + VALUES:
            seen.append((await connection.execute(text(statement.replace(":", "\\\\:")))).scalar())
    await engine.dispose()
    return seen


async def engines():
    yield await read(open_engine("shop", url, 1))
    yield await read(open_engine("shop", url + "?client_encoding=latin1", 1))
    yield await read(databases.open_command_engine(SqlConnection(name="shop", url=url)))


async def main():
    sessions = [seen async for seen in engines()]
    for own in (url, url + "?client_encoding=latin1"):
        with psycopg.connect(own, **psycopg_arguments(own)) as connection:
            connection.execute("reset all")
            sessions.append([connection.execute(statement).fetchone()[0] for statement in SHOWN + VALUES])
    print(json.dumps(sessions))


asyncio.run(main())
"""


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_variables_of_libpq_do_not_change_the_engines_sessions(postgres_server: DatabaseServer, encoding: str) -> None:
    environment = {**os.environ, **VARIABLES, "PGCLIENTENCODING": encoding}
    argv = [sys.executable, "-c", _PROCESS, postgres_server.url(), " ".join(NAMES)]
    process = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    sessions = json.loads(process.stdout)
    assert sessions == [[*FIXED, "7MB", "5 €", "2026-01-02", True]] * 5


def test_the_variables_would_change_another_session(
    postgres_server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpq sends them with any session to which the engine's arguments are not given."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    with psycopg.connect(postgres_server.url()) as connection:
        shown = [connection.execute(f"show {name}").fetchone() for name in NAMES]  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert shown == [("Pacific/Kiritimati",), ("German, DMY",), ("LATIN1",), ("iso_8601",)]
