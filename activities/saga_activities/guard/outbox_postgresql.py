"""The part of the outbox that only PostgreSQL has: published rows carry no mark, but lie below the progress of their
shard.

A row carries the transaction that wrote it. The relay reads a shard in windows: the rows that are visible in one
snapshot and were not in the one before. So one row of ``saga_relay_progress`` for each shard says what is published,
and publishing changes no row of the outbox. docs/explanation/outbox-and-relay.md describes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from saga_activities.guard.tables import metadata, outbox_table

PROGRESS_TABLE = "saga_relay_progress"
PASSED_TABLE = "saga_relay_passed"
STATUS_VIEW = "saga_outbox_events"
"""The outbox with the status that people and other programs should see, and the earliest time of its publication."""

NOTHING_DONE = "3:3:"
"""A snapshot in which no row is visible: 3 is the first transaction of a cluster."""

PUBLISHED_BEFORE = "pg_visible_in_snapshot(o.xid, p.done)"
PUBLISHED_NOW = "o.id <= p.last_id AND pg_visible_in_snapshot(o.xid, p.reading)"
"""Conditions: a row ``o`` of the outbox was published in an earlier window, or in the current one. ``p`` is its shard's
row of the progress."""

_COMMON = ", ".join(column.name for column in outbox_table.columns if column.name not in ("status", "published_at"))
_STATUS = f"""
CREATE OR REPLACE VIEW {STATUS_VIEW} AS
SELECT {_COMMON}, shown AS status,
    CASE shown WHEN 'PUBLISHED' THEN COALESCE(published_at, created_at) WHEN 'DROPPED' THEN published_at END
    AS published_at
FROM (SELECT o.*, CAST(CASE WHEN o.status = 'SUSPENDED' THEN 'NEW' WHEN o.status <> 'NEW' THEN o.status
    WHEN {PUBLISHED_BEFORE} THEN 'PUBLISHED'
    WHEN {PUBLISHED_NOW} THEN 'PUBLISHED'
    ELSE 'NEW' END AS varchar(12)) AS shown FROM saga_outbox o LEFT JOIN {PROGRESS_TABLE} p ON p.shard = o.shard) AS e
""".strip()

# The relay requires the last of these tables, so it comes last.
POSTGRESQL_OUTBOX_DDL: Sequence[str] = (
    "ALTER TABLE saga_outbox ADD COLUMN IF NOT EXISTS xid xid8 NOT NULL DEFAULT pg_current_xact_id()",
    "CREATE INDEX IF NOT EXISTS saga_outbox_written ON saga_outbox (shard, xid, id) WHERE status = 'NEW'",
    "CREATE INDEX IF NOT EXISTS saga_outbox_set_aside ON saga_outbox (status, shard, id) "
    "WHERE status NOT IN ('NEW', 'PUBLISHED')",
    # Whoever releases or republishes an event only sets its status: the row is then new in the window of now.
    "CREATE OR REPLACE FUNCTION saga_outbox_requeue() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN NEW.xid := pg_current_xact_id(); "
    "NEW.published_at := extract(epoch from clock_timestamp()); RETURN NEW; END'",
    "DROP TRIGGER IF EXISTS saga_outbox_requeue ON saga_outbox",
    "CREATE TRIGGER saga_outbox_requeue BEFORE UPDATE OF status ON saga_outbox FOR EACH ROW "
    "WHEN (NEW.status = 'NEW') EXECUTE FUNCTION saga_outbox_requeue()",
    f"CREATE TABLE IF NOT EXISTS {PASSED_TABLE} (shard integer NOT NULL, at double precision NOT NULL, "
    "below xid8 NOT NULL, PRIMARY KEY (shard, at))",
    f"CREATE TABLE IF NOT EXISTS {PROGRESS_TABLE} (shard integer PRIMARY KEY, reader varchar(36) NOT NULL, "
    "done pg_snapshot NOT NULL, reading pg_snapshot NOT NULL, last_id bigint NOT NULL, "
    "highest_id bigint NOT NULL, cluster varchar(24) NOT NULL) WITH (fillfactor = 20)",
    _STATUS,
)


_view = outbox_table.to_metadata(sa.MetaData(), name=STATUS_VIEW)


def outbox_source(dialect: str) -> sa.Table:
    """The table or view that has the status of events as people should see it."""
    return _view if dialect == "postgresql" else outbox_table


def needed_tables(dialect: str) -> frozenset[str]:
    """The names of the tables that a database has."""
    tables = frozenset(metadata.tables)
    return tables | {PASSED_TABLE, PROGRESS_TABLE} if dialect == "postgresql" else tables
