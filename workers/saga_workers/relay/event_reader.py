"""Reads the new events of one shard in portions, without scanning the events in flight again for each of them.

While events are in flight, the ids of many new events are found in one scan, and their rows read portion by portion.
All of them precede whatever was committed after that scan, so the order is that of a single large portion.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from saga_workers.relay.outbox_table import EventRow, OutboxTable

FOUND_AHEAD = 50_000
"""Ids to find in one scan, besides those in flight."""


class EventReader:
    """The new events of one shard. Its methods raise SQLAlchemyError."""

    def __init__(self, table: OutboxTable, shard: int) -> None:
        self._table, self._shard = table, shard
        self._found: list[int] = []
        self._excluded: set[str] = set()

    def restart(self) -> None:
        """Scan from the oldest event again. To be called if events that were read are not published now."""
        self._found = []

    async def read(
        self, limit: int, excluded_topics: Collection[str] = (), in_flight: Collection[int] = ()
    ) -> Sequence[EventRow]:
        """The next events, at most ``limit``, without ``excluded_topics`` and the ids ``in_flight``.

        ``in_flight`` has all ids returned before whose rows are not marked yet; empty: all are marked.
        """
        excluded = set(excluded_topics)
        if excluded != self._excluded:  # a topic may have events before those that would follow
            self._excluded = excluded
            self.restart()
        while True:
            if not self._found and not in_flight:
                return await self._table.scan(self._shard, limit, excluded)
            if not self._found:
                found = await self._table.find_new(self._shard, FOUND_AHEAD + len(in_flight), excluded)
                known = set(in_flight)
                self._found = [id for id in found if id not in known]
            if not self._found:
                return ()
            portion, self._found = self._found[:limit], self._found[limit:]
            if rows := await self._table.read_new(self._shard, portion, excluded):
                return rows
