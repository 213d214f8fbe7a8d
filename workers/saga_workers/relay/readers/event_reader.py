"""The interface to a shard's rows: read the new events, and record what is published.

On PostgreSQL :mod:`saga_workers.relay.readers.window_reader` records one row for each shard; on the other databases
:mod:`saga_workers.relay.readers.marked_reader` marks each event.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from saga_workers.relay.outbox_table import EventRow
from sagas.errors import SagaError


class Portion(NamedTuple):
    """Events read together, and what the reader needs to record that they are published."""

    rows: Sequence[EventRow]
    position: Any = None


class Superseded(SagaError):
    """Another relay reads the shard."""


class EventReader(Protocol):
    """Reads one shard for one producer. Every method raises SQLAlchemyError and TimeoutError, ``record`` Superseded."""

    async def begin(self) -> None:
        """Begin to read. A reader that began before can record nothing any more."""
        ...

    async def read(self, limit: int, excluded_topics: Collection[str] = ()) -> Portion:
        """The next new events that were not read before, at most ``limit``, without ``excluded_topics``."""
        ...

    async def record(self, portion: Portion, rows: Sequence[EventRow]) -> int:
        """Record that ``rows``, of this portion and in its order, are published. To be called portion by portion.

        Returns how many were not recorded before.
        """
        ...

    async def record_events(self, event_ids: Collection[str]) -> int:
        """Record as published the events that a progress record in Kafka names. Idempotent; returns how many were not
        recorded before.
        """
        ...

    async def republish(self, event_ids: Collection[str]) -> int:
        """Make events new again that no consumer can see; returns how many were recorded as published. Idempotent."""
        ...

    async def refuse(self, event_id: str, note: str) -> None:
        """Record an event that the broker refuses for good; an operator decides about it."""
        ...

    async def set_aside(self, rows: Sequence[EventRow]) -> None:
        """Leave out events that were read, because their topic cannot be used now."""
        ...

    @property
    def set_aside_topics(self) -> Collection[str]:
        """Topics whose events are read again only after :meth:`retry`."""
        ...

    def retry(self, topics: Collection[str]) -> None:
        """Read the events of these topics again that were set aside."""
        ...

    def waiting_query(self) -> str:
        """A query that returns the number of the shard if it has events to read, and otherwise nothing."""
        ...
