"""The prepared transactions of a database: which step each belongs to, how old it is, and which locks it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.tables import now_sql
from saga_activities.guard.two_phase import rules
from saga_activities.guard.two_phase.mysql import recover
from saga_activities.guard.two_phase.transaction_id import XA_FORMAT, TransactionId
from sagas.text.sql_names import sql_text

_PREPARED = text(
    "SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::double precision AS age,"
    " owner = current_user AS is_own, transaction::text AS transaction"
    " FROM pg_catalog.pg_prepared_xacts WHERE database = current_database() ORDER BY prepared"
)
_LOCKS = text(
    "SELECT x.transactionid::text AS transaction, c.relname AS relation, l.mode"
    " FROM pg_locks x JOIN pg_locks l ON l.virtualtransaction = x.virtualtransaction AND l.pid IS NULL"
    " JOIN pg_class c ON c.oid = l.relation"
    " WHERE x.pid IS NULL AND x.locktype = 'transactionid' AND c.relkind IN ('r', 'p')"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND l.mode <> 'AccessShareLock' AND c.relname <> 'saga_guard' ORDER BY c.relname, l.mode"
)
_COMMITTED = (
    "SELECT DISTINCT d.saga_id, d.step, d.generation FROM saga_guard d JOIN saga_guard r"
    " ON r.saga_id = d.saga_id AND r.step = d.step AND r.generation = d.generation AND r.op LIKE 'run.%'"
    " JOIN saga_guard c ON c.saga_id = d.saga_id AND c.step = d.step AND c.generation = d.generation"
    " AND c.op = 'committed' LEFT JOIN saga_guard f ON f.saga_id = d.saga_id AND f.step = d.step"
    " AND f.generation = d.generation AND f.op = 'confirm' WHERE d.op = 'do' AND d.reason = 'do' AND f.op IS NULL"
)
_OPEN_ENTRIES = (
    "SELECT d.saga_id, d.step, d.generation, d.result, r.created_at FROM saga_guard d JOIN saga_guard r"
    " ON r.saga_id = d.saga_id AND r.step = d.step AND r.generation = d.generation AND r.op LIKE 'run.%'"
    " WHERE d.op = 'do' AND d.reason = 'do'"
)


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """One prepared transaction.

    ``id`` is the database's own. ``entry_key`` is the step that it belongs to, None if no step of this database does.
    ``age`` in seconds (None if the database does not know it). ``locks`` are tables with the mode of the lock, as far
    as the database tells. ``rollback`` is the statement that an administrator would roll it back with. ``is_foreign``:
    no step of any database prepared it, or (PostgreSQL) another role did.
    """

    id: str
    entry_key: EntryKey | None
    age: float | None
    locks: tuple[str, ...]
    rollback: str
    is_foreign: bool = False

    def is_older_than(self, seconds: float) -> bool:
        """False also if the database does not know its age."""
        return self.age is not None and self.age > seconds

    def describe(self) -> str:
        """Age and locks, as a phrase."""
        age = "of unknown age" if self.age is None else f"prepared for {self.age:.0f} s"
        return f"{age}, and locks {', '.join(self.locks) or 'rows that this database does not list'}"


async def list_prepared(engine: AsyncEngine, saga_id: str | None = None) -> list[PreparedTransaction]:
    """All prepared transactions of the database; with ``saga_id`` only those of this saga.

    On MySQL and MariaDB they include those of other databases of the server, which have no ``entry_key``. Raises
    SQLAlchemyError; MySQL requires XA_RECOVER_ADMIN.
    """
    async with engine.connect() as connection:
        match engine.dialect.name:
            case "postgresql":
                prepared = await _list_postgresql(connection)
            case "mysql" | "mariadb":
                prepared = await _list_xa(connection)
            case _:
                prepared = []
    if saga_id is None:
        return prepared
    return [
        transaction
        for transaction in prepared
        if transaction.entry_key is not None and transaction.entry_key.saga_id == saga_id
    ]


async def sagas_with_prepared(engine: AsyncEngine) -> set[str]:
    """The sagas with prepared transactions: their guard rows are locked, and still needed."""
    try:
        return {
            transaction.entry_key.saga_id
            for transaction in await list_prepared(engine)
            if transaction.entry_key is not None
        }
    except DBAPIError:
        if engine.dialect.name == "mysql":
            return set()  # without the privilege XA_RECOVER_ADMIN no step can be prepared either
        raise


async def list_committed(engine: AsyncEngine, saga_id: str | None = None) -> list[EntryKey]:
    """The entries whose transaction is committed, and that are not confirmed. Raises SQLAlchemyError."""
    where, values = ("", {}) if saga_id is None else (" AND d.saga_id = :saga_id", {"saga_id": saga_id})
    async with engine.connect() as connection:
        rows: Any = (await connection.execute(text(_COMMITTED + where), values)).all()
    return [EntryKey(*row) for row in rows]


async def _list_postgresql(connection: AsyncConnection) -> list[PreparedTransaction]:
    rows = (await connection.execute(_PREPARED)).all()
    if not rows:
        return []
    locks: dict[str, list[str]] = {}
    for transaction, relation, mode in (await connection.execute(_LOCKS)).all():
        locks.setdefault(transaction, []).append(f"{relation} ({mode})")
    entries = {id.postgres: id.entry_key for id in await _open_entries(connection)}
    return [
        PreparedTransaction(
            row.gid,
            entries.get(row.gid) if row.is_own else None,
            row.age,
            tuple(locks.get(row.transaction, ())),
            f"ROLLBACK PREPARED {sql_text(row.gid)}",
            not row.is_own or row.gid not in entries,
        )
        for row in rows
    ]


async def _list_xa(connection: AsyncConnection) -> list[PreparedTransaction]:
    ids = await recover(connection)
    if not ids:
        return []
    entries = {id.xa: (id.entry_key, created_at) for id, created_at in (await _open_entries(connection)).items()}
    now = float((await connection.execute(text(f"SELECT {now_sql('mysql')}"))).scalar_one())
    prepared = []
    for xa_id in sorted(ids, key=lambda xa_id: (xa_id.gtrid, xa_id.bqual)):
        key, since = entries.get(xa_id, (None, None))
        age = None if since is None else max(0.0, now - since)
        prepared.append(
            PreparedTransaction(
                xa_id.gtrid.decode(errors="replace"),
                key,
                age,
                (),
                f"XA ROLLBACK {xa_id.sql}",
                xa_id.format != XA_FORMAT,
            )
        )
    return prepared


async def _open_entries(connection: AsyncConnection) -> Mapping[TransactionId, float]:
    """The transactions that may be prepared, with the time at which their attempt was scheduled."""
    try:
        rows: Any = (await connection.execute(text(_OPEN_ENTRIES))).all()
    except DBAPIError as error:
        if "saga_guard" in str(error.orig):
            return {}  # a database without the guard's tables
        raise
    ids = ((rules.transaction_id(EntryKey(*key), marker), created_at) for *key, marker, created_at in rows)
    return {id: created_at for id, created_at in ids if id is not None}
