"""Copies of a database of PostgreSQL on its own server.

The first copy is made with the database as the template, or by pg_dump and pg_restore while others are connected to it;
the copies of the runs have the first one as their template. The database is only read.

On the embedded server its superuser creates and drops the copies, and does nothing else: what the database's owner has
made in it, such as the check of a table or a function that hides one of pg_catalog, would run as the superuser.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import URL, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from saga_activities.session_settings import session_arguments
from saga_workers.devstack.dev_folder import DevFolder
from saga_workers.devstack.postgres_server import PostgresService, program_folder
from saga_workers.devstack.service import NotInstalledError
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.process_identity import is_of_this_machine, owner_is_dead, process_identity
from sagas.errors import SagaError, UsageError
from sagas.settings import Settings, SqlConnection
from sagas.text.shortening import join_names
from sagas.text.sql_names import sql_name, sql_text

PREFIX = "saga_verify_undo_"
"""The beginning of the names of all copies."""

_MARK = "saga verify-undo by "
"""The beginning of the comment on a copy, before the process that has made it."""

_EXISTS = sa.text("SELECT count(*) FROM pg_database WHERE datname = :name")

_ORIGINAL = sa.text("""
    SELECT (r.rolsuper OR r.rolcreatedb), (r.rolsuper OR pg_has_role(d.datdba, 'USAGE')),
      (SELECT o.rolsuper FROM pg_roles o WHERE o.rolname = coalesce(:role, current_user)),
      pg_encoding_to_char(d.encoding), d.datcollate, d.datctype,
      EXISTS (SELECT FROM pg_stat_activity a WHERE a.datname = d.datname AND a.pid <> pg_backend_pid())
        OR EXISTS (SELECT FROM pg_prepared_xacts x WHERE x.database = d.datname) AS busy
    FROM pg_database d, pg_roles r WHERE d.datname = :name AND r.rolname = current_user
""")

_SETTINGS = sa.text("""
    SELECT pg_catalog.unnest(s.setconfig) FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
    WHERE d.datname = :name AND s.setrole IN (0::oid, (SELECT oid FROM pg_roles WHERE rolname = :role))
    ORDER BY s.setrole
""")

_STRANGERS = sa.text("""
    SELECT DISTINCT r.rolname::text FROM pg_catalog.pg_database d
    JOIN pg_catalog.pg_shdepend s ON s.dbid = d.oid AND s.deptype = 'o'
    JOIN pg_catalog.pg_roles r ON r.oid = s.refobjid AND s.refclassid = 'pg_catalog.pg_authid'::regclass::oid
    WHERE d.datname = pg_catalog.current_database() AND NOT r.rolsuper AND r.rolname <> current_user
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles t
        WHERE (t.oid = d.datdba OR t.rolname::text = ANY (CAST(:trusted AS text[])))
          AND pg_catalog.pg_has_role(r.oid, t.oid, 'MEMBER'::text))
    ORDER BY 1
""")
"""The owners of objects of the database who could not run code over the connection otherwise, as
:mod:`saga_activities.foreign_rights` judges them.
"""

_BUSY_CHECKS = 5
_BUSY_INTERVAL = 0.05

_COPIES = """
    SELECT datname, pg_catalog.shobj_description(oid, 'pg_database') FROM pg_catalog.pg_database
    WHERE pg_catalog.starts_with(datname, 'saga_verify_undo_') AND pg_catalog.pg_has_role(datdba, 'USAGE') ORDER BY 1
"""
"""The copies that the role of the session may drop, and who has made them."""

_WAYS_OUT = """
    SELECT 'foreign table ' || c.oid::regclass::text FROM pg_class c WHERE c.relkind = 'f'
    UNION ALL SELECT 'extension ' || e.extname::text FROM pg_extension e WHERE e.extname IN ('dblink', 'plproxy')
    UNION ALL SELECT 'foreign server ' || s.srvname::text FROM pg_foreign_server s
    LIMIT 1
