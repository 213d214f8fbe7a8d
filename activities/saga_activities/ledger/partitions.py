"""The partitions of the ledger: one for each month of the start of its sagas, on PostgreSQL, MySQL and MariaDB.

A row never fails for a missing partition: PostgreSQL has a default partition, MySQL and MariaDB one without an upper
bound. SQLite has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from saga_activities.ledger.tables import LAST_PARTITION, run_table

MONTHS_AHEAD = 3
"""Months that have a partition before they begin; workers create the next one every month."""

TABLE = run_table.name
DEFAULT_PARTITION = f"{TABLE}_default"

_NAME = re.compile(r"\D+_?(\d{4})_(\d{2})")


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """A month in UTC."""

    year: int
    month: int

    @staticmethod
    def of(at: datetime) -> Month:
        utc = at.astimezone(UTC)
        return Month(utc.year, utc.month)

    @property
    def next(self) -> Month:
        return Month(self.year + 1, 1) if self.month == 12 else Month(self.year, self.month + 1)

    @property
    def start(self) -> datetime:
        return datetime(self.year, self.month, 1, tzinfo=UTC)

    def partition(self, dialect: str) -> str:
        """The name of its partition, which is a table on PostgreSQL."""
        return f"{TABLE if dialect == 'postgresql' else 'm'}_{self.year:04}_{self.month:02}"


def month_of(partition: str) -> Month | None:
    """The month of a partition with this name; None if it is not one of a month."""
    match = _NAME.fullmatch(partition)
    return None if match is None else Month(int(match[1]), int(match[2]))


def months_from(now: datetime) -> Iterator[Month]:
    """The current month and those ahead."""
    month = Month.of(now)
    for _ in range(MONTHS_AHEAD + 1):
        yield month
        month = month.next


async def existing_months(connection: AsyncConnection) -> list[Month]:
    """The months that have a partition, in order."""
    if connection.dialect.name == "postgresql":
        query = (
            "select child.relname from pg_inherits join pg_class as child on child.oid = inhrelid"
            f" where inhparent = to_regclass('{TABLE}')::oid"
        )
    else:
        query = (
            "select partition_name from information_schema.partitions where table_schema = database()"
            f" and table_name = '{TABLE}'"
        )
    names = (await connection.execute(sa.text(query))).scalars()
    return sorted(month for name in names if name and (month := month_of(name)) is not None)


def create_statement(dialect: str, month: Month) -> str:
    """Creates the partition of a month; on MySQL only if it is later than all that exist."""
    name, end = month.partition(dialect), month.next.start
    if dialect == "postgresql":
        return (
            f"CREATE TABLE IF NOT EXISTS {name} PARTITION OF {TABLE}"
            f" FOR VALUES FROM ('{month.start.isoformat()}') TO ('{end.isoformat()}')"
        )
    return (
        f"ALTER TABLE {TABLE} REORGANIZE PARTITION {LAST_PARTITION} INTO ("
        f"PARTITION {name} VALUES LESS THAN ('{end:%Y-%m-%d %H:%M:%S}'), "
        f"PARTITION {LAST_PARTITION} VALUES LESS THAN (MAXVALUE))"
    )
