"""The tables of messaging in a participant's database: the outbox and its relay, consumers' inboxes, requests.

Times are seconds since the epoch.
"""

from __future__ import annotations

import sqlalchemy as sa

from saga_activities.guard.address import MAX_SAGA_ID, MAX_STEP
from saga_activities.guard.tables import TABLE_OPTIONS, long_text, metadata

MAX_NAME = 200
"""Characters of a consumer's name, of the id of an event it reads, and of an entity. Two of them make a key."""

_MAX_KEY = MAX_SAGA_ID + MAX_STEP + 20
"""Characters of a step key: saga id, ledger id, generation and `/undo.N`."""

SHARDS = 4
"""Into how many shards a new outbox is divided."""

outbox = sa.Table(
    "saga_outbox",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("event_id", sa.String(36), nullable=False, unique=True),
    sa.Column("topic", sa.String(255), nullable=False),
    sa.Column("event_key", long_text()),
    sa.Column("value", long_text()),
    sa.Column("headers", long_text(), nullable=False),
    sa.Column("saga_id", sa.String(MAX_SAGA_ID), nullable=False),
    sa.Column("step", sa.String(MAX_STEP), nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("status", sa.String(12), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    # The type of the event (CloudEvents); null: the topic's name stands for it.
    sa.Column("event_type", sa.String(255)),
    # Which owner publishes it: the same topic and key always have the same shard, and a shard has one owner.
    sa.Column("shard", sa.Integer, nullable=False, server_default=sa.text("0")),
    # When it was published, or dropped.
    sa.Column("published_at", sa.Double),
    # Check-back of a HELD event: how often nobody could answer, and when the saga is asked again.
    sa.Column("checks", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("next_check_at", sa.Double),
    # Why it is REFUSED, or who decided about it.
    sa.Column("note", long_text()),
    sa.Index("saga_outbox_scan", "status", "shard", "id"),
    # `confirm` and `undo` decide about the HELD events of their entry. Where an index can leave rows out, it holds
    # those alone, and an event that is never held costs nothing.
    sa.Index(
        "saga_outbox_held",
        "saga_id",
        postgresql_where=sa.text("status = 'HELD'"),
        sqlite_where=sa.text("status = 'HELD'"),
    ),
    **TABLE_OPTIONS,
)

outbox_home = sa.Table(
    "saga_outbox_home",
    metadata,
    # One row. `home` is the identity of this outbox: part of its producers' transactional ids.
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("home", sa.String(36), nullable=False),
    sa.Column("shards", sa.Integer, nullable=False),
    **TABLE_OPTIONS,
)

relay_lease = sa.Table(
    "saga_relay_lease",
    metadata,
    sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("owner", sa.String(255), nullable=False),
    # By the clock of this database.
    sa.Column("until", sa.Double, nullable=False),
    # One more for every change of owner.
    sa.Column("epoch", sa.Integer, nullable=False),
    **TABLE_OPTIONS,
)

inbox = sa.Table(
    "saga_inbox",
    metadata,
    sa.Column("consumer", sa.String(MAX_NAME), nullable=False),
    sa.Column("event_id", sa.String(MAX_NAME), nullable=False),
    sa.Column("topic", sa.String(255), nullable=False),
    # `partition` and `offset` are reserved words of MySQL.
    sa.Column("topic_partition", sa.Integer, nullable=False),
    sa.Column("topic_offset", sa.BigInteger, nullable=False),
    sa.Column("status", sa.String(12), nullable=False),
    sa.Column("reason", long_text()),
    sa.Column("received_at", sa.Double, nullable=False),
    sa.PrimaryKeyConstraint("consumer", "event_id"),
    sa.Index("saga_inbox_received", "received_at"),
    **TABLE_OPTIONS,
)

version_seen = sa.Table(
    "saga_version_seen",
    metadata,
    sa.Column("consumer", sa.String(MAX_NAME), nullable=False),
    sa.Column("entity", sa.String(MAX_NAME), nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.PrimaryKeyConstraint("consumer", "entity"),
    **TABLE_OPTIONS,
)

request = sa.Table(
    "saga_request",
    metadata,
    sa.Column("step_key", sa.String(_MAX_KEY), nullable=False, primary_key=True),
    sa.Column("saga_id", sa.String(MAX_SAGA_ID), nullable=False),
    sa.Column("step", sa.String(MAX_STEP), nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("op", sa.String(12), nullable=False),
    # `done`, `rejected` or `failed`; `sealed`: never sent, and never will be; null: no reply yet.
    sa.Column("outcome", sa.String(12)),
    sa.Column("data", long_text()),
    # The attempt that waits for the reply, as JSON: Temporal's task token and its number.
    sa.Column("token", long_text()),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("answered_at", sa.Double),
    **TABLE_OPTIONS,
)
