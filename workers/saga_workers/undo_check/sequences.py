"""The sequences of a database, and the next value of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from saga_activities.engine_tables import ENGINE_TABLES
from saga_workers.undo_check.compared_tables import HiddenPlace, SearchPath
from sagas.text.sql_names import backquoted, sql_name


@dataclass(frozen=True, slots=True)
class NextValue:
    """The value that a sequence gives next, and how far apart its values are."""

    value: int
    increment: int = 1

    def is_before(self, other: NextValue) -> bool:
        return (self.value - other.value) * self.increment < 0


_POSTGRESQL_SEQUENCES = """
    SELECT n.nspname, c.relname, s.seqincrement,
      pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_sequence_privilege(c.oid, 'SELECT'),
      EXISTS (SELECT FROM pg_depend d JOIN pg_class t ON t.oid = d.refobjid JOIN pg_namespace tn
          ON tn.oid = t.relnamespace
        WHERE d.classid = 'pg_class'::regclass::oid AND d.objid = c.oid AND d.refclassid = 'pg_class'::regclass::oid
          AND d.deptype IN ('a', 'i') AND EXISTS (
            SELECT FROM unnest(CAST(:schemas AS text[]), CAST(:tables AS text[])) AS e (schema, name)
            WHERE e.schema = tn.nspname::text AND e.name = t.relname::text))
    FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relpersistence <> 't' ORDER BY 1, 2
"""


async def read_sequences(
    connection: AsyncConnection, path: SearchPath
) -> tuple[Mapping[str, NextValue], list[HiddenPlace]]:
    """The next value of each sequence by its name in messages, without those of the engine, and the hidden ones."""
    if connection.dialect.name == "postgresql":
        return await _read_postgresql(connection, path)
    if connection.dialect.name == "sqlite":
        return await _read_sqlite(connection), []
    return await _read_mysql(connection), []


async def _read_postgresql(
    connection: AsyncConnection, path: SearchPath
) -> tuple[Mapping[str, NextValue], list[HiddenPlace]]:
    query = sa.text(_POSTGRESQL_SEQUENCES)
    engine = {"schemas": [schema for schema, _ in path.engine], "tables": [name for _, name in path.engine]}
    described: Sequence[Any] = (await connection.execute(query, engine)).all()
    names = [(schema, name) for schema, name, *_ in described]
    readable: list[tuple[str, str, int]] = []
    hidden = []
    for schema, name, increment, may_read, of_engine in described:
        shown = path.shown(schema, name, names)
        if of_engine:
            continue
        if may_read:
            readable.append((shown, f"{sql_name(schema)}.{sql_name(name)}", increment))
        else:
            hidden.append(HiddenPlace(shown, "the role of the connection may not read the sequence"))
    if not readable:
        return {}, hidden
    statement = " UNION ALL ".join(
        f"SELECT {number}, last_value, is_called FROM {quoted}" for number, (_, quoted, _) in enumerate(readable)
    )
    sequences = {}
    rows: Sequence[Any] = (await connection.exec_driver_sql(statement.replace("%", "%%"))).all()
    for number, last, is_called in rows:
        name, _, increment = readable[number]
        sequences[name] = NextValue(last + increment if is_called else last, increment)
    return sequences, hidden


async def _read_sqlite(connection: AsyncConnection) -> dict[str, NextValue]:
    """The keys of AUTOINCREMENT; a table without a row in `sqlite_sequence` begins with 1."""
    exists = "SELECT count(*) FROM sqlite_master WHERE name = 'sqlite_sequence'"
    if not (await connection.exec_driver_sql(exists)).scalar():
        return {}
    used: Sequence[Any] = (await connection.exec_driver_sql("SELECT name, seq FROM sqlite_sequence")).all()
    given = {name: NextValue(int(last or 0) + 1) for name, last in used if name not in ENGINE_TABLES}
    tables = (await connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'")).scalars()
    return {f"sqlite_sequence.{name}": given.get(name, NextValue(1)) for name in tables if name not in ENGINE_TABLES}


_MYSQL_KEYS = """
    SELECT t.table_name AS table_, c.column_name AS name, t.auto_increment AS next_ FROM information_schema.tables t
    JOIN information_schema.columns c ON c.table_schema = t.table_schema AND c.table_name = t.table_name
    WHERE t.table_schema = database() AND c.extra LIKE '%%auto_increment%%' ORDER BY t.table_name
"""

_MARIADB_SEQUENCES = """
    SELECT table_name FROM information_schema.tables
    WHERE table_schema = database() AND table_type = 'SEQUENCE' ORDER BY table_name
"""


async def _read_mysql(connection: AsyncConnection) -> dict[str, NextValue]:
    """The keys of AUTO_INCREMENT, and the sequences of MariaDB, whose next values it reserves in portions."""
    keys: Sequence[Any] = (await connection.exec_driver_sql(_MYSQL_KEYS)).all()
    values = {
        f"{row.table_}.{row.name}": NextValue(int(row.next_ or 1)) for row in keys if row.table_ not in ENGINE_TABLES
    }
    for name in (await connection.exec_driver_sql(_MARIADB_SEQUENCES)).scalars().all():
        quoted = backquoted(name).replace("%", "%%")
        statement = f"SELECT next_not_cached_value AS next_, increment AS step FROM {quoted}"
        row: Any = (await connection.exec_driver_sql(statement)).one()
        values[name] = NextValue(int(row.next_), int(row.step) or 1)
    return values
