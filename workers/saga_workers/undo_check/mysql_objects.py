"""The objects of a database of MySQL or MariaDB, made again in an empty database of the same server, with all rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from saga_workers.runtime.database_access import driver_message
from saga_workers.undo_check.mysql_names import ServerNames
from sagas.errors import UsageError
from sagas.text.sql_names import backquoted

OWNER_TABLE = "saga_verify_undo_owner"
"""The table of a copy whose comment names the process that has made it; it is in no other copy of that copy."""

_ENGINES = ("InnoDB", "MyISAM", "Aria", "MEMORY", "CSV", "ARCHIVE", "BLACKHOLE", "ROCKSDB")
"""The engines whose tables have their rows in the database itself."""

_TABLES = sa.text("""
    SELECT table_name AS name, table_type AS kind, engine AS engine_ FROM information_schema.tables
    WHERE table_schema = :place AND table_name <> :owner ORDER BY table_name
""")

_STORED_COLUMNS = sa.text("""
    SELECT table_name AS table_, column_name AS name FROM information_schema.columns
    WHERE table_schema = :place AND coalesce(generation_expression, '') = '' ORDER BY table_name, ordinal_position
""")

_TRIGGERS = sa.text("""
    SELECT 'TRIGGER' AS kind, trigger_name AS name, sql_mode AS mode_ FROM information_schema.triggers
    WHERE trigger_schema = :place ORDER BY event_object_table, action_timing, event_manipulation, action_order
""")

_ROUTINES = sa.text("""
    SELECT routine_type AS kind, routine_name AS name, sql_mode AS mode_ FROM information_schema.routines
    WHERE routine_schema = :place ORDER BY routine_name
