"""The table ``saga_run``: one row for each saga, in the database of ``[ledger] connection``."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from saga_activities.guard.entry_key import MAX_GUARD_ID
from saga_activities.guard.tables import TABLE_OPTIONS, short_text
from sagas.text.exact_json import decode_json

ledger_metadata = sa.MetaData()

MAX_PAUSE_TEXT = 1000
"""Characters of the name of an operator, and of the reason of a pause."""


class UtcTime(sa.types.TypeDecorator[datetime]):
    """A time with a time zone, to the microsecond; databases without such a type store it in UTC."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(sa.DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None or dialect.name == "postgresql":
            return value
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class CompressedJson(sa.types.TypeDecorator[Any]):
    """Written as the text of a JSON value, and read as the value.

    PostgreSQL has ``jsonb``, which it compresses itself; elsewhere it is the text, compressed by zlib.
    """

    impl = sa.LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(_JsonbText() if dialect.name == "postgresql" else _blob())

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> Any:
        return value if value is None or dialect.name == "postgresql" else zlib.compress(value.encode())

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:
        return decode_json(zlib.decompress(value)) if isinstance(value, bytes) else value


class _JsonbText(sa.types.UserDefinedType[Any]):
    """``jsonb`` that is written as text; the driver reads it as a value."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSONB"


def _blob() -> sa.types.TypeEngine[bytes]:
    return sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")


LAST_PARTITION = "later"
"""MySQL's partition of all months that have none of their own yet."""

_PARTITIONS: dict[str, Any] = {"postgresql_partition_by": "RANGE (started_at)"}
for _dialect in ("mysql", "mariadb"):
    _PARTITIONS[f"{_dialect}_partition_by"] = (
        f"RANGE COLUMNS (started_at) (PARTITION {LAST_PARTITION} VALUES LESS THAN (MAXVALUE))"
    )

