"""The tables of a connection, by the engine's own query on PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

# SQLAlchemy compares "char" with text here, for which pg_catalog has no operator and another schema may have one.
_POSTGRESQL = sa.text("""
    SELECT c.relname FROM pg_catalog.pg_class c
    WHERE c.relkind IN ('r', 'p') AND pg_catalog.pg_table_is_visible(c.oid)
""")


_POSTGRESQL_INDEXES = sa.text("""
    SELECT c.relname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
    WHERE pg_catalog.pg_table_is_visible(i.indrelid)
""")


async def table_names(connection: AsyncConnection) -> set[str]:
    """The names of all tables that a statement of this session finds without a schema."""
    if connection.dialect.name == "postgresql":
        return {name for (name,) in await connection.execute(_POSTGRESQL)}
    return set(await connection.run_sync(lambda sync: sa.inspect(sync).get_table_names()))


async def index_names(connection: AsyncConnection) -> set[str]:
    """The names of the indexes of all tables that a statement of this session finds without a schema. Only for
    PostgreSQL.
    """
    return {name for (name,) in await connection.execute(_POSTGRESQL_INDEXES)}