""")

_MAY_SEE_TRIGGERS = sa.text("""
    SELECT count(*) FROM (
      SELECT grantee, privilege_type FROM information_schema.user_privileges
      UNION ALL SELECT grantee, privilege_type FROM information_schema.schema_privileges WHERE :place LIKE table_schema
    ) AS granted
    WHERE privilege_type = 'TRIGGER' AND grantee = concat('''', replace(current_user(), '@', '''@'''), '''')
""")

_DEFINER = re.compile(
    r"(CREATE (?:OR REPLACE )?(?:ALGORITHM=\w+ )?)DEFINER=`(?:[^`]|``)*`(?:@`(?:[^`]|``)*`)? ", re.IGNORECASE
)
"""The account with whose rights an object works: only an administrator may name another one than itself."""

_OTHER_READING = ("ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "ORACLE", "PIPES_AS_CONCAT")
"""Values of `sql_mode` in which the text of an object is split otherwise."""

_COPYING = (
    "SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO', foreign_key_checks = 0, unique_checks = 0"
    " /*M! , check_constraint_checks = 0 */"
)
"""Lets the copy have each row that the original has."""

_WITHOUT_LOCKS = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
"""Otherwise an INSERT locks the rows that it reads."""


class NotCopied(UsageError):
    """An object of the database cannot be copied; the message is the end of a sentence about the database."""


@dataclass(frozen=True, slots=True)
class ObjectCopier:
    """Copies from the database ``original`` to ``copy``. ``source`` and ``target`` are sessions in each of them."""

    original: str
    copy: str
    source: AsyncConnection
    target: AsyncConnection
    names: ServerNames

    async def copy_all(self) -> None:
        """Make all objects and rows. Raises NotCopied, DBAPIError, UnreadableSql."""
        place = {"place": self.original}
        await self.target.exec_driver_sql(_COPYING)
        await self.target.exec_driver_sql(_WITHOUT_LOCKS)
        await self._require_all_triggers()
        described: Sequence[Any] = (await self.source.execute(_TABLES, {**place, "owner": OWNER_TABLE})).all()
        kinds = {row.name: row.kind for row in described}
        for row in described:
            if row.engine_ is not None and row.engine_ not in _ENGINES and row.kind not in ("VIEW", "SEQUENCE"):
                raise NotCopied(f"rows of the table {row.name} are elsewhere (its engine is {row.engine_})")
        for name in _of_kind(kinds, "SEQUENCE"):
            await self._copy_sequence(name)
        tables = _of_kind(kinds, "BASE TABLE", "SYSTEM VERSIONED")
        for name in tables:
            await self._make("table", name, await self._definition("TABLE", name))
        await self._copy_rows(tables)
        for row in (await self.source.execute(_ROUTINES, place)).all():
            await self._make_program(row)
        await self._make_views(_of_kind(kinds, "VIEW"))
        for row in (await self.source.execute(_TRIGGERS, place)).all():
            await self._make_program(row)

    async def _require_all_triggers(self) -> None:
        if not (await self.source.execute(_MAY_SEE_TRIGGERS, {"place": self.original})).scalar():
            raise NotCopied(
                "its user cannot see whether its tables have triggers",
                help=f"grant it TRIGGER on {backquoted(self.original)}.*",
            )

    async def _definition(self, kind: str, name: str) -> str:
        """The statement that makes an object, as the server shows it."""
        row = (await self.source.exec_driver_sql(_plain(f"SHOW CREATE {kind} {backquoted(name)}"))).mappings().one()
        words = f"create {'table' if kind == 'SEQUENCE' else kind}".lower()
        text = next((value for key, value in row.items() if key.lower() in (words, "sql original statement")), None)
        if text is None:
            raise NotCopied(
                f"its user may not read the {kind.lower()} {name}",
                help=f"make the {kind.lower()} as that user, or let it read definitions (MariaDB before 11.3: GRANT"
                " SELECT ON mysql.proc; later: GRANT SHOW CREATE ROUTINE; MySQL: GRANT SHOW_ROUTINE)",
            )
        return _DEFINER.sub(r"\1", str(text), count=1)

    async def _make(self, kind: str, name: str, definition: str) -> None:
        statement = self.names.moved(definition, self.original, self.copy)
        place = self.names.other_database(statement, self.original, self.copy)
        if place is not None:
            raise NotCopied(f"the {kind} {name} names the database {place}, in which a copy would work as well")
        await self.target.exec_driver_sql(_plain(statement))

    async def _copy_sequence(self, name: str) -> None:
        await self._make("sequence", name, await self._definition("SEQUENCE", name))
        quoted = _plain(backquoted(name))
        statement = f"SELECT next_not_cached_value AS next_, cycle_count AS cycles FROM {quoted}"
        row: Any = (await self.source.exec_driver_sql(statement)).one()
        await self.target.exec_driver_sql(f"SELECT setval({quoted}, {int(row.next_)}, 0, {int(row.cycles)})")

    async def _copy_rows(self, tables: Sequence[str]) -> None:
        columns: dict[str, list[str]] = {}
        for row in (await self.source.execute(_STORED_COLUMNS, {"place": self.original})).all():
            columns.setdefault(row.table_, []).append(backquoted(row.name))
        for name in tables:
            listed = ", ".join(columns.get(name, ()))
            if listed:
                table, original = backquoted(name), f"{backquoted(self.original)}.{backquoted(name)}"
                statement = f"INSERT INTO {table} ({listed}) SELECT {listed} FROM {original}"
                await self.target.exec_driver_sql(_plain(statement))

    async def _make_views(self, views: Sequence[str]) -> None:
        """Make the views; one that reads another one after that."""
        waiting = {name: await self._definition("VIEW", name) for name in views}
        while waiting:
            refused: dict[str, DBAPIError] = {}
            for name, definition in waiting.items():
                try:
                    await self._make("view", name, definition)
                except DBAPIError as error:
                    refused[name] = error
            if len(refused) == len(waiting):
                name, error = next(iter(refused.items()))
                raise NotCopied(
                    f"its view {name} cannot be made again: {driver_message(error)}",
                    help="drop the view, or correct it",
                ) from error
            waiting = {name: waiting[name] for name in refused}

    async def _make_program(self, row: Any) -> None:
        """Make a trigger, a function or a procedure, in the `sql_mode` in which it works."""
        kind = str(row.kind).lower()
        if kind not in ("trigger", "function", "procedure"):
            raise NotCopied(f"it has the {kind} {row.name}")
        modes = set(str(row.mode_ or "").split(","))
        if modes & set(_OTHER_READING):
            raise NotCopied(f"the {kind} {row.name} works in the sql_mode {row.mode_}")
        definition = await self._definition(kind.upper(), row.name)
        await self.target.exec_driver_sql(f"SET SESSION sql_mode = '{row.mode_ or ''}'")
        await self._make(kind, row.name, definition)


def _of_kind(kinds: Mapping[str, str], *wanted: str) -> list[str]:
    return [name for name, kind in kinds.items() if kind in wanted]


def _plain(statement: str) -> str:
    """The statement for the driver, which reads percent signs as placeholders."""
    return statement.replace("%", "%%")
