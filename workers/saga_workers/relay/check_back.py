"""Check-back of half messages: events that are HELD for too long, and nobody has released or dropped them.

A confirm or an undo that was lost comes again by itself, so this is for what no retry can mend: a run that was
terminated, a step that a person skipped. Sagas that are open are asked again, however long they take, and never
counted. What nobody can answer stays HELD and is shown to a person; nothing is dropped because time has passed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client as Temporal

from saga_activities.guard import Address, Guard
from saga_activities.guard.clock import now_sql
from saga_workers.relay.asking import Answer, Unreachable, ask, judge
from sagas.errors import SagaError

log = logging.getLogger("saga.relay")

FIRST = 60.0
"""Seconds an event is held before its saga is asked: most sagas are over by then."""

LONGEST = 3600.0
"""Seconds between two questions about one event at most."""

UNANSWERED = 15
"""How often in a row nobody could answer before a person is told: about half a day."""

PERIOD = 10.0
_PORTION = 200
_ATTEMPT = 30.0

_DUE = "status = 'HELD' AND COALESCE(next_check_at, created_at + :first) <= {now}"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: until the first question, and between two at most."""

    first: float = FIRST
    longest: float = LONGEST


class CheckBack:
    """Asks the sagas of one project's outboxes. ``connect`` opens Temporal when there is something to ask."""

    def __init__(self, connect: Callable[[], Awaitable[Temporal]], times: Times | None = None) -> None:
        self._connect = connect
        self._times = times or Times()
        self._temporal: Temporal | None = None

    async def check(self, name: str, engine: AsyncEngine) -> int:
        """Ask about what is due in one outbox, at most a portion of it; how many events that were.

        Raises SQLAlchemyError.
        """
        events = await self._claim(engine)
        stories: dict[str, Any] = {}
        unreachable: str | None = None
        for entry in sorted({(one.saga_id, one.step, one.generation) for one in events}):
            saga_id, step, generation = entry
            if saga_id not in stories and unreachable is None:
                try:
                    stories[saga_id] = await self._story(saga_id)
                except Unreachable as error:
                    unreachable = f"Temporal does not answer: {error}"
                    log.warning("sagas with held events in %s cannot be asked: %s", name, error)
            if saga_id in stories:
                answer = judge(stories[saga_id], step, generation)
            else:
                answer = Answer("unknown", unreachable or "")
            mine = [one for one in events if (one.saga_id, one.step, one.generation) == entry]
            await self._act(name, engine, Address(saga_id, step, generation), answer, mine)
        return len(events)

    async def _story(self, saga_id: str) -> Any:
        if self._temporal is None:
            try:
                self._temporal = await self._connect()
            except (SagaError, OSError, RuntimeError) as error:
                raise Unreachable(str(error)) from error
        return await ask(self._temporal, saga_id)

    async def _claim(self, engine: AsyncEngine) -> list[Any]:
        """The events that are due, kept from every other relay until their next turn."""
        due = _DUE.format(now=now_sql(engine.dialect.name))
        columns = "id, event_id, topic, saga_id, step, generation, created_at, checks"
        select = text(f"SELECT {columns} FROM saga_outbox WHERE {due} ORDER BY id LIMIT {_PORTION}")
        claim = text(f"UPDATE saga_outbox SET next_check_at = :later WHERE id = :id AND {due}")
        first, claimed = self._times.first, []
        async with engine.connect() as connection:
            for row in (await connection.execute(select, {"first": first})).all():
                values = {"id": row.id, "later": time.time() + first, "first": first}
                if (await connection.execute(claim, values)).rowcount == 1:
                    claimed.append(row)
        return claimed

    async def _act(self, name: str, engine: AsyncEngine, address: Address, answer: Answer, events: list[Any]) -> None:
        if answer.word in ("open", "unknown"):
            for event in events:
                await self._later(engine, event, answer)
                if answer.word == "unknown" and event.checks + 1 == UNANSWERED:
                    log.warning(
                        "event %s for %s is held in %s and nobody can say what becomes of it: %s (saga relay --status)",
                        event.event_id, event.topic, name, answer.why,
                    )  # fmt: skip
            return
        now = time.time()
        outcome = await Guard(name, engine).settle_held(
            address, committed=answer.word == "committed", scheduled_at=now, deadline=now + _ATTEMPT
        )
        if outcome.kind != "done":
            why = outcome.failure.message if outcome.failure else outcome.kind
            log.warning("held events of %s in %s are asked about again: %s", address, name, why)
            return
        done = "released: the saga is committed" if answer.word == "committed" else "dropped: the saga never committed"
        log.warning("%d held events of %s in %s are %s, although no step said so", len(events), address, name, done)

    async def _later(self, engine: AsyncEngine, event: Any, answer: Answer) -> None:
        """Ask again after as long as it has been held; after a vain question, twice as long each time."""
        first, longest = self._times.first, self._times.longest
        checks = event.checks + 1 if answer.word == "unknown" else 0
        pause = first * 2 ** min(checks, 30) if checks else max(first, time.time() - event.created_at)
        statement = text(
            "UPDATE saga_outbox SET next_check_at = :at, checks = :checks, note = :note "
            "WHERE id = :id AND status = 'HELD'"
        )
        values = {
            "id": event.id,
            "at": time.time() + min(longest, pause),
            "checks": checks,
            "note": answer.why or None,
        }
        async with engine.connect() as connection:
            await connection.execute(statement, values)
