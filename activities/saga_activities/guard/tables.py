"""The engine's tables in a participant's database. Times are seconds since the epoch."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from saga_activities.guard.entry_key import MAX_ENTRY, MAX_GUARD_ID
from sagas.settings import KafkaSettings

# Tables of every guarded effect: the guard, its watermark and the schema version.
metadata = sa.MetaData()

# "e" and "e " are two keys, which utf8mb4_bin takes as one. MySQL and MariaDB have other names for the collation that
# also compares trailing blanks, and each of them reads one of these comments.
_EXACT_COLLATION = "/*!80017 utf8mb4_0900_bin */ /*M! utf8mb4_nopad_bin */"
TABLE_OPTIONS: dict[str, Any] = {
    "mysql_charset": "utf8mb4",
    "mysql_collate": _EXACT_COLLATION,
    "mysql_engine": "InnoDB",
}
for _name in tuple(TABLE_OPTIONS):
    TABLE_OPTIONS[_name.replace("mysql", "mariadb")] = TABLE_OPTIONS[_name]


def long_text() -> sa.types.TypeEngine[str]:
    """Text of any length that the engine writes; plain TEXT of MySQL and MariaDB ends at 64 KiB."""
    return sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")


def short_text(length: int) -> sa.types.TypeEngine[str]:
    """Text of at most so many characters; on PostgreSQL plain text.

    All operators and functions of text are in pg_catalog, which is searched first. For `varchar` PostgreSQL has none of
    its own: a role that may create objects in a schema of the search_path could bring one, and run code as the worker.
    """
    return sa.String(length).with_variant(sa.Text(), "postgresql")


guard_table = sa.Table(
    "saga_guard",
    metadata,
    sa.Column("saga_id", short_text(MAX_GUARD_ID), nullable=False),
    sa.Column("step", short_text(MAX_ENTRY), nullable=False),
    sa.Column("generation", sa.Integer, nullable=False, autoincrement=False),
    sa.Column("op", short_text(12), nullable=False),
    sa.Column("reason", short_text(8), nullable=False),
    sa.Column("args_hash", short_text(64)),
    sa.Column("result", long_text()),
    # JSON, see sagas.protocol.origin: what the saga was started with, in the rows of its first effects.
    sa.Column("origin", long_text()),
    # When the attempt was scheduled, by Temporal's clock. The watermark is a time of the same clock, so the purge
    # never compares two clocks.
    sa.Column("created_at", sa.Double, nullable=False),
    sa.PrimaryKeyConstraint("saga_id", "step", "generation", "op"),
    **TABLE_OPTIONS,
)

watermark_table = sa.Table(
    "saga_watermark",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("watermark", sa.Double, nullable=False),
    sa.Column("raised_at", sa.Double, nullable=False),
    **TABLE_OPTIONS,
)

version_table = sa.Table(
    "saga_version",
    metadata,
    sa.Column("part", short_text(32), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    **TABLE_OPTIONS,
)


# Tables of automatic compensation (`compensate: auto`): images of changed rows, and the rows that sagas have locked.
image_table = sa.Table(
    "saga_image",
    metadata,
    sa.Column("saga_id", short_text(MAX_GUARD_ID), nullable=False),
    sa.Column("step", short_text(MAX_ENTRY), nullable=False),
    sa.Column("generation", sa.Integer, nullable=False, autoincrement=False),
    # From 1, and below 0 those that the undos of other steps have passed on. The row 0 has the number of images, so
    # that a missing one is noticed, and as `before_image` the types of the columns by table.
    sa.Column("sequence", sa.Integer, nullable=False, autoincrement=False),
    # The statement of the step that has changed the row, from 1; those of images that were passed on come before them
    # or after them.
    sa.Column("statement", sa.Integer, nullable=False),
    sa.Column("row_hash", short_text(64), nullable=False),
    # The changes of one row in the order of their commits, from 1: a transaction that changes it holds it until then.
    sa.Column("row_change", sa.Integer, nullable=False, server_default="0"),
    # Which other undos may be relied on: see sagas.protocol.undo_scopes.
    sa.Column("undo_scope", short_text(MAX_GUARD_ID), nullable=False, server_default=""),
    # 1 as soon as the step is undone.
    sa.Column("undone", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Column("table_name", long_text(), nullable=False),
    # JSON: the texts of the primary key; the texts of the columns by name, null where there is no row.
    sa.Column("row_key", long_text(), nullable=False),
    sa.Column("before_image", long_text()),
    sa.Column("after_image", long_text()),
    # As in saga_guard.
    sa.Column("created_at", sa.Double, nullable=False),
    sa.PrimaryKeyConstraint("saga_id", "step", "generation", "sequence"),
    sa.Index("saga_image_row", "row_hash"),
    **TABLE_OPTIONS,
)

row_lock_table = sa.Table(
    "saga_row_lock",
    metadata,
    # SHA-256 of table and canonical primary key, which may be longer than a key of a table.
    sa.Column("row_hash", short_text(64), primary_key=True),
    sa.Column("table_name", long_text(), nullable=False),
    sa.Column("row_key", long_text(), nullable=False),
    # The root saga, and what tells it from another one with the same id: see sagas.protocol.origin.start_of.
    sa.Column("saga_id", short_text(MAX_GUARD_ID), nullable=False),
    sa.Column("saga_start", short_text(16), nullable=False),
    # By the clock of this database.
    sa.Column("acquired_at", sa.Double, nullable=False),
    # The schema whose saga_image has the changes of the row: that of the connection through which it was locked.
    sa.Column("image_schema", short_text(64), nullable=False),
    sa.Index("saga_row_lock_saga", "saga_id"),
    **TABLE_OPTIONS,
)


# Tables of messaging: the outbox and its relay, consumers' inboxes, requests.
MAX_NAME = 200
"""Characters of a consumer's name, of the id of an event, and of an entity. Two of them form a key."""

