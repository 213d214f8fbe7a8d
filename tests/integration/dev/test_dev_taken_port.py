"""Another user's program takes the port of the embedded PostgreSQL, and asks for passwords in clear."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import struct
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from sagas.settings import load_settings
from tests.integration.dev.conftest import SAGA, Project

_ASKS_FOR_PASSWORD = b"R" + struct.pack("!II", 8, 3)


@dataclass
class Stranger:
    """A server of PostgreSQL's protocol that begins as soon as the port is free."""

    port: int
    asked: int = 0
    received: list[bytes] = field(default_factory=list)
    ends: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            while not self.ends.is_set():
                with contextlib.suppress(OSError):
                    listener.bind(("127.0.0.1", self.port))
                    break
            listener.listen()
            listener.settimeout(0.1)
            while not self.ends.is_set():
                with contextlib.suppress(OSError):
                    client, _ = listener.accept()
                    with client:
                        client.settimeout(5)
                        self._ask(client)

    def _ask(self, client: socket.socket) -> None:
        while struct.unpack("!I", client.recv(8, socket.MSG_WAITALL)[4:])[0] in (80877103, 80877104):
            client.sendall(b"N")
        client.recv(4096)
        client.sendall(_ASKS_FOR_PASSWORD)
        self.asked += 1
        self.received.append(client.recv(4096))


@contextlib.contextmanager
def stranger_at(port: int) -> Iterator[Stranger]:
    stranger = Stranger(port)
    thread = threading.Thread(target=stranger.run)
    thread.start()
    try:
        yield stranger
    finally:
        stranger.ends.set()
        thread.join()


@pytest.mark.slow
def test_taken_port(project: Project) -> None:
    first = project.up("--only", "temporal,postgres,worker")
    old = make_url(first["connections"]["shop"])
    used = make_url(load_settings(project.root).connection("shop").url)
    sockets = Path(str(used.query["host"]))
    assert (used.host, sockets.parent) == (None, Path("/tmp"))
    assert (sockets.stat().st_uid, stat.S_IMODE(sockets.stat().st_mode)) == (os.getuid(), 0o700)
    assert old.port is not None
    query = [*SAGA, "dev", "psql", "shop", "-c", "select 'host ' || coalesce(host(inet_server_addr()), 'none')"]
    assert "host none" in subprocess.run(query, cwd=project.root, capture_output=True, text=True, check=True).stdout
    with stranger_at(old.port) as stranger:
        project.saga("dev", "restart", "postgres")
        status = project.status()
        assert make_url(status["connections"]["shop"]).port != old.port
        assert status["worker"]["state"] == "running"
        assert status["worker"]["pid"] != first["worker"]["pid"], "the worker still has the old address"
        for url in (first["connections"]["shop"], first["postgres"]["url"]):
            with pytest.raises(psycopg.OperationalError, match="authentication method requirement"):
                psycopg.connect(url.replace("+psycopg", ""))
        assert stranger.asked == 2, "no process of the project has gone there"
    assert [text for text in stranger.received if text] == []
    project.saga("dev", "down")
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700, "nobody else can take its name"


def socket_folder(project: Project) -> Path:
    return Path(str(make_url(load_settings(project.root).connection("shop").url).query["host"]))


@pytest.mark.slow
def test_a_folder_for_the_socket_that_another_user_has_taken(project: Project) -> None:
    project.up("--only", "postgres")
    kept = socket_folder(project)
    project.saga("dev", "down")
    (kept / ".s.PGSQL.1").touch()  # as a killed server leaves it
    project.up("--only", "postgres")
    assert socket_folder(project) == kept
    assert not (kept / ".s.PGSQL.1").exists()
    project.saga("dev", "down")
    kept.rmdir()
    kept.mkdir()
    kept.chmod(0o777)  # whoever owns it, another user may be in it
    (kept / "theirs").touch()
    try:
        assert project.up("--only", "postgres")["postgres"]["state"] == "running"
        other = socket_folder(project)
        assert other != kept
        assert [file.name for file in kept.iterdir()] == ["theirs"]
        project.saga("dev", "down", "--wipe")
        assert not other.exists()
    finally:
        shutil.rmtree(kept)
