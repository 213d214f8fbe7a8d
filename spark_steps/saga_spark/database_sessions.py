"""Connections to PostgreSQL that Spark steps open themselves: with the settings of the engine's sessions, and not to a
database where other roles have taken the place of the connection's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from saga_activities.foreign_rights import ForeignRights, refuse_foreign_session
from saga_activities.session_settings import durable_commit, psycopg_arguments
from sagas.errors import InfrastructureError


@contextmanager
def database_session(
    url: str, name: str, trusted_roles: Sequence[str] = (), **options: Any
) -> Iterator[psycopg.Connection[Any]]:
    """A connection that is closed at the end, as that of ``psycopg.connect``. ``name`` is for logs and errors.

    Raises InfrastructureError where the pools of the engine give out no connection, and what ``psycopg.connect`` does.
    """
    with psycopg.connect(url, **options, **psycopg_arguments(url)) as connection:
        try:
            refuse_foreign_session(connection, name, trusted_roles)
        except ForeignRights as error:
            raise InfrastructureError(str(error)) from error
        connection.execute(f"SELECT {durable_commit(local=False)}")
        connection.commit()  # a later rollback would undo it
        yield connection