"""
"""Objects through which statements, functions and triggers of a database reach other databases."""

_DIRECT_URL = "give a URL that leads to the server itself, without a connection pooler"

_LISTS = ("search_path", "temp_tablespaces", "local_preload_libraries", "session_preload_libraries")
"""Settings whose values are lists of quoted names, which would be one name as a literal."""


class PostgresqlCopies:
    """The copies of one database. ``base`` is the URL of the first one."""

    def __init__(self, connections: Sequence[SqlConnection], url: URL, administrator: AsyncEngine) -> None:
        self._connection = connections[0]
        self._url = url
        roles = [make_url(connection.url).username for connection in connections]
        self._other_roles = [role for role in dict.fromkeys(roles) if role and role != url.username]
        self._administrator = administrator
        self._original = str(url.database)
        self._settings: list[str] = []
        self._run = uuid.uuid4().hex[:12]
        self.base = url.set(database=f"{PREFIX}{self._run}")
        self.of_other_runs: Sequence[str] = ()

    @classmethod
    @asynccontextmanager
    async def create(
        cls, settings: Settings, connections: Sequence[SqlConnection], url: URL
    ) -> AsyncIterator[PostgresqlCopies]:
        """Copy the database, and drop the copy at the end. Raises SagaError if that is not possible."""
        connection = connections[0]
        _require_database_in_path(connection, url)
        address = _administrator_url(settings, connection, url)
        administrator = create_async_engine(
            address, isolation_level="AUTOCOMMIT", poolclass=NullPool, connect_args=session_arguments(address)
        )
        copies = cls(connections, url, administrator)
        try:
            try:
                await copies._copy_original()
            except DBAPIError as error:
                raise copies._refusal(driver_message(error)) from error
            yield copies
        finally:
            await copies._drop(str(copies.base.database))
            await administrator.dispose()

    @asynccontextmanager
    async def copy(self) -> AsyncIterator[URL]:
        name = f"{PREFIX}{self._run}_run"
        try:
            await self._create(name, f"TEMPLATE {sql_name(str(self.base.database))}")
            yield self._url.set(database=name)
        finally:
            await self._drop(name)

    def keep_inside(self, engine: AsyncEngine) -> None:
        """Nothing to do: a statement works in the database of its connection."""

    async def _copy_original(self) -> None:
        base = str(self.base.database)
        async with self._administrator.connect() as session:
            abandoned = await self._abandoned_copies(session)
            if not (await session.execute(_EXISTS, {"name": self._original})).scalar():
                raise SagaError(
                    f"the server of the connection {self._connection.name} has no database {self._original}",
                    help=_DIRECT_URL,
                )
            async with _session(self._url) as original:
                await self._require_trusted_owners(original)
            row = await self._read_original(session)
            may_create, owns, is_superuser, encoding, collation, characters, busy = row
            role = self._url.username or (await session.exec_driver_sql("SELECT current_user")).scalar_one()
            written = await session.execute(_SETTINGS, {"name": self._original, "role": role})
            self._settings = list(written.scalars())
        for name in abandoned:
            await self._drop(name)
        if not may_create:
            raise self._refusal("its role may not create databases")
        if owns and not busy:
            await self._create(base, f"TEMPLATE {sql_name(self._original)}")
            async with _session(self._url.set(database=base)) as session:
                await self._require_trusted_owners(session)  # of what was made since
        else:
            locale = f"LC_COLLATE {sql_text(collation)} LC_CTYPE {sql_text(characters)}"
            await self._create(base, f"TEMPLATE template0 ENCODING {sql_text(encoding)} {locale}")
            async with _session(self._url) as session:
                await session.exec_driver_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                await self._require_trusted_owners(session)  # of what is dumped: it may be newer
                snapshot = (await session.exec_driver_sql("SELECT pg_catalog.pg_export_snapshot()")).scalar_one()
                await self._restore_dump(base, snapshot, is_superuser=is_superuser)
        async with _session(self._url.set(database=base)) as session:
            way_out = (await session.exec_driver_sql(_WAYS_OUT)).scalar()
        if way_out is not None:
            raise SagaError(
                f"the connection {self._connection.name} has the {way_out}, through which a copy would write to "
                "another database",
                help="verify the saga on a database without foreign tables and servers, dblink and plproxy",
            )

    async def _require_trusted_owners(self, session: AsyncConnection) -> None:
        """Raise SagaError if a role that is not trusted owns anything: its checks and casts would run in a copy."""
        trusted = [*self._connection.trusted_roles, *self._other_roles]
        strangers = list((await session.execute(_STRANGERS, {"trusted": trusted})).scalars())
        role = (await session.exec_driver_sql("SELECT current_user")).scalar_one()
        if strangers:
            owners = join_names(strangers, 5)
            raise SagaError(
                f"the database of the connection {self._connection.name} has objects of {owners}, and what these call "
                f"would run with the rights of {role} in a copy",
                help=f"if it may, name the owner in trusted_roles of [connections.{self._connection.name}]",
            )

    async def _create(self, name: str, source: str) -> None:
        quoted = sql_name(name)
        owner = f" OWNER {sql_name(self._url.username)}" if self._url.username else ""
        async with self._administrator.connect() as session:
            # Before CONNECT is revoked anybody could open a session in it, and keep that.
            await session.exec_driver_sql(_plain(f"CREATE DATABASE {quoted}{owner} {source} ALLOW_CONNECTIONS false"))
            owner_mark = sql_text(f"{_MARK}{process_identity()}")
            await session.exec_driver_sql(_plain(f"COMMENT ON DATABASE {quoted} IS {owner_mark}"))
            await session.exec_driver_sql(f"REVOKE CONNECT ON DATABASE {quoted} FROM PUBLIC")
            for role in self._other_roles:
                await session.exec_driver_sql(_plain(f"GRANT CONNECT ON DATABASE {quoted} TO {sql_name(role)}"))
            for setting in self._settings:
                key, _, value = setting.partition("=")
                shown = (value or "''") if key in _LISTS else sql_text(value)
                await session.exec_driver_sql(_plain(f"ALTER DATABASE {quoted} SET {key} TO {shown}"))
            await session.exec_driver_sql(_plain(f"ALTER DATABASE {quoted} ALLOW_CONNECTIONS true"))
        await self._require_copy(name)

    async def _require_copy(self, name: str) -> None:
        """Raise SagaError if the URL of a copy leads to another database, as it can with a connection pooler."""
        async with _session(self._url.set(database=name)) as session:
            reached = (await session.exec_driver_sql("SELECT pg_catalog.current_database()")).scalar_one()
        if reached != name:
            raise SagaError(
                f"the URL of the connection {self._connection.name} leads to the database {reached} also with the name "
                "of a copy",
                help=_DIRECT_URL,
            )

    async def _read_original(self, session: AsyncConnection) -> Any:
        """The row about the original; the server needs a moment until it has ended the command's own sessions there."""
        row: Any = None
        asked = {"name": self._original, "role": self._url.username}
        for _ in range(_BUSY_CHECKS):
            row = (await session.execute(_ORIGINAL, asked)).one()
            if not row.busy:
                break
            await asyncio.sleep(_BUSY_INTERVAL)
        return row

    async def _abandoned_copies(self, session: AsyncConnection) -> list[str]:
        """The copies whose process has ended on this machine; the names of those of other machines are kept."""
        copies: Sequence[Any] = (await session.exec_driver_sql(_COPIES)).all()
        abandoned: list[str] = []
        unclear: list[str] = []
        for name, comment in copies:
            owner = (comment or "").removeprefix(_MARK)
            if owner_is_dead(owner):
                abandoned.append(name)
            elif not is_of_this_machine(owner):
                unclear.append(name)
        self.of_other_runs = unclear
        return abandoned

    async def _drop(self, name: str) -> None:
        """Drop a copy, with the transactions that are prepared in it."""
        async with self._administrator.connect() as session:
            if not (await session.execute(_EXISTS, {"name": name})).scalar():
                return
            prepared = sa.text("SELECT gid FROM pg_prepared_xacts WHERE database = :name")
            gids = list((await session.execute(prepared, {"name": name})).scalars())
        if gids:
            async with _session(self._administrator.url.set(database=name)) as session:
                for gid in gids:
                    await session.exec_driver_sql(_plain(f"ROLLBACK PREPARED {sql_text(gid)}"))
        async with self._administrator.connect() as session:
            await session.exec_driver_sql(f"DROP DATABASE IF EXISTS {sql_name(name)} WITH (FORCE)")

    async def _restore_dump(self, base: str, snapshot: str, *, is_superuser: bool) -> None:
        dump, restore = self._program("pg_dump"), self._program("pg_restore")
        as_owner = [] if is_superuser else ["--no-owner", "--no-privileges"]
        written, environment = _libpq(self._url)
        target, _ = _libpq(self._url.set(database=base))
        reading, writing = os.pipe()
        try:
            dumping = await asyncio.create_subprocess_exec(
                dump, "--format=custom", "--no-subscriptions", "--no-publications", f"--snapshot={snapshot}", *as_owner,
                f"--dbname={written}",
                stdout=writing, stderr=asyncio.subprocess.PIPE, env=environment,
            )  # fmt: skip
            os.close(writing)
            writing = -1
            restoring = await asyncio.create_subprocess_exec(
                restore, "--exit-on-error", *as_owner, f"--dbname={target}",
                stdin=reading, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, env=environment,
            )  # fmt: skip
        finally:
            os.close(reading)
            if writing >= 0:
                os.close(writing)
        (_, problem), (_, other) = await asyncio.gather(dumping.communicate(), restoring.communicate())
        for program, process, text in (("pg_dump", dumping, problem), ("pg_restore", restoring, other)):
            if process.returncode:
                lines = text.decode(errors="replace").strip().splitlines() or ["it has failed"]
                raise self._refusal(f"{program}: {lines[0]}")

    def _program(self, name: str) -> str:
        try:
            return str(program_folder() / name)
        except NotInstalledError:
            if (path := shutil.which(name)) is not None:
                return path
        raise self._refusal(f"others are connected to it, and there is no {name}")

    def _refusal(self, why: str) -> SagaError:
        return SagaError(
            f"the database of the connection {self._connection.name} cannot be copied: {why}",
            help="use a role with CREATEDB that owns the database, or the one of saga dev up",
        )


