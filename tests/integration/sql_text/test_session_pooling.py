"""`saga doctor` behind a connection pooler: pgbouncer, if this machine has it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url

from saga_workers.doctor.doctor_result import DoctorResult
from saga_workers.doctor.session_pooling import check_session_pooling
from saga_workers.runtime.databases import open_command_engine
from sagas.settings.connections import SqlConnection
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.fault_proxy import HOST
from tests.helpers.free_ports import free_port
from tests.helpers.new_databases import new_database
from tests.helpers.waiting import until

SETTINGS = """
[databases]
* = host={host} port={server} user={user}
[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
ignore_startup_parameters = options,extra_float_digits
"""


@contextmanager
def pooler(server: DatabaseServer, folder: Path, mode: str) -> Iterator[int]:
    """A pgbouncer before the server, at the port that it gives."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    port, settings = free_port(), folder / "pgbouncer.ini"
    settings.write_text(SETTINGS.format(host=HOST, server=server.port, user=server.user, port=port, mode=mode))
    # It refuses to run as root; in its own user namespace it sees another user.
    mapped = ["unshare", "--user", "--map-user=65534", "--map-group=65534"] if os.geteuid() == 0 else []
    with (folder / "pgbouncer.log").open("wb") as log:
        child = subprocess.Popen([*mapped, program, str(settings)], stdout=log, stderr=log)
    try:
        yield port
    finally:
        child.kill()
        child.wait()


async def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


@pytest.mark.parametrize(("mode", "is_refused"), [("transaction", True), ("session", False)])
async def test_a_pooler_that_exchanges_sessions_is_named(
    postgres_server: DatabaseServer, tmp_path: Path, mode: str, is_refused: bool
) -> None:
    url = make_url(new_database(postgres_server))
    with pooler(postgres_server, tmp_path, mode) as port:
        await until(lambda: listens(port))
        findings = await check(url.set(port=port).render_as_string())
    assert [(finding.check, finding.ok) for finding in findings] == [("sessions of shop", False)] * is_refused


async def test_the_server_itself_keeps_its_sessions(postgres_server: DatabaseServer) -> None:
    assert await check(new_database(postgres_server)) == []


async def check(url: str) -> list[DoctorResult]:
    engine = open_command_engine(SqlConnection(name="shop", url_setting=url))
    try:
        return await check_session_pooling("shop", engine)
    finally:
        await engine.dispose()
