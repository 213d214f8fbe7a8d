"""The tables of the semantic locks, in one database of the project. Times are seconds since the epoch.

Other applications may read ``saga_lock`` and ``saga_lock_wait`` (docs/how-to/locks.md); only the engine writes them.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.entry_key import MAX_GUARD_ID
from saga_activities.guard.schema import DIALECTS, create_metadata, metadata_ddl
from saga_activities.guard.tables import TABLE_OPTIONS, long_text, short_text
from sagas.input_limits import MAX_LOCK_KEY_LENGTH
from sagas.protocol.locks import MAX_HOLDER

metadata = sa.MetaData()

lock_table = sa.Table(
    "saga_lock",
    metadata,
    # A row is a held lock. The release deletes it.
    sa.Column("key", short_text(MAX_LOCK_KEY_LENGTH), primary_key=True),
    # The root saga that owns it. For its nested sagas and its undo the key is free.
    sa.Column("saga_id", short_text(MAX_GUARD_ID), nullable=False),
    # By the clock of this database.
    sa.Column("acquired_at", sa.Double, nullable=False),
    # Whose request was granted, and whose release deletes the row: the saga, a nested saga, or an undo.
    sa.Column("holder", short_text(MAX_HOLDER), nullable=False),
    sa.Index("saga_lock_owner", "saga_id"),
    sa.Index("saga_lock_holder", "holder"),
    **TABLE_OPTIONS,
)

wait_table = sa.Table(
    "saga_lock_wait",
    metadata,
    # A row for each key of a request that waits. A request that waits holds nothing.
    sa.Column("key", short_text(MAX_LOCK_KEY_LENGTH), nullable=False),
    # The order of arrival in this database.
    sa.Column("position", sa.BigInteger, nullable=False, autoincrement=False),
    sa.Column("saga_id", short_text(MAX_GUARD_ID), nullable=False),
    # By the clock of this database.
    sa.Column("since", sa.Double, nullable=False),
    sa.PrimaryKeyConstraint("key", "position"),
    sa.Index("saga_lock_wait_position", "position"),
    **TABLE_OPTIONS,
)

request_table = sa.Table(
    "saga_lock_request",
    metadata,
    # One row for each request that was ever made, until it is purged with the guard's rows: an attempt that arrives
    # after the release finds it closed.
    sa.Column("holder", short_text(MAX_HOLDER), primary_key=True),
    sa.Column("saga_id", short_text(MAX_GUARD_ID), nullable=False),
    # What tells it from another one with the same id: see sagas.protocol.origin.start_of.
    sa.Column("saga_start", short_text(16), nullable=False),
    # The workflow that is signalled when its request is granted.
    sa.Column("workflow_id", long_text(), nullable=False),
    # `waiting`, `granted` (by the release of another saga, and not known to this one yet), `held` or `closed`.
    sa.Column("status", short_text(12), nullable=False),
    sa.Column("position", sa.BigInteger, nullable=False),
    # The keys, as a JSON array.
    sa.Column("lock_keys", long_text(), nullable=False),
    # By the clock of this database.
    sa.Column("requested_at", sa.Double, nullable=False),
    # When the attempt was scheduled, by Temporal's clock, like the rows of the guard.
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Index("saga_lock_request_owner", "saga_id"),
    sa.Index("saga_lock_request_status", "status", "position"),
    **TABLE_OPTIONS,
)

order_table = sa.Table(
    "saga_lock_order",
    metadata,
    # One row, which each request and each release updates first: so they come one after the other.
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("position", sa.BigInteger, nullable=False),
    **TABLE_OPTIONS,
)

_INITIAL_ROW = (
    "insert into saga_lock_order (id, position) select 1, 0 from (select 1 as one) as this_row "
    "where not exists (select 1 from saga_lock_order where id = 1)"
)


async def create_tables(engine: AsyncEngine) -> None:
    """Create the tables where they do not exist; repeatable, and safe to run from several processes at once."""
    await create_metadata(engine, metadata, [_INITIAL_ROW])


def ddl(dialect: str) -> str:
    """Return the statements that create the lock tables as SQL, for a database administrator. Raises KeyError for an
    unknown dialect.
    """
    return ";\n\n".join([*metadata_ddl(DIALECTS[dialect](), metadata), _INITIAL_ROW]) + ";\n"