@asynccontextmanager
async def _session(url: URL) -> AsyncIterator[AsyncConnection]:
    """A session that commits each statement and searches pg_catalog alone, whatever is set for the database.

    An option of the start holds from the first statement, such as those with which SQLAlchemy begins.
    """
    arguments = dict(session_arguments(url))
    arguments["options"] = f"{arguments.get('options', '')} -c search_path=pg_catalog".lstrip()
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool, connect_args=arguments)
    try:
        async with engine.connect() as session:
            yield session
    finally:
        await engine.dispose()


def _require_database_in_path(connection: SqlConnection, url: URL) -> None:
    """Raise UsageError if the URL does not name its database as the path, which each copy replaces."""
    if not url.database or "dbname" in url.query:
        raise UsageError(
            f"connections.{connection.name}.url must name the database as its path to be copied, without dbname",
            help="postgresql://user@host:5432/name",
        )


def _administrator_url(settings: Settings, connection: SqlConnection, url: URL) -> URL:
    """The URL of a role that creates the copies: on the embedded server its superuser, else the connection's own.

    The way is that of the connection, over the server's socket: whoever takes the port of a server that has ended must
    not be asked by the superuser.
    """
    if not connection.embedded:
        return url
    folder = DevFolder(settings.root)
    record = folder.read("postgres")
    superuser = make_url(PostgresService(settings, folder).addresses(record.ports, record.data)["url"])
    return url.set(username=superuser.username, password=superuser.password, database=superuser.database)


def _libpq(url: URL) -> tuple[str, dict[str, str]]:
    """The URL for PostgreSQL's own programs, and the environment with the password, which arguments would show."""
    address = url.set(drivername="postgresql")._replace(password=None)
    written = address.render_as_string().replace("+", "%20")  # libpq takes a plus sign in a parameter literally
    password = {"PGPASSWORD": str(url.password)} if url.password else {}
    return written, {**os.environ, **password}


def _plain(statement: str) -> str:
    """The statement for the driver, which reads percent signs as placeholders."""
    return statement.replace("%", "%%")
