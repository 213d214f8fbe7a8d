"""Check-back of half messages: events that stay HELD.

A lost confirm or undo is retried anyway, so check-back is for what no retry can repair: a terminated run, a step that
an operator skipped. An open saga is asked again for as long as it is open, and these checks are not counted. An event
without an answer stays HELD and is listed for an operator; nothing is dropped because time has passed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client as Temporal
from temporalio.service import RPCError

from saga_activities.concurrency import Backoff
from saga_activities.database_clock import time_of
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.guard import Guard
from saga_activities.guard.outbox_postgresql import outbox_rows
from saga_activities.guard.tables import guard_table, now_sql
from saga_workers.ledger.run_ledger import LedgerUnavailable, NoLedger, RunLedger
from saga_workers.location.locator import Locator
from saga_workers.relay.undecided_events import MAX_UNANSWERED
from saga_workers.runtime.logs import fields
from saga_workers.views.saga_view import read_view
from sagas.definition.times import format_timestamp
from sagas.errors import SagaError, UsageError
from sagas.protocol.origin import Origin, decode_origin
from sagas.protocol.saga_view import FINAL_STATES, SagaView
from sagas.settings.signing_keys import SigningKeys

log = logging.getLogger("saga.relay")

CHECK_INTERVALS = Backoff(60.0, 3600.0)
"""Seconds an event is held before its saga is asked, and between two checks; most sagas are over before the first."""

CHECK_PERIOD = 10.0
_CHECKED_AT_ONCE = 200
_ATTEMPT_TIMEOUT = 30.0

_DUE = "status = 'HELD' AND COALESCE(next_check_at, created_at + :first) <= {now}"


class CheckBack:
    """Asks the sagas about the held events of one project's outboxes.

    ``connect`` opens the Temporal client, and ``ledger`` the project's ledger, which knows the sagas of bulk workflows.
    They are called only when an event is due. ``keys`` verify what closed runs say; without them it is believed.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Temporal]],
        ledger: Callable[[], AbstractAsyncContextManager[RunLedger]] = lambda: nullcontext(NoLedger()),
        *,
        keys: SigningKeys | None = None,
        intervals: Backoff = CHECK_INTERVALS,
    ) -> None:
        self._connect = connect
        self._keys = keys
        self._ledger = ledger
        self._intervals = intervals
        self._temporal: Temporal | None = None

    async def check(self, guard: Guard) -> int:
        """Check the due events of one outbox, at most ``_CHECKED_AT_ONCE`` of them; returns their number.

        Raises SQLAlchemyError.
        """
        events = await self._take_due(guard.engine)
        if not events:
            return 0
        async with self._ledger() as ledger:
            await self._decide(guard, events, ledger)
        return len(events)

    async def _decide(self, guard: Guard, events: Sequence[Any], ledger: RunLedger) -> None:
        views: dict[str, SagaView | None] = {}
        unreachable: str | None = None
        for entry in sorted({(event.saga_id, event.step, event.generation) for event in events}):
            saga_id, step, generation = entry
            if saga_id not in views and unreachable is None:
                try:
                    views[saga_id] = await self._read_saga(saga_id, ledger)
                except SagaUnreachable as error:
                    unreachable = str(error)
                    log.warning("check-back failed: %s", unreachable, extra=fields(outbox=guard.name))
            if saga_id in views:
                origin = await origin_of_entry(guard.engine, EntryKey(saga_id, step, generation))
                answer = entry_status(views[saga_id], step, generation, origin)
            else:
                answer = SagaStatus("unknown", unreachable or "")
            mine = [event for event in events if (event.saga_id, event.step, event.generation) == entry]
            await self._apply(guard, EntryKey(saga_id, step, generation), answer, mine)

    async def _read_saga(self, saga_id: str, ledger: RunLedger) -> SagaView | None:
        if self._temporal is None:
            try:
                self._temporal = await self._connect()
            except (SagaError, OSError, RuntimeError) as error:
                raise SagaUnreachable(f"Temporal does not answer: {error}") from error
        return await query_saga(Locator(self._temporal, ledger, keys=self._keys), saga_id)

    async def _take_due(self, engine: AsyncEngine) -> list[Any]:
        """Take the due events: their next check is moved on, so that no other relay checks them now."""
        now = now_sql(engine.dialect.name)
        due = _DUE.format(now=now)
        columns = f"id, event_id, topic, saga_id, step, generation, {now} - created_at AS held, checks"
        table = outbox_rows(engine.dialect.name).name
        select = text(f"SELECT {columns} FROM {table} WHERE {due} ORDER BY id LIMIT {_CHECKED_AT_ONCE}")
        take = text(f"UPDATE {table} SET next_check_at = {now} + :first WHERE id = :id AND {due}")
        first, taken = self._intervals.first, []
        async with engine.connect() as connection:
            for row in (await connection.execute(select, {"first": first})).all():
                if (await connection.execute(take, {"id": row.id, "first": first})).rowcount == 1:
                    taken.append(row)
        return taken

    async def _apply(self, guard: Guard, address: EntryKey, status: SagaStatus, events: list[Any]) -> None:
        if status.kind in ("open", "unknown"):
            for event in events:
                await self._reschedule(guard.engine, event, status)
                if status.kind == "unknown" and event.checks + 1 == MAX_UNANSWERED:
                    about = fields(outbox=guard.name, event=event.event_id, topic=event.topic, saga_id=event.saga_id)
                    log.warning(
                        "held event needs an operator: %s; see `saga relay --status`", status.reason, extra=about
                    )
            return
        about = fields(outbox=guard.name, entry=str(address))
        outcome = await guard.decide_held_events(
            address,
            committed=status.kind == "committed",
            scheduled_at=await time_of(guard.engine),  # which is compared with the watermark of the database
            deadline=time.time() + _ATTEMPT_TIMEOUT,
        )
        if outcome.kind != "done":
            why = outcome.failure.message if outcome.failure else outcome.kind
            log.warning("decision about held events failed and is retried: %s", why, extra=about)
            return
        done = "released: the saga is committed" if status.kind == "committed" else "dropped: the saga never committed"
        log.warning("check-back: %d held events %s", len(events), done, extra=about)

    async def _reschedule(self, engine: AsyncEngine, event: Any, status: SagaStatus) -> None:
        """Set the next check: after as long as the event has been held; doubling if there was no answer."""
        intervals = self._intervals
        checks = event.checks + 1 if status.kind == "unknown" else 0
        pause = intervals.delay(checks) if checks else max(intervals.first, event.held)
        now = now_sql(engine.dialect.name)
        statement = text(
            f"UPDATE {outbox_rows(engine.dialect.name).name} SET next_check_at = {now} + :pause, checks = :checks, "
            "note = :note WHERE id = :id AND status = 'HELD'"
        )
        values = {
            "id": event.id,
            "pause": min(intervals.longest, pause),
            "checks": checks,
            "note": status.reason or None,
        }
        async with engine.connect() as connection:
            await connection.execute(statement, values)


# The status of a saga as its held events need it. Only the saga itself, or an operator, may decide to drop an event.
#
# The saga is asked through Temporal, never a table of its steps: a reader that comes before a late transaction commits
# would take the missing row for "not committed". The ledger only says which workflow runs the saga, and how it ended.
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
