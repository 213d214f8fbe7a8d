"""The outbox of version 6 on PostgreSQL, whose published rows had marks."""

from __future__ import annotations

VERSION_6 = (
    "drop view saga_outbox_events",
    "drop table saga_relay_progress",
    "drop table saga_relay_passed",
    "drop trigger saga_outbox_requeue on saga_outbox",
    "drop function saga_outbox_requeue()",
    "alter table saga_outbox drop column xid",
    "drop index saga_outbox_set_aside",
    "create index saga_outbox_waiting on saga_outbox (status, shard, id) where status <> 'PUBLISHED'",
    "update saga_version set version = 6",
)
"""What version 7 has changed, back to what was there before."""
