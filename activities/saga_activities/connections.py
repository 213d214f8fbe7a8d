"""The SQL connections of one worker: a pool and a guard for each participant's database."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Collection, Iterable
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

from sqlalchemy import ARRAY, URL, Engine, event, make_url
from sqlalchemy.dialects.postgresql.psycopg import PGCompiler_psycopg
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from saga_activities.dead_peers import limit_dead_peers, peer_arguments
from saga_activities.durable_commits import make_commits_durable
from saga_activities.foreign_rights import refuse_foreign_rights
from saga_activities.guard.guard import Guard
from saga_activities.guard.stored_values import PLAIN, StoredValues, options_of, stored_values_of
from saga_activities.guard.two_phase import TwoPhaseGuard, two_phase_guard
from saga_activities.idle_connections import check_idle_connections
from saga_activities.parameters.integer_parameters import send_integers_as_bigint
from saga_activities.session_settings import SQLITE_SETTINGS, session_arguments
from saga_activities.silent_databases import note_silence
from sagas.errors import Unequipped, UsageError
from sagas.settings.connections import SqlConnection, async_url
from sagas.text.exact_json import decode_json, encode_json

ISOLATION_LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
CONNECT_TIMEOUT = 5
"""Seconds until a server that does not respond counts as down."""


class DatabaseConnections:
    """Opens the databases of the settings on first use. Raises UsageError if the URL of one cannot be read.

    ``pool_size`` of a connection limits the concurrent guarded attempts, and so the connections, of this worker for its
    database; the argument overrides all of them.
    """

    def __init__(self, connections: Iterable[SqlConnection] = (), *, pool_size: int | None = None) -> None:
        self._connections = {connection.name: (connection, connection.url) for connection in connections}
        self._pool_size = pool_size
        self._guards: dict[str, Guard] = {}

    def names(self) -> list[str]:
        """The names of the databases."""
        return list(self._connections)

    def guard(self, name: str) -> Guard:
        """The guard of a SQL connection. Raises :class:`Unequipped` if there is none of this name."""
        if name not in self._guards:
            self._guards[name] = self._open(name)
        return self._guards[name]

    def two_phase_guard(self, name: str) -> TwoPhaseGuard:
        """The guard of the prepared transactions of a SQL connection. Raises :class:`UsageError`."""
        guard = self.guard(name)
        return two_phase_guard(name, guard.engine, guard.isolation)

    def engine(self, name: str) -> AsyncEngine:
        """The pool of a SQL connection, in autocommit mode. Raises :class:`UsageError`."""
        return self.guard(name).engine

    def separate_engine(self, name: str, pool_size: int) -> AsyncEngine:
        """Open another pool of a SQL connection, which the caller disposes. Raises :class:`UsageError`."""
        connection, url = self._settings(name)
        return open_engine(name, url, pool_size, connection.trusted_roles, stored_values_of(connection))

    async def close(self) -> None:
        """Close every connection."""
        guards, self._guards = self._guards, {}
        for guard in guards.values():
            await guard.engine.dispose()

    def _settings(self, name: str) -> tuple[SqlConnection, str]:
        """The settings of a connection, and its URL."""
        if name not in self._connections:
            names = ", ".join(self.names()) or "none"
            raise Unequipped(
                f"this worker has no SQL connection {name!r}, only {names}: restart it if saga.toml has changed",
                help=f"add [connections.{name}] with a url to saga.toml",
            )
        return self._connections[name]

    def _open(self, name: str) -> Guard:
        connection, url = self._settings(name)
        isolation = connection.isolation and connection.isolation.upper()
        if isolation is not None and isolation not in ISOLATION_LEVELS:
            raise UsageError(
                f"connection {name}: isolation must be one of {', '.join(ISOLATION_LEVELS)}, not {isolation!r}"
            )
        pool_size = self._pool_size or connection.pool_size
        engine = open_engine(name, url, pool_size, connection.trusted_roles, stored_values_of(connection))
        return Guard(name, engine, isolation=isolation)


def engine_url(name: str, url: str) -> URL:
    """The URL of a connection for an engine. Raises :class:`UsageError` if it is invalid."""
    try:
        return make_url(async_url(url, Path(), setting=f"connections.{name}.url"))
    except (ArgumentError, ValueError):  # a port that is not a number is a plain ValueError
        raise UsageError(f"connections.{name}.url must have the form postgresql://user@host:5432/name") from None


def open_engine(
    name: str,
    url: str,
    pool_size: int,
    trusted_roles: Collection[str] = (),
    results: StoredValues = PLAIN,
) -> AsyncEngine:
    """A pool for ``url`` in autocommit mode. Raises :class:`UsageError` for a URL or a driver that cannot be used.

    On PostgreSQL it logs which roles other than ``trusted_roles`` can run code over it, and gives out no connection
    while a schema of one of them is searched as that of the connection's role.
    """
    target = engine_url(name, url)
    arguments: dict[str, Any] = {}
    backend = target.get_backend_name()
    if backend == "postgresql":
        # The process id lets an operator (and a fault test) find the worker that holds a transaction.
        arguments = {"application_name": f"saga-worker-{os.getpid()}", "connect_timeout": CONNECT_TIMEOUT}
        arguments |= peer_arguments(target)
    elif backend in ("mysql", "mariadb"):
        arguments = {"connect_timeout": CONNECT_TIMEOUT}
    elif backend == "sqlite":
        arguments = {"factory": SqliteConnection}
    try:
        engine = create_async_engine(
            target,
            isolation_level="AUTOCOMMIT",  # the guard sends BEGIN and COMMIT itself,
            skip_autocommit_rollback=True,  # and ROLLBACK: the pool would send another one for every attempt
            pool_size=pool_size,
            max_overflow=0,
            pool_use_lifo=True,  # the connection that was used last needs no check of whether it still answers
            connect_args={**arguments, **session_arguments(target)},
            json_serializer=_write_json,
            json_deserializer=decode_json,
            execution_options=options_of(results),
        )
    except ModuleNotFoundError as error:
        raise Unequipped(f"connection {name}: {missing_driver(error)}") from None
    if backend == "postgresql":
        cast_parameters(engine)
        send_integers_as_bigint(engine)
        make_commits_durable(engine)
    if backend == "sqlite":
        stop_abandoned_statements(engine.sync_engine)
    else:
        check_idle_connections(engine.sync_engine)
    if backend in ("mysql", "mariadb"):
        limit_dead_peers(engine.sync_engine)
    note_silence(engine.sync_engine)
    if backend == "postgresql":
        refuse_foreign_rights(engine.sync_engine, name, trusted_roles)  # over a connection that answers
    return engine


def missing_driver(error: ModuleNotFoundError) -> str:
    """The sentence about a driver that is not installed, with the command that installs ours."""
    driver = (error.name or "").partition(".")[0]
    extra = "; pip install 'saga-orchestrator[mysql]'" if driver == "asyncmy" else ""
    return f"the driver {driver} is not installed{extra}"


def cast_parameters(engine: AsyncEngine) -> None:
    """Let an engine for PostgreSQL cast parameters to the types for which pg_catalog has operators."""
    engine.dialect.statement_compiler = _UnlimitedCastCompiler


class _UnlimitedCastCompiler(PGCompiler_psycopg):
    """Casts parameters to types without limits: `::numeric(10, 2)[]` would round what the column refuses.

    Texts are cast to `text`: pg_catalog has no operators of `varchar`, so one of another schema could be taken.
    """

    def render_bind_cast(self, type_: Any, dbapi_type: Any, sqltext: Any) -> str:
        return super().render_bind_cast(type_, _without_limits(dbapi_type), sqltext).replace("::VARCHAR", "::TEXT")


def _without_limits(type_: Any) -> Any:
    plain = copy(type_)
    for limit in ("precision", "scale", "length"):
        if getattr(plain, limit, None) is not None:
            setattr(plain, limit, None)
    if isinstance(plain, ARRAY):
        plain.item_type = _without_limits(plain.item_type)
    return plain


def _write_json(value: Any) -> str:
    return encode_json(value).decode()


# SQLite connections: a closed one holds no lock, and a cancelled statement ends soon.
_INSTRUCTIONS = 10_000
"""Instructions of SQLite's virtual machine between two checks of the flag: less than a millisecond of work."""


