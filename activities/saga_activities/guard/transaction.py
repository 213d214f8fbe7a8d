"""The interface between the guard's rules and one local transaction of a participant database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from saga_activities.guard.sql_session import SqlSession
from sagas.errors import InfrastructureError

RowOp = Literal["do", "confirm", "undo", "own_undo", "own_confirm"]
"""The rows of an entry, in the order of their insertion. ``own_…``: actions decided through another connection."""

RowReason = Literal["do", "undo", "confirm"]
"""The operation that inserted a row: a ``do`` row with reason ``undo`` is a seal, a ``confirm`` row a fence."""


@dataclass(frozen=True, slots=True)
class GuardRow:
    """One row; ``result`` is JSON text. ``origin``: see :mod:`sagas.protocol.origin`; its values may be encrypted."""

    reason: RowReason
    args_hash: str | None = None
    result: str | None = None
    origin: str | None = None


HeldDecision = Literal["release", "drop"]
"""The decision about an entry's held events: the relay may publish them, or they are never published."""


@dataclass(frozen=True, slots=True)
class RowWrite:
    """Stored with the effect: the ``result`` of the row ``op``, which this transaction has inserted.

    ``held`` decides about the entry's held events in the same transaction; None leaves them held.
    """

    op: RowOp
    result: str | None
    held: HeldDecision | None = None


HELD_EVENT_STATUS: Mapping[HeldDecision, str] = {"release": "NEW", "drop": "DROPPED"}
"""The resulting status in the outbox."""


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """The time that a transaction has, and what it may do. Times are seconds since the epoch.

    ``scheduled_at`` is when its attempt was scheduled (the watermark is compared with it), ``deadline`` when the
    attempt ends. The server ends a transaction that is idle for ``idle_limit`` seconds (not on SQLite, which has no
    server); None: an idle transaction ends with its attempt. ``read_only``: the database refuses every write.
    """

    scheduled_at: float
    deadline: float
    isolation: str | None = None
    idle_limit: float | None = None
    read_only: bool = False


class BelowWatermark(Exception):
    """The attempt is older than the watermark of this database."""


class RowLockTimeout(InfrastructureError):
    """Another transaction has locked the row for longer than this one may wait."""


class LostCommit(Exception):
    """COMMIT was sent, and its outcome is unknown."""


LONGER_TIMEOUT = "if the database needs longer for what it checks at COMMIT, set a longer `timeout`"
"""The advice after a COMMIT that was given up because the time of its attempt was over."""


class ChangesKept(Exception):
    """The rollback of an attempt, or of an entry of a chunk, has left changes, because a table has no transactions."""


class NotCommitted(InfrastructureError):
    """The database responded to COMMIT with a rollback."""


class GuardTransaction(Protocol):
    """The operations of a transaction that the rules need. It opens with the first call."""

    @property
    def sql(self) -> SqlSession:
        """The session for the action."""
        ...

    @property
    def answered(self) -> bool:
        """True if the database has answered a statement of this transaction; if not, the connection may be stale."""
        ...

    @property
    def unanswered(self) -> bool:
        """True if a statement was sent, by the engine or an action, and the database has not answered it."""
        ...

    @property
    def kept_changes(self) -> bool:
        """True after a rollback that has left changes, because a table has no transactions."""
        ...

    async def insert(
        self,
        op: str,
        reason: RowReason,
        *,
        args_hash: str | None = None,
        result: str | None = None,
        origin: str | None = None,
    ) -> bool:
        """Insert a row unless it exists, and return whether it was inserted here.

        Waits for an open transaction that has inserted the same row. The first insert does nothing if the attempt is
        below the watermark; ``rows`` then raises.
        """
        ...

    async def check_watermark(self) -> None:
        """Raises :class:`BelowWatermark`."""
        ...

    async def rows(self, *, locked: bool = True) -> Mapping[str, GuardRow]:
        """The entry's rows as last committed; ``locked`` False: without waiting for a transaction that locks them.

        Raises :class:`BelowWatermark`.
        """
        ...

    async def lock_do(self) -> None:
        """Lock the row of ``do`` until the end of the transaction. Raises :class:`RowLockTimeout`."""
        ...

    async def refuse_do(self) -> None:
        """Make later attempts of ``do`` late: change the reason of its row, which is locked here, to ``undo``."""
        ...

    async def delete(self, op: str) -> None:
        """Delete a row that no later attempt may use."""
        ...

    async def commit(self, row_write: RowWrite | None) -> None:
        """Store and commit. Raises :class:`LostCommit` when it is unknown whether the commit happened."""
        ...

    async def rollback(self) -> None:
        """Roll back and return the connection to the pool; a broken connection is discarded."""
        ...

    async def release(self) -> None:
        """Return the connection to the pool after a commit."""
        ...
