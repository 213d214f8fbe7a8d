"""Commits on PostgreSQL that are believed: they wait for the disk in every session that the engine opens.

With `synchronous_commit = off`, a crash of the server can lose a transaction that was committed. A relay would publish
again what it had recorded as published, and a ledger would lose the end of a saga.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.session_settings import durable_commit


def make_commits_durable(engine: AsyncEngine) -> None:
    """Let the commits of all connections of an engine wait for the disk. On other databases the server decides."""
    if engine.dialect.name == "postgresql":
        event.listen(engine.sync_engine, "connect", _set)


def _set(connection: Any, _record: Any) -> None:
    autocommit, connection.autocommit = connection.autocommit, True  # a rollback would undo it
    cursor = connection.cursor()
    cursor.execute(f"SELECT {durable_commit(local=False)}")
    cursor.close()
    connection.autocommit = autocommit
