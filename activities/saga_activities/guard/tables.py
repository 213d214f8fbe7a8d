"""The tables that belong to every guarded effect: the guard, its watermark, and the version of all our tables.

Beside them, in ``tables_messaging``, are those of the outbox, of consumers and of requests.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from saga_activities.guard.address import MAX_SAGA_ID, MAX_STEP

metadata = sa.MetaData()

TABLE_OPTIONS: dict[str, Any] = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}
for _name in tuple(TABLE_OPTIONS):
    TABLE_OPTIONS[_name.replace("mysql", "mariadb")] = TABLE_OPTIONS[_name]


def long_text() -> sa.types.TypeEngine[str]:
    """Text of any length we write; MySQL and MariaDB cut plain TEXT at 64 KiB."""
    return sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")


guard = sa.Table(
    "saga_guard",
    metadata,
    sa.Column("saga_id", sa.String(MAX_SAGA_ID), nullable=False),
    sa.Column("step", sa.String(MAX_STEP), nullable=False),
    sa.Column("generation", sa.Integer, nullable=False, autoincrement=False),
    sa.Column("op", sa.String(12), nullable=False),
    sa.Column("reason", sa.String(8), nullable=False),
    sa.Column("args_hash", sa.String(64)),
    sa.Column("result", long_text()),
    # Seconds since the epoch by Temporal's clock: when the attempt was scheduled. The watermark is a time of the
    # same clock, so clean-up never compares two clocks.
    sa.Column("created_at", sa.Double, nullable=False),
    sa.PrimaryKeyConstraint("saga_id", "step", "generation", "op"),
    **TABLE_OPTIONS,
)

watermark = sa.Table(
    "saga_watermark",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("watermark", sa.Double, nullable=False),
    sa.Column("raised_at", sa.Double, nullable=False),
    **TABLE_OPTIONS,
)

version = sa.Table(
    "saga_version",
    metadata,
    sa.Column("part", sa.String(32), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    **TABLE_OPTIONS,
)
