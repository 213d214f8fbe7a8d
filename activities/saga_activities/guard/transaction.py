"""One local transaction of a participant database, as the guard's rules see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from saga_activities.guard.session import SqlSession
from sagas.errors import InfrastructureError

RowOp = Literal["do", "confirm", "undo", "own_undo", "own_confirm"]
"""The rows of an entry, in the order they are inserted. ``own_…`` are actions decided in another place."""

RowReason = Literal["do", "undo", "confirm"]
"""The operation that inserted a row: a ``do`` row with reason ``undo`` is a seal, a ``confirm`` row a fence."""


@dataclass(frozen=True, slots=True)
class GuardRow:
    """What one row says; ``result`` is JSON text."""

    reason: RowReason
    args_hash: str | None = None
    result: str | None = None


HeldDecision = Literal["release", "drop"]
"""What becomes of the entry's held events: the relay may publish them, or nobody ever will."""


@dataclass(frozen=True, slots=True)
class RowWrite:
    """What is stored with the effect: the result of a row that this transaction has inserted.

    ``held`` decides about the entry's held events in the same transaction; None leaves them held.
    """

    op: RowOp
    result: str | None
    held: HeldDecision | None = None


HELD_EVENT_STATUS: Mapping[HeldDecision, str] = {"release": "NEW", "drop": "DROPPED"}
"""The status in the outbox."""


class BelowWatermark(Exception):
    """The attempt is older than anything this database still remembers."""


class LostCommit(Exception):
    """COMMIT was sent and nobody knows whether it happened."""


class NotCommitted(InfrastructureError):
    """The database answered COMMIT with a rollback."""


class GuardTransaction(Protocol):
    """The few things the rules need. The transaction opens with the first call."""

    @property
    def sql(self) -> SqlSession:
        """The handle for the action."""
        ...

    @property
    def answered(self) -> bool:
        """The database has answered a statement of this transaction; False: the pool's connection may be stale."""
        ...

    async def insert(
        self, op: RowOp, reason: RowReason, *, args_hash: str | None = None, result: str | None = None
    ) -> bool:
        """Insert a row unless it is there; waits for an open transaction that has inserted it.

        The first insert does nothing when the attempt is below the watermark; ``rows`` then raises.
        """
        ...

    async def rows(self) -> Mapping[RowOp, GuardRow]:
        """The entry's rows as last committed. Raises :class:`BelowWatermark`."""
        ...

    async def commit(self, row_write: RowWrite | None) -> None:
        """Store and commit. Raises :class:`LostCommit` when nobody knows whether it happened."""
        ...

    async def rollback(self) -> None:
        """Take everything back and give the connection back; a broken connection is thrown away."""
        ...

    async def release(self) -> None:
        """Give the connection back after a commit."""
        ...