run_table = sa.Table(
    "saga_run",
    ledger_metadata,
    sa.Column("saga_id", short_text(MAX_GUARD_ID), nullable=False),
    # When the saga started: the same for all runs that it was continued in, another one after `saga start --again`.
    sa.Column("started_at", UtcTime(), nullable=False),
    sa.Column("saga", short_text(255), nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("digest", short_text(80)),
    # SHA-256 of the input; null if it is not known.
    sa.Column("input_digest", short_text(64)),
    # What the root saga of a nested one is known by, see sagas.protocol.origin.start_of; null if it is not known.
    sa.Column("root_start", short_text(16)),
    # The bulk workflow in which the saga has ended, whose history keeps its input; null: it had a workflow of its own.
    sa.Column("bulk_id", short_text(255)),
    sa.Column("state", short_text(16), nullable=False),
    sa.Column("labels", sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")),
    sa.Column("ended_at", UtcTime()),
    # The same; but for a saga that was undone after it had completed, when it was past its commit point.
    sa.Column("ran_until", UtcTime()),
    # When the saga was in this state, by Temporal's clock: an earlier state never replaces a later one.
    sa.Column("updated_at", UtcTime(), nullable=False),
    # The document of `saga show`; JSON null for a saga of a bulk workflow, whose story is made from its machine.
    sa.Column("story", CompressedJson(), nullable=False),
    # The compressed state from which `saga undo` starts; null if the saga cannot be undone. That of a saga of a bulk
    # workflow has no definition, see saga_definition.
    sa.Column("machine", _blob()),
    # The time of the start is part of the key because partitions are months of it.
    sa.PrimaryKeyConstraint("saga_id", "started_at"),
    sa.Index("saga_run_started", "started_at"),
    sa.Index("saga_run_state", "state", "started_at"),
    sa.Index("saga_run_saga", "saga", "started_at"),
    **TABLE_OPTIONS,
    **_PARTITIONS,
)

claim_table = sa.Table(
    "saga_claim",
    ledger_metadata,
    sa.Column("saga_id", short_text(MAX_GUARD_ID), primary_key=True),
    # The bulk workflow that runs the saga; null: it was started on its own, or has left.
    sa.Column("bulk_id", short_text(255)),
    sa.Column("saga", short_text(255), nullable=False),
    sa.Column("input_digest", short_text(64), nullable=False),
    sa.Column("claimed_at", UtcTime(), nullable=False),
    sa.Column("labels", sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")),
    # The first run of the workflow in which the saga goes on after it has left its bulk workflow; empty as long as that
    # has not begun.
    sa.Column("run_id", short_text(64)),
    sa.Index("saga_claim_time", "claimed_at"),
    **TABLE_OPTIONS,
)
"""One row for each saga of a bulk workflow, and for each single saga, until its row of ``saga_run`` is written."""

pause_table = sa.Table(
    "saga_pause",
    ledger_metadata,
    # `saga` or `connection`, and the name.
    sa.Column("kind", short_text(16), primary_key=True),
    sa.Column("name", short_text(255), primary_key=True),
    sa.Column("who", short_text(MAX_PAUSE_TEXT), nullable=False),
    sa.Column("reason", short_text(MAX_PAUSE_TEXT)),
    sa.Column("since", UtcTime(), nullable=False),
    **TABLE_OPTIONS,
)
"""One row for each standing pause, until it is resumed."""

audit_table = sa.Table(
    "saga_audit",
    ledger_metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    # Empty for a `decode`, which is about no single saga.
    sa.Column("saga_id", short_text(MAX_GUARD_ID), nullable=False),
    # `reveal`, `forget`, `decode`, `start`, or a request of an operator.
    sa.Column("what", short_text(16), nullable=False),
    sa.Column("at", UtcTime(), nullable=False),
    sa.Column("who", short_text(MAX_PAUSE_TEXT), nullable=False),
    sa.Column("reason", short_text(MAX_PAUSE_TEXT)),
    # The signal, or the step and the decision; of a `decode` the namespaces that were named.
    sa.Column("detail", short_text(MAX_PAUSE_TEXT)),
    # The answer to a start or to the request of an operator; null until there is one.
    sa.Column("outcome", short_text(16)),
    # How many payloads were decoded.
    sa.Column("payloads", sa.BigInteger()),
    # When all values were replaced that can be; null for a `reveal`, and while values are being forgotten.
    sa.Column("completed_at", UtcTime()),
    sa.Index("saga_audit_saga", "saga_id"),
    sa.Index("saga_audit_time", "at"),
    sqlite_autoincrement=True,
    **TABLE_OPTIONS,
)
"""One row each time that somebody has seen the `x-sensitive` values of a saga in clear, or had them forgotten, and one
for each start of a saga and each request of an operator over HTTP. The payloads that one token decodes within a minute
have one row."""

circuit_breaker_table = sa.Table(
    "saga_circuit_breaker",
    ledger_metadata,
    sa.Column("connection", short_text(255), primary_key=True),
    sa.Column("opened_at", UtcTime(), nullable=False),
    sa.Column("reason", short_text(MAX_PAUSE_TEXT), nullable=False),
    # When the next attempt may be made, in seconds since the epoch by the clock of this database.
    sa.Column("probe_at", sa.Double, nullable=False),
    # 1: an attempt is being made. It has until `probe_at` to end; its worker may have been killed.
    sa.Column("probing", sa.SmallInteger, nullable=False),
    **TABLE_OPTIONS,
)
"""One row for each circuit breaker that is open."""

definition_table = sa.Table(
    "saga_definition",
    ledger_metadata,
    sa.Column("digest", short_text(80), primary_key=True),
    sa.Column("definition", CompressedJson(), nullable=False),
    # When a bulk workflow has claimed sagas with it, to the hour.
    sa.Column("used_at", UtcTime(), nullable=False),
    **TABLE_OPTIONS,
)
"""The definitions of bulk workflows, whose sagas are stored without them."""
