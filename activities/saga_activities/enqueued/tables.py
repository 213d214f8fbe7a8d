"""The table ``saga_enqueued``, in the databases of applications that start sagas in their own transactions.

Applications insert rows by the documented statement; every other column has a default of the database, so that a role
needs nothing but INSERT.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import DDLCompiler

from saga_activities.database_clock import DatabaseNow
from saga_activities.guard.entry_key import MAX_GUARD_ID
from saga_activities.guard.schema import DIALECTS, create_metadata, metadata_ddl
from saga_activities.guard.tables import TABLE_OPTIONS, long_text, short_text
from saga_activities.input_limits import MAX_ENQUEUED_NAME

NEW = "NEW"
"""Committed; it will be delivered. ``reason``: why the last attempt has failed."""
REFUSED = "REFUSED"
"""Never delivered as it is: ``reason`` says why, and an operator decides."""
DROPPED = "DROPPED"
"""An operator has decided that it is never delivered; ``reason`` says who, and why."""


class _NewUid(sa.sql.expression.ColumnElement[str]):
    """A unique text that the database makes."""

    inherit_cache = True


_UID = {"postgresql": "gen_random_uuid()::text", "sqlite": "lower(hex(randomblob(16)))"}


@compiles(_NewUid)
def _new_uid(element: _NewUid, compiler: DDLCompiler, **_: Any) -> str:
    return f"({_UID.get(compiler.dialect.name, 'uuid()')})"


metadata = sa.MetaData()

enqueued_table = sa.Table(
    "saga_enqueued",
    metadata,
    # GENERATED AS IDENTITY on PostgreSQL: a role that inserts needs no right on a sequence. An id that a writer chooses
    # may keep others from inserting: applications have the right to insert the columns of their statement alone.
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), sa.Identity(always=True), primary_key=True),
    # Null for a signal, or the saga that it is meant for.
    sa.Column("saga", short_text(MAX_ENQUEUED_NAME)),
    # Null for a start: the `id` of the definition counts, and without one the name of the saga and `uid`.
    sa.Column("saga_id", short_text(MAX_GUARD_ID)),
    # Null for a start. (`signal` is a reserved word of MySQL.)
    sa.Column("signal_name", short_text(MAX_ENQUEUED_NAME)),
    # JSON: the input of the saga, or the data of the signal.
    sa.Column("input", long_text()),
    # Rows with equal keys are delivered in the order of their ids. Null: the key is `saga_id`.
    sa.Column("order_key", short_text(MAX_ENQUEUED_NAME)),
    sa.Column("status", short_text(12), nullable=False, server_default=NEW),
    sa.Column("reason", long_text()),
    sa.Column("created_at", sa.Double, nullable=False, server_default=DatabaseNow()),
    sa.Column("uid", short_text(36), nullable=False, server_default=_NewUid()),
    # When an operator dropped it.
    sa.Column("dropped_at", sa.Double),
    sa.Index("saga_enqueued_waiting", "status", "id"),
    # A process that was frozen may still delete by id, so no other row may ever have it.
    sqlite_autoincrement=True,
    **TABLE_OPTIONS,
)
"""A row that was delivered is deleted: the saga itself tells the rest."""


async def create_tables(engine: AsyncEngine) -> None:
    """Create the table if it does not exist; repeatable, and safe to run from several processes at once."""
    await create_metadata(engine, metadata, ())


def ddl(dialect: str) -> str:
    """Return what :func:`create_tables` executes, as SQL for a database administrator. Raises KeyError for an unknown
    dialect.
    """
    return ";\n\n".join(metadata_ddl(DIALECTS[dialect](), metadata)) + ";\n"