class SqliteConnection(sqlite3.Connection):
    """Ends its transaction when it is closed.

    SQLite keeps the transaction of a closed connection, and so the write lock, as long as one of its cursors is open:
    after a cancelled statement, until the cursor is garbage-collected.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._interrupted = threading.Event()
        self._cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()
        self.execute("PRAGMA journal_mode = WAL").close()  # readers do not block the writer
        for setting, value in SQLITE_SETTINGS.items():
            self.execute(f"PRAGMA {setting} = {value}").close()
        self.set_progress_handler(self._interrupted.is_set, _INSTRUCTIONS)

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        cursor = super().cursor(*args, **kwargs)
        self._cursors.add(cursor)
        return cursor

    def interrupt(self) -> None:
        """Stop the running statement, and every later one: a cancelled statement may only be about to start."""
        self._interrupted.set()

    def close(self) -> None:
        for cursor in tuple(self._cursors):
            cursor.close()
        self.set_progress_handler(None, 0)  # nothing interrupts the rollback
        self.rollback()
        super().close()


def stop_abandoned_statements(engine: Engine) -> None:
    """Interrupt cancelled statements: they continue in the connection's thread, and closing would wait for them."""
    event.listen(engine, "invalidate", _interrupt)


def _interrupt(connection: Any, *_: Any) -> None:
    with suppress(ValueError):  # already closed
        connection.run_async(lambda raw: raw.interrupt())
