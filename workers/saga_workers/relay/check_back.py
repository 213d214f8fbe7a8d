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
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client as Temporal

from saga_activities.concurrency import Backoff
from saga_activities.database_clock import time_of
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.guard import Guard
from saga_activities.guard.outbox_postgresql import outbox_rows
from saga_activities.guard.tables import now_sql
from saga_workers.ledger.run_ledger import NoLedger, RunLedger
from saga_workers.location.locator import Locator
from saga_workers.relay.entry_status import SagaStatus, SagaUnreachable, entry_status, origin_of_entry, query_saga
from saga_workers.relay.undecided_events import MAX_UNANSWERED
from saga_workers.runtime.logs import fields
from sagas.errors import SagaError
from sagas.protocol.doubtful_outcomes import NOT_VERIFIED, VERIFY_HELP
from sagas.protocol.saga_view import SagaView
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
    They are called only when an event is due, as are ``keys``, which verify what closed runs say; without them it is
    believed, with a warning.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Temporal]],
        ledger: Callable[[], AbstractAsyncContextManager[RunLedger]] = lambda: nullcontext(NoLedger()),
        *,
        keys: Callable[[], SigningKeys | None] = lambda: None,
        intervals: Backoff = CHECK_INTERVALS,
    ) -> None:
        self._connect = connect
        self._keys = keys
        self._ledger = ledger
        self._intervals = intervals
        self._temporal: Temporal | None = None
        self._has_warned = False

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
        locator = Locator(self._temporal, ledger, keys=self._keys())
        view = await query_saga(locator, saga_id)
        if locator.believes_unverified and not self._has_warned:
            self._has_warned = True
            log.warning("%s, by which held events are decided; %s", NOT_VERIFIED, VERIFY_HELP)
        return view

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
