"""The rows that a statement has really written, as PostgreSQL counts them: those of the statement itself, or more.

The analysis of a text sees neither what a function does that is declared wrongly, nor the functions of operators,
casts, indexes and row security. The counters of the transaction see each row that was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from saga_activities.engine_tables import ENGINE_TABLES
from sagas.sql_text.row_changes import NotImageable, RowChange
from sagas.text.shortening import counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from saga_activities.automatic.table_access import TableAccess
    from saga_activities.guard.sql_session import SqlSession

_COUNTERS = """
SELECT name, inserted, updated, deleted FROM (
  SELECT n.nspname::text || '.' || c.relname::text AS name, pg_catalog.pg_stat_get_xact_tuples_inserted(c.oid) AS
    inserted,
    pg_catalog.pg_stat_get_xact_tuples_updated(c.oid) AS updated, pg_catalog.pg_stat_get_xact_tuples_deleted(c.oid) AS
      deleted
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind = 'r' AND c.oid >= 16384::oid
    AND NOT (c.relname = ANY (:own) AND pg_catalog.pg_table_is_visible(c.oid))
) AS counted WHERE inserted + updated + deleted > 0::int8
"""

_NONE = (0, 0, 0)

Counters = Mapping[str, tuple[int, int, int]]
"""Rows inserted, updated and deleted in this transaction, by table; also those that were rolled back."""


@dataclass(slots=True)
class WrittenRows:
    """The rows that the statements of one step have written."""

    sql: SqlSession
    _last: Counters | None = field(default=None)

    @asynccontextmanager
    async def of(self, change: RowChange, table: TableAccess | None) -> AsyncIterator[dict[str, int]]:
        """Check the statement that runs inside: it writes as many rows of its table as ``rows`` says, and no others.

        Raises :class:`NotImageable`, and then the transaction must not be committed.
        """
        rows: dict[str, int] = {}
        if self.sql.dialect != "postgresql":
            yield rows
            return
        before = await self._count() if self._last is None else self._last
        yield rows
        self._last = after = await self._count()
        for name, counters in after.items():
            inserted, updated, deleted = (now - was for now, was in zip(counters, before.get(name, _NONE), strict=True))
            if table is None or name != table.shape.name:
                if inserted or updated or deleted:
                    raise NotImageable(
                        f"it also writes rows of {name}, by a function that it calls or an operator; write to one table"
                    )
                continue
            # An insert that ran into the row of another transaction has been counted, and so has its removal.
            is_removed = change.kind == "insert"
            written = inserted + updated + (-deleted if is_removed else deleted)
            if written != rows.get("count", written):
                raise NotImageable(
                    f"it writes {counted(written, 'row')} of {name} and says that it has "
                    f"written {rows['count']}: a function that"
                    " it calls or an operator writes the others"
                )

    async def _count(self) -> Counters:
        rows = await self.sql.all(_COUNTERS, {"own": sorted(ENGINE_TABLES)})
        return {row["name"]: (row["inserted"], row["updated"], row["deleted"]) for row in rows}
