"""The names of the tables that the engine keeps in the databases of participants."""

from __future__ import annotations

ENGINE_TABLES = frozenset(
    f"saga_{name}"
    for name in """
    guard outbox outbox_row outbox_home watermark version version_seen request inbox image image_row row_lock lock
    lock_order lock_request lock_wait relay_lease enqueued run claim definition output
    """.split()  # noqa: SIM905
)
"""The names of all tables of the engine, also those that not every database has."""
