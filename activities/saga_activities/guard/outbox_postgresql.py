"""The part of the outbox that only PostgreSQL has: published rows carry no mark, but lie below the progress of their
shard. They are in the table ``saga_outbox_row``; ``saga_outbox``, a table elsewhere, is a view with their true status.

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

rows_table = outbox_table.to_metadata(sa.MetaData(), name="saga_outbox_row")
"""The rows of the outbox; the status of those that are published is still NEW."""

NOTHING_DONE = "3:3:"
"""A snapshot in which no row is visible: 3 is the first transaction of a cluster."""

PUBLISHED_BEFORE = "pg_visible_in_snapshot(o.xid, p.done)"
PUBLISHED_NOW = "o.id <= p.last_id AND pg_visible_in_snapshot(o.xid, p.reading)"
"""Conditions: a row ``o`` of the outbox was published in an earlier window, or in the current one. ``p`` is its shard's
row of the progress."""

_SHOWN = {
    "status": "shown",
    "published_at": "CASE shown WHEN 'PUBLISHED' THEN COALESCE(published_at, created_at) "
    "WHEN 'DROPPED' THEN published_at END",
}
_COLUMNS = [column.name for column in outbox_table.columns]
_VIEW = f"""
CREATE OR REPLACE VIEW saga_outbox AS
SELECT {", ".join(f"{_SHOWN[name]} AS {name}" if name in _SHOWN else name for name in _COLUMNS)}
FROM (SELECT o.*, CAST(CASE WHEN o.status = 'SUSPENDED' THEN 'NEW' WHEN o.status <> 'NEW' THEN o.status
    WHEN {PUBLISHED_BEFORE} THEN 'PUBLISHED'
    WHEN {PUBLISHED_NOW} THEN 'PUBLISHED'
    ELSE 'NEW' END AS text) AS shown FROM saga_outbox_row o LEFT JOIN {PROGRESS_TABLE} p ON p.shard = o.shard)
    AS e
""".strip()

# Changes through the view, of people and of their own SQL. A column that is shown with another value than it has is
# written only if it is set, and only while the row still has the status that the statement has seen.
_BODY = f"""
BEGIN
    IF TG_OP = ''INSERT'' THEN
        INSERT INTO saga_outbox_row ({", ".join(_COLUMNS)}) VALUES ({", ".join(f"NEW.{name}" for name in _COLUMNS)});
        RETURN NEW;
    END IF;
    PERFORM 1 FROM saga_outbox_row WHERE id = OLD.id FOR UPDATE;
    PERFORM 1 FROM saga_outbox WHERE id = OLD.id AND status = OLD.status;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF TG_OP = ''DELETE'' THEN
        DELETE FROM saga_outbox_row WHERE id = OLD.id;
        RETURN OLD;
    END IF;
    UPDATE saga_outbox_row SET {", ".join(f"{name} = NEW.{name}" for name in _COLUMNS if name not in _SHOWN)}
        WHERE id = OLD.id;
    IF NEW.published_at IS DISTINCT FROM OLD.published_at THEN
        UPDATE saga_outbox_row SET published_at = NEW.published_at WHERE id = NEW.id;
    END IF;
    IF NEW.status <> OLD.status THEN
        UPDATE saga_outbox_row SET status = NEW.status WHERE id = NEW.id;
    END IF;
    RETURN NEW;
END
"""
# In one line, so that a printed script can be split at the ends of lines.
_CHANGE = (
    "CREATE OR REPLACE FUNCTION saga_outbox_change() RETURNS trigger LANGUAGE plpgsql AS '"
    + " ".join(_BODY.split())
    + "'"
)

# The relay requires the last of these tables, so it comes last.
POSTGRESQL_OUTBOX_DDL: Sequence[str] = (
    "ALTER TABLE saga_outbox_row ADD COLUMN IF NOT EXISTS xid xid8 NOT NULL DEFAULT pg_current_xact_id()",
    "CREATE INDEX IF NOT EXISTS saga_outbox_written ON saga_outbox_row (shard, xid, id) WHERE status = 'NEW'",
    "CREATE INDEX IF NOT EXISTS saga_outbox_set_aside ON saga_outbox_row (status, shard, id) "
    "WHERE status NOT IN ('NEW', 'PUBLISHED')",
    # To release or republish an event is to set its status: the row is then new in the window of now.
    "CREATE OR REPLACE FUNCTION saga_outbox_requeue() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN NEW.xid := pg_current_xact_id(); "
    "NEW.published_at := extract(epoch from clock_timestamp()); RETURN NEW; END'",
    "DROP TRIGGER IF EXISTS saga_outbox_requeue ON saga_outbox_row",
    "CREATE TRIGGER saga_outbox_requeue BEFORE UPDATE OF status ON saga_outbox_row FOR EACH ROW "
    "WHEN (NEW.status = 'NEW') EXECUTE FUNCTION saga_outbox_requeue()",
    f"CREATE TABLE IF NOT EXISTS {PASSED_TABLE} (shard integer NOT NULL, at double precision NOT NULL, "
    "done pg_snapshot NOT NULL, PRIMARY KEY (shard, at))",
    f"CREATE TABLE IF NOT EXISTS {PROGRESS_TABLE} (shard integer PRIMARY KEY, reader text NOT NULL, "
    "done pg_snapshot NOT NULL, reading pg_snapshot NOT NULL, last_id bigint NOT NULL, "
    "highest_id bigint NOT NULL, cluster text NOT NULL) WITH (fillfactor = 20)",
    _VIEW,
    "ALTER VIEW saga_outbox ALTER COLUMN id SET DEFAULT nextval('saga_outbox_row_id_seq'::regclass)",
    "ALTER VIEW saga_outbox ALTER COLUMN shard SET DEFAULT 0",
    "ALTER VIEW saga_outbox ALTER COLUMN checks SET DEFAULT 0",
    _CHANGE,
    "DROP TRIGGER IF EXISTS saga_outbox_change ON saga_outbox",
    "CREATE TRIGGER saga_outbox_change INSTEAD OF INSERT OR UPDATE OR DELETE ON saga_outbox FOR EACH ROW "
    "EXECUTE FUNCTION saga_outbox_change()",
)


def outbox_rows(dialect: str) -> sa.Table:
    """The table with the rows of the outbox."""
    return rows_table if dialect == "postgresql" else outbox_table


def needed_tables(dialect: str) -> frozenset[str]:
    """The names of the tables that a database has."""
    tables = frozenset(metadata.tables)
    if dialect != "postgresql":
        return tables
    return (tables - {outbox_table.name}) | {rows_table.name, PASSED_TABLE, PROGRESS_TABLE}
