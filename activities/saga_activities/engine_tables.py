"""The names of the tables that the engine keeps in the databases of participants."""

from __future__ import annotations

ENGINE_TABLES = frozenset(
    f"saga_{name}"
    for name in """
    guard outbox outbox_row outbox_home watermark version version_seen request inbox image image_row row_lock lock
    lock_order lock_request lock_wait relay_lease enqueued run claim definition output
    """.split()  # noqa: SIM905
)
"""The names of all tables of the engine, also those that not every database has.

A table of the application may have such a name in a schema that the engine does not use.
"""


def is_engine_table(schema: str | None, name: str) -> bool:
    """True if a statement names a table of the engine so: always without a schema."""
    return schema is None and name in ENGINE_TABLES
