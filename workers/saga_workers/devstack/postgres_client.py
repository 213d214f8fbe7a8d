"""psql on the database of a connection."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sqlalchemy import make_url

from saga_workers.devstack.postgres_server import program_folder
from sagas.errors import UsageError
from sagas.settings.connections import SqlConnection
from sagas.settings.model import Settings


def exec_psql(settings: Settings, name: str | None, commands: Sequence[str]) -> None:
    """Replace this process by psql. ``commands`` are SQL to run in order instead of a dialogue.

    Raises:
        UsageError: the connection is not PostgreSQL, or none is named and there is not just one.
        NotInstalledError: the package of the embedded PostgreSQL is missing.
    """
    url = make_url(_connection(settings, name).url)
    address = url._replace(drivername="postgresql", password=None)  # `set` keeps what is None
    program = program_folder() / "psql"
    written = address.render_as_string().replace("+", "%20")  # libpq takes a plus sign in a parameter literally
    argv = [str(program), written, *(f"--command={command}" for command in commands)]
    # A password in the arguments would be visible to every user of the machine.
    environment = {**os.environ, **({"PGPASSWORD": str(url.password)} if url.password else {})}
    os.execve(program, argv, environment)  # noqa: S606


def _connection(settings: Settings, name: str | None) -> SqlConnection:
    connections = {
        connection.name: connection
        for connection in settings.sql_connections()
        if make_url(connection.url).get_backend_name() == "postgresql"
    }
    if name is None:
        if len(connections) != 1:
            if not connections:
                raise UsageError("the project has no connection to PostgreSQL; add one to saga.toml")
            raise UsageError(
                f"the project has several connections to PostgreSQL ({', '.join(connections)}); name one of them",
                help="saga dev psql CONNECTION",
            )
        return next(iter(connections.values()))
    settings.connection(name)  # unknown names are refused there
    if name not in connections:
        raise UsageError(f"the connection {name} is not PostgreSQL", help="use the client of its own database")
    return connections[name]
