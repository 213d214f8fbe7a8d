"""Check-back of half messages (events that stay HELD), and the operator's decision about them.

A lost confirm or undo is retried anyway, so check-back is for what no retry can repair: a terminated run, a step that
an operator skipped. An open saga is asked again for as long as it is open, and these checks are not counted. An event
without an answer stays HELD and is listed for an operator; nothing is dropped because time has passed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client as Temporal
from temporalio.service import RPCError

from saga_activities.concurrency import Backoff
from saga_activities.guard import EntryKey, Guard
from saga_activities.guard.tables import now_sql
from saga_activities.messaging.outbox import DROPPED, HELD, NEW, REFUSED
from saga_workers.ledger.run_ledger import LedgerUnavailable, NoLedger, RunLedger
from saga_workers.location.locator import Locator
from saga_workers.runtime.databases import driver_message, open_databases
from saga_workers.runtime.logs import fields
from saga_workers.views.saga_view import read_view
from sagas.errors import RefusedError, SagaError, UsageError
from sagas.protocol.saga_view import FINAL_STATES, SagaView
from sagas.settings import Settings

log = logging.getLogger("saga.relay")

CHECK_INTERVALS = Backoff(60.0, 3600.0)
"""Seconds an event is held before its saga is asked, and between two checks; most sagas are over before the first."""

MAX_UNANSWERED = 15
"""Consecutive checks without an answer before the event is listed for an operator: about half a day."""

CHECK_PERIOD = 10.0
_BATCH_SIZE = 200
_ATTEMPT_TIMEOUT = 30.0

_DUE = "status = 'HELD' AND COALESCE(next_check_at, created_at + :first) <= {now}"


class CheckBack:
    """Asks the sagas about the held events of one project's outboxes.

    ``connect`` opens the Temporal client, and ``ledger`` the project's ledger, which knows the sagas of bulk workflows.
    They are called only when an event is due.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Temporal]],
        ledger: Callable[[], AbstractAsyncContextManager[RunLedger]] = lambda: nullcontext(NoLedger()),
        *,
        intervals: Backoff = CHECK_INTERVALS,
    ) -> None:
        self._connect = connect
        self._ledger = ledger
        self._intervals = intervals
        self._temporal: Temporal | None = None

    async def check(self, name: str, engine: AsyncEngine) -> int:
        """Check the due events of one outbox, at most one batch of them; returns their number.

        Raises SQLAlchemyError.
        """
        events = await self._claim(engine)
        if not events:
            return 0
        async with self._ledger() as ledger:
            await self._decide(name, engine, events, ledger)
        return len(events)

    async def _decide(self, name: str, engine: AsyncEngine, events: Sequence[Any], ledger: RunLedger) -> None:
        views: dict[str, SagaView | None] = {}
        unreachable: str | None = None
        for entry in sorted({(event.saga_id, event.step, event.generation) for event in events}):
            saga_id, step, generation = entry
            if saga_id not in views and unreachable is None:
                try:
                    views[saga_id] = await self._read_saga(saga_id, ledger)
                except SagaUnreachable as error:
                    unreachable = str(error)
                    log.warning("check-back failed: %s", unreachable, extra=fields(outbox=name))
            if saga_id in views:
                answer = entry_status(views[saga_id], step, generation)
            else:
                answer = SagaStatus("unknown", unreachable or "")
            mine = [event for event in events if (event.saga_id, event.step, event.generation) == entry]
            await self._apply(name, engine, EntryKey(saga_id, step, generation), answer, mine)

    async def _read_saga(self, saga_id: str, ledger: RunLedger) -> SagaView | None:
        if self._temporal is None:
            try:
                self._temporal = await self._connect()
            except (SagaError, OSError, RuntimeError) as error:
                raise SagaUnreachable(f"Temporal does not answer: {error}") from error
        return await query_saga(Locator(self._temporal, ledger), saga_id)

    async def _claim(self, engine: AsyncEngine) -> list[Any]:
        """Claim the due events: their next check is moved on, so that no other relay checks them now."""
        due = _DUE.format(now=now_sql(engine.dialect.name))
        columns = "id, event_id, topic, saga_id, step, generation, created_at, checks"
        select = text(f"SELECT {columns} FROM saga_outbox WHERE {due} ORDER BY id LIMIT {_BATCH_SIZE}")
        claim = text(f"UPDATE saga_outbox SET next_check_at = :later WHERE id = :id AND {due}")
        first, claimed = self._intervals.first, []
        async with engine.connect() as connection:
            for row in (await connection.execute(select, {"first": first})).all():
                values = {"id": row.id, "later": time.time() + first, "first": first}
                if (await connection.execute(claim, values)).rowcount == 1:
                    claimed.append(row)
        return claimed

    async def _apply(
        self, name: str, engine: AsyncEngine, address: EntryKey, status: SagaStatus, events: list[Any]
    ) -> None:
        if status.kind in ("open", "unknown"):
            for event in events:
                await self._reschedule(engine, event, status)
                if status.kind == "unknown" and event.checks + 1 == MAX_UNANSWERED:
                    about = fields(outbox=name, event=event.event_id, topic=event.topic, saga_id=event.saga_id)
                    log.warning(
                        "held event needs an operator: %s; see `saga relay --status`", status.reason, extra=about
                    )
            return
        about = fields(outbox=name, entry=str(address))
        now = time.time()
        outcome = await Guard(name, engine).decide_held_events(
            address, committed=status.kind == "committed", scheduled_at=now, deadline=now + _ATTEMPT_TIMEOUT
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
        pause = intervals.delay(checks) if checks else max(intervals.first, time.time() - event.created_at)
        statement = text(
            "UPDATE saga_outbox SET next_check_at = :at, checks = :checks, note = :note "
            "WHERE id = :id AND status = 'HELD'"
        )
        values = {
            "id": event.id,
            "at": time.time() + min(intervals.longest, pause),
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
    """How an entry that has sent a held event stands to its commit point; ``reason`` explains ``unknown``."""

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


def entry_status(view: SagaView | None, step: str, generation: int) -> SagaStatus:
    """Return what the view of a saga means for the held events of one entry (``step`` is its ledger id)."""
    if view is None:
        return SagaStatus("unknown", "Temporal has no run of this saga")
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


# Events that need an operator: held ones whose saga gives no answer, and those that the broker refuses for good.
_MAX_SHOWN = 100
_DATABASE_TIMEOUT = 15.0

_SELECT_UNDECIDED = text(
    "SELECT event_id, status, topic, event_key, saga_id, step, created_at, checks, note FROM saga_outbox "
    f"WHERE status = '{REFUSED}' OR (status = '{HELD}' AND checks >= :checks) ORDER BY id LIMIT {_MAX_SHOWN}"
)
_SELECT_EVENT = text("SELECT status, topic, saga_id, step FROM saga_outbox WHERE event_id = :id")
_UPDATE_STATUS = text(
    "UPDATE saga_outbox SET status = :status, note = :note, published_at = :dropped_at "
    f"WHERE event_id = :id AND status IN ('{HELD}', '{REFUSED}')"
)

EventDecision = Literal["release", "drop"]


@dataclass(frozen=True, slots=True)
class UndecidedEvent:
    """An event that an operator decides about. ``since``: when it was written, in seconds since the epoch."""

    event_id: str
    status: str
    topic: str
    key: str | None
    saga_id: str
    step: str
    since: float
    checks: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {
            "event": self.event_id,
            "status": self.status,
            "topic": self.topic,
            "key": self.key,
            "saga": self.saga_id,
            "step": self.step,
            "since": self.since,
            "checks": self.checks,
            "why": self.reason,
        }


async def list_undecided(engine: AsyncEngine) -> list[UndecidedEvent]:
    """The oldest hundred events that need an operator's decision. Raises SQLAlchemyError."""
    async with engine.connect() as connection:
        rows = (await connection.execute(_SELECT_UNDECIDED, {"checks": MAX_UNANSWERED})).all()
    return [
        UndecidedEvent(
            row.event_id,
            row.status,
            row.topic,
            row.event_key,
            row.saga_id,
            row.step,
            row.created_at,
            row.checks,
            row.note or "",
        )
        for row in rows
    ]


async def decide_event(
    engine: AsyncEngine, event_id: str, decision: EventDecision, *, reason: str, who: str
) -> str | None:
    """Apply an operator's decision about a held or refused event: publish it, or never.

    Returns a message that says what was done; None if this outbox does not have the event. Raises RefusedError if there
    is nothing to decide about it, and SQLAlchemyError.
    """
    status = NEW if decision == "release" else DROPPED
    note = f"{decision}: {who}: {reason}"
    values = {"id": event_id, "status": status, "note": note, "dropped_at": time.time() if status == DROPPED else None}
    async with engine.connect() as connection:
        row = (await connection.execute(_SELECT_EVENT, {"id": event_id})).first()
        if row is None:
            return None
        if (await connection.execute(_UPDATE_STATUS, values)).rowcount != 1:
            now = (await connection.execute(_SELECT_EVENT, {"id": event_id})).first()
            state = row.status if now is None else now.status
            raise RefusedError(
                f"the event {event_id} is {state}; only HELD and REFUSED events can be released or dropped"
            )
    done = "will be published" if decision == "release" else "will never be published"
    return f"the event {event_id} of {row.saga_id}/{row.step} for {row.topic} {done}"


async def decide_in_any_outbox(
    settings: Settings, connection: str | None, event_id: str, decision: EventDecision, *, reason: str, who: str
) -> str:
    """Apply :func:`decide_event` to whichever outbox of the project has the event.

    Raises UsageError if none has it, RefusedError, and SagaError if a database does not answer.
    """
    databases = open_databases(settings, connection, 1)
    try:
        for name in databases.names():
            try:
                async with asyncio.timeout(_DATABASE_TIMEOUT):
                    message = await decide_event(databases.engine(name), event_id, decision, reason=reason, who=who)
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                raise SagaError(
                    f"the database of the connection {name} does not answer: {driver_message(error)}"
                ) from error
            if message is not None:
                return message
    finally:
        await databases.close()
    raise UsageError(
        f"no outbox has an event {event_id}", help="saga relay --status    lists the events that need an operator"
    )
