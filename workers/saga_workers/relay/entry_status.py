"""The status of a saga as its held events need it. Only the saga itself, or an operator, may decide to drop an event.

The saga is asked through Temporal, never a table of its steps: a reader that comes before a late transaction commits
would take the missing row for "not committed". The ledger only says which workflow runs the saga, and how it ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.service import RPCError

from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.tables import guard_table
from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.locator import Locator
from saga_workers.views.saga_view import read_view
from sagas.definition.times import format_timestamp
from sagas.errors import UsageError
from sagas.protocol.origin import Origin, decode_origin
from sagas.protocol.saga_view import FINAL_STATES, SagaView

SagaStatusKind = Literal["open", "committed", "over", "unknown"]
"""``open``: may still reach its commit point. ``committed``: has reached it. ``over``: ended without reaching it."""

QUERY_TIMEOUT = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class SagaStatus:
    """The position of an entry that has sent a held event to its commit point; ``reason`` explains ``unknown``."""

    kind: SagaStatusKind
    reason: str = ""


class SagaUnreachable(Exception):
    """Temporal or the ledger does not answer; further queries are useless now."""


async def query_saga(locator: Locator, saga_id: str) -> SagaView | None:
    """The view of a saga, with that of its undo; None if nobody knows it. Raises SagaUnreachable."""
    try:
        return await read_view(locator, saga_id, timeout=QUERY_TIMEOUT)
    except UsageError:
        return None
    except LedgerUnavailable as error:
        raise SagaUnreachable(error.message) from error
    except (RPCError, OSError, TimeoutError) as error:
        raise SagaUnreachable(f"Temporal does not answer: {str(error) or type(error).__name__}") from error


async def origin_of_entry(engine: AsyncEngine, address: EntryKey) -> Origin | None:
    """The origin of the saga that has made an effect, with its held events; None if the guard has none. Raises
    SQLAlchemyError.
    """
    row = guard_table.c
    entry = (row.saga_id == address.saga_id, row.step == address.entry, row.generation == address.generation)
    async with engine.connect() as connection:
        stored = (await connection.execute(sa.select(row.origin).where(*entry, row.op == "do"))).scalar()
    try:
        return None if stored is None else decode_origin(stored)
    except ValueError:
        return None


def _is_of(view: SagaView, origin: Origin) -> bool:
    """True if the view is of the saga with this origin, or of a generation of it."""
    if view.saga != origin.saga:
        return False
    is_same = view.generation in (None, origin.generation) and view.started_at is not None
    return not is_same or view.started_at == format_timestamp(origin.started_at)


def entry_status(view: SagaView | None, step: str, generation: int, origin: Origin | None = None) -> SagaStatus:
    """Return what the view of a saga means for the held events of one entry (``step`` is its entry id). ``origin``:
    that of the saga which has written them; another one that has its id now decides nothing.
    """
    if view is None:
        return SagaStatus("unknown", "Temporal has no run of this saga")
    if origin is not None and not _is_of(view, origin):
        began = format_timestamp(origin.started_at)
        return SagaStatus("unknown", f"another run has the id of the saga {origin.saga} that began at {began}")
    if view.is_unverified:
        return SagaStatus("unknown", f"{view.state} {view.incomplete}")
    state = view.state
    if state in ("TERMINATED", "FAILED"):
        return SagaStatus("unknown", f"the run was closed by Temporal ({state})")
    if state not in FINAL_STATES and view.phase != "committed":
        return SagaStatus("open")
    entry = next((row for row in view.steps if row.id == step), None)
    now_at = view.generation if entry is None else entry.generation
    if now_at is not None and now_at != generation:
        return SagaStatus("unknown", f"the event is of generation {generation}, but the saga is at generation {now_at}")
    if state == "COMPENSATED" or (state == "RESIDUE" and view.phase != "committed"):
        return SagaStatus("over")
    if entry is None and not view.steps_omitted:
        return SagaStatus("unknown", f"the saga is {state}, and its view does not contain {step}")
    if entry is not None and entry.outcome != "done":
        return SagaStatus("unknown", f"the saga is {state}, and {step} is {entry.state} in it")
    return SagaStatus("committed")