MAX_STEP_KEY = MAX_GUARD_ID + MAX_ENTRY + 20
"""Characters of a step key: saga id, entry id, generation and `/undo.N`."""

DEFAULT_SHARDS = KafkaSettings().shards
"""Number of shards of a new outbox."""

outbox_table = sa.Table(
    "saga_outbox",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("event_id", short_text(36), nullable=False, unique=True),
    sa.Column("topic", short_text(255), nullable=False),
    sa.Column("event_key", long_text()),
    sa.Column("value", long_text()),
    sa.Column("headers", long_text(), nullable=False),
    sa.Column("saga_id", short_text(MAX_GUARD_ID), nullable=False),
    sa.Column("step", short_text(MAX_ENTRY), nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("status", short_text(12), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    # The CloudEvents type; null: the topic's name is used.
    sa.Column("event_type", short_text(255)),
    # Events of one topic and key always have the same shard, and one relay owns a shard.
    sa.Column("shard", sa.Integer, nullable=False, server_default=sa.text("0")),
    # When it was published, or dropped. On PostgreSQL published rows have no mark: in its table of rows it is when it
    # was released.
    sa.Column("published_at", sa.Double),
    # Check-back of a HELD event: the number of unanswered checks, and when the saga is asked again.
    sa.Column("checks", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("next_check_at", sa.Double),
    # Why it is REFUSED, or who decided about it.
    sa.Column("note", long_text()),
    # PostgreSQL has others instead, see guard/outbox_postgresql.py.
    sa.Index("saga_outbox_waiting", "status", "shard", "id", info={"except_on": "postgresql"}),
    # `confirm` and `undo` decide about the HELD events of their entry; events that are never held cost nothing.
    sa.Index(
        "saga_outbox_held",
        "saga_id",
        postgresql_where=sa.text("status = 'HELD'"),
        sqlite_where=sa.text("status = 'HELD'"),
    ),
    # A relay that was frozen may still mark by id, so no other event may ever have it.
    sqlite_autoincrement=True,
    **TABLE_OPTIONS,
)

outbox_home_table = sa.Table(
    "saga_outbox_home",
    metadata,
    # One row. `home` is the identity of this outbox: part of its producers' transactional ids.
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("home", short_text(36), nullable=False),
    sa.Column("shards", sa.Integer, nullable=False),
    **TABLE_OPTIONS,
)

relay_lease_table = sa.Table(
    "saga_relay_lease",
    metadata,
    sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("owner", short_text(255), nullable=False),
    # By the clock of this database.
    sa.Column("until", sa.Double, nullable=False),
    # Incremented with every change of owner.
    sa.Column("epoch", sa.Integer, nullable=False),
    **TABLE_OPTIONS,
)

inbox_table = sa.Table(
    "saga_inbox",
    metadata,
    sa.Column("consumer", short_text(MAX_NAME), nullable=False),
    sa.Column("event_id", short_text(MAX_NAME), nullable=False),
    sa.Column("topic", short_text(255), nullable=False),
    # That of the brokers: a topic that is created again has another one.
    sa.Column("topic_id", short_text(36), nullable=False),
    # `partition` and `offset` are reserved words of MySQL.
    sa.Column("topic_partition", sa.Integer, nullable=False),
    sa.Column("topic_offset", sa.BigInteger, nullable=False),
    # SHA-256 of key and value: another message may have the same id.
    sa.Column("digest", short_text(64), nullable=False),
    sa.Column("status", short_text(12), nullable=False),
    sa.Column("reason", long_text()),
    sa.Column("received_at", sa.Double, nullable=False),
    sa.PrimaryKeyConstraint("consumer", "event_id"),
    sa.Index("saga_inbox_received", "received_at"),
    **TABLE_OPTIONS,
)

version_seen_table = sa.Table(
    "saga_version_seen",
    metadata,
    sa.Column("consumer", short_text(MAX_NAME), nullable=False),
    sa.Column("entity", short_text(MAX_NAME), nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.PrimaryKeyConstraint("consumer", "entity"),
    **TABLE_OPTIONS,
)

request_table = sa.Table(
    "saga_request",
    metadata,
    sa.Column("step_key", short_text(MAX_STEP_KEY), nullable=False, primary_key=True),
    sa.Column("saga_id", short_text(MAX_GUARD_ID), nullable=False),
    sa.Column("step", short_text(MAX_ENTRY), nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("op", short_text(12), nullable=False),
    # `done`, `rejected` or `failed`; `sealed`: the command was never sent and never will be; null: no reply yet.
    sa.Column("outcome", short_text(12)),
    sa.Column("data", long_text()),
    # The attempt that waits for the reply, as JSON: Temporal's task token and its number.
    sa.Column("token", long_text()),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("answered_at", sa.Double),
    # What a reply must have: the topic it comes in, and the secret of the command. Null: no command was sent.
    sa.Column("reply_topic", short_text(255)),
    sa.Column("reply_token", short_text(64)),
    # As in saga_guard: in the rows of the first commands of a saga, until a guard has it.
    sa.Column("origin", long_text()),
    # Why the last reply that names this command was refused, while there is no other.
    sa.Column("refusal", long_text()),
    sa.Column("refused_at", sa.Double),
    sa.Index("saga_request_saga", "saga_id"),
    **TABLE_OPTIONS,
)


_NOW = {
    "postgresql": "extract(epoch from clock_timestamp())::double precision",
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
}


def now_sql(dialect: str) -> str:
    """A SQL expression for the current time in seconds since the epoch, by the clock of the database."""
    return _NOW.get(dialect, "unix_timestamp(now(6))")
