"""Holds back attempts while the circuit breaker of a connection that they need is open.

A worker counts its own attempts, and opens the circuit breaker for all workers, by a row of the ledger. While it is
open, single attempts are made, by whichever worker claims them first; the first that succeeds closes it. Like a pause
by an operator, it decides nothing: an attempt that is held back is not made, and one that fails meanwhile is not
charged, so the saga has as many attempts left as before.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.attempt_window import AttemptWindow
from saga_activities.connection_health import has_answered, last_failure
from saga_activities.guard.database_errors import message_of
from saga_activities.http.request import names_another_host
from saga_activities.ledger import circuit_breakers as rows
from saga_activities.ledger.circuit_breakers import OpenBreaker
from saga_activities.needed_connections import NeededConnections, makes_call, runs_spark
from saga_activities.standing_pauses import hold_interval
from sagas.definition.times import format_duration
from sagas.errors import SagaError, UsageError
from sagas.protocol.held_outcomes import held_outcome
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from sagas.settings.circuit_breaker import MOST_ATTEMPTS, CircuitBreaker
from sagas.settings.connections import Connection, HttpService
from sagas.settings.masking import mask

log = logging.getLogger("saga.circuit_breaker")

MAX_AGE = 1.0
"""Seconds for which what was read counts, at one query per second."""

_TIMEOUT = 2.0
"""Seconds for one statement in the ledger."""

_LONGEST_PROBE = 60.0
"""Seconds after which another attempt may be made, although the one before has not ended."""

_LONGEST_WAIT = 60.0
"""Seconds within which every call notices that a circuit breaker was closed."""

_UNREACHABLE = (SQLAlchemyError, SagaError, OSError, TimeoutError)

BreakerState = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class AdmittedAttempt:
    """An attempt that may be made. ``probes``: the open circuit breakers that it closes if it succeeds.

    ``needs`` are the connections with a circuit breaker; ``counts``: its outcome is that of the only connection.
    """

    needs: tuple[str, ...] = ()
    probes: tuple[OpenBreaker, ...] = ()
    counts: bool = False


FREE = AdmittedAttempt()
"""An attempt that needs no connection with a circuit breaker."""


class CircuitBreakers:
    """The circuit breakers as this process knows them; ``engine`` gives the database of the ledger.

    While the ledger does not answer, this process opens, probes and closes them for itself. It shares those that are
    open as soon as the ledger answers.
    """

    def __init__(
        self, connections: Mapping[str, Connection], needed: NeededConnections, engine: Callable[[], AsyncEngine]
    ) -> None:
        self._settings: dict[str, CircuitBreaker] = {
            name: connection.circuit_breaker
            for name, connection in connections.items()
            if connection.circuit_breaker is not None
        }
        self._services = {name: each for name, each in connections.items() if isinstance(each, HttpService)}
        self._databases = {name for name in self._settings if connections[name].kind == "sql"}
        self._windows = {
            name: AttemptWindow(breaker.window, breaker.minimum, MOST_ATTEMPTS)
            for name, breaker in self._settings.items()
        }
        self._needed = needed
        self._engine = engine
        self._open: dict[str, OpenBreaker] = {}
        self._due: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._unshared: set[str] = set()
        self._read_at: float | None = None
        self._failed = False
        self._lock = asyncio.Lock()

    async def states(self) -> Mapping[str, BreakerState]:
        """The state of each circuit breaker of the project, by the name of its connection."""
        if self._settings:
            await self._read()
        return {name: self._state(name) for name in self._settings}

    def _state(self, name: str) -> BreakerState:
        breaker = self._open.get(name)
        if breaker is None:
            return "closed"
        return "half_open" if breaker.probing and time.monotonic() < self._due.get(name, 0.0) else "open"

    async def admit(
        self, invocation: Invocation, attempt: int, seconds: float, *, is_single: bool = True
    ) -> AdmittedAttempt | Outcome:
        """The attempt if it may be made, which :meth:`ended` must follow; else the outcome of one that is held back.

        ``seconds``: the time that it has. ``is_single``: it is one call, and so can be the only one that is made.
        """
        if not self._settings or not makes_call(invocation, attempt):
            return FREE
        needs = self._needed.of(invocation)
        broken = tuple(sorted(name for name in needs & self._settings.keys() if self._is_called(name, invocation)))
        if not broken:
            return FREE
        await self._read()
        opened = [self._open[name] for name in broken if name in self._open]
        for breaker in opened:  # before any is claimed, which would keep other attempts from it
            if not is_single or not self._is_due(breaker):
                return held_outcome(breaker.pause, attempt, self._interval(breaker))
        probes: list[OpenBreaker] = []
        for breaker in opened:
            if not await self._claim(breaker, seconds):
                await self._release(probes, wait=0.0)
                return held_outcome(breaker.pause, attempt, self._interval(breaker))
            probes.append(breaker)
        return AdmittedAttempt(broken, tuple(probes), counts=len(needs) == 1 and not runs_spark(invocation))

    def _is_called(self, name: str, invocation: Invocation) -> bool:
        """False for a request to another host that the connection allows: an input may choose it, and its failures tell
        nothing about the connection's own.
        """
        if invocation.action != "http" or name not in self._services or "url" not in invocation.arguments:
            return True
        try:
            return not names_another_host(invocation.arguments, self._services[name].url)
        except UsageError:  # the secret with the URL is missing, which fails the attempt
            return True

    async def ended(self, attempt: AdmittedAttempt, outcome: Outcome) -> Outcome:
        """Learn from an attempt; returns its outcome, which is not charged if an open circuit breaker explains it."""
        return (await self.chunk_ended(attempt, [outcome]))[0] or outcome

    async def chunk_ended(
        self, attempt: AdmittedAttempt, outcomes: Sequence[Outcome | None]
    ) -> Sequence[Outcome | None]:
        """Learn from an attempt of several calls in one transaction, which counts as one."""
        if not attempt.needs:
            return outcomes
        answers = {name: self._answered(name, outcomes) for name in attempt.needs}
        for probe in attempt.probes:
            if answers[probe.connection]:
                await self._close(probe)
        await self._release([probe for probe in attempt.probes if not answers[probe.connection]])
        if attempt.counts:
            await self._count(attempt.needs[0], answers[attempt.needs[0]], outcomes)
        failed = [self._open[name] for name in attempt.needs if answers[name] is False and name in self._open]
        if not failed:
            return outcomes
        probed = {probe.connection for probe in attempt.probes}
        wait = max(self._wait_after(breaker, has_probed=breaker.connection in probed) for breaker in failed)
        return [self._uncharged(outcome, wait, failed) for outcome in outcomes]

    def _answered(self, name: str, outcomes: Sequence[Outcome | None]) -> bool | None:
        """Return whether the connection has answered one of the calls; None if no outcome tells."""
        answers = {
            has_answered(outcome, is_database=name in self._databases) for outcome in outcomes if outcome is not None
        }
        return True if True in answers else (False if False in answers else None)

    def _uncharged(self, outcome: Outcome | None, wait: float, failed: Sequence[OpenBreaker]) -> Outcome | None:
        """The outcome of a call without being charged, if a circuit breaker that is open explains it."""
        if outcome is None:
            return None
        explaining = (
            breaker
            for breaker in failed
            if has_answered(outcome, is_database=breaker.connection in self._databases) is False
        )
        if (breaker := next(explaining, None)) is None:
            return outcome
        return replace(outcome, breaker=breaker.pause, retry_after=max(outcome.retry_after or 0.0, wait))

    async def interrupted(self, attempt: AdmittedAttempt, *, answered: bool) -> None:
        """An attempt has ended without an outcome; ``answered``: it goes on without this worker."""
        if answered:
            await self.ended(attempt, Outcome.done())
        else:
            await self._release(attempt.probes)

    async def _count(self, name: str, answered: bool | None, outcomes: Sequence[Outcome | None]) -> None:
        if answered is None or name in self._open:
            return
        settings, window = self._settings[name], self._windows[name]
        window.add(time.monotonic(), failed=not answered)
        failing = None if answered else window.failing(settings.failures)
        if failing is not None:
            last = last_failure(outcomes)
            reason = f"{failing[0]} of the last {failing[1]} attempts failed, the last with {last}"
            every = f"one attempt every {format_duration(settings.probe_every)} finds out whether it answers again"
            await self._open_for_all(OpenBreaker(name, datetime.now(UTC), f"{reason}; {every}", settings.probe_every))

    async def _open_for_all(self, breaker: OpenBreaker) -> None:
        async with self._lock:
            name = breaker.connection
            if name in self._open:
                return
            log.warning("the circuit breaker of the connection %s opens: %s", name, breaker.reason)
            self._open[name], self._since[name] = breaker, time.monotonic()
            self._due[name] = self._since[name] + breaker.due_in
            self._windows[name].clear()

            async def share(engine: AsyncEngine) -> None:
                self._open[name] = replace(breaker, opened_at=await rows.current_time(engine))
                await rows.insert_breaker(engine, self._open[name])

            if await self._ask(share):
                await self._refresh()  # another worker may have opened it before
            else:
                self._unshared.add(name)

    async def _close(self, breaker: OpenBreaker) -> None:
        await self._ask(lambda engine: rows.close_breaker(engine, breaker))
        async with self._lock:
            self._forget(breaker.connection)

    def _interval(self, breaker: OpenBreaker) -> float:
        """Seconds until an attempt asks again that is held back; it may have closed meanwhile."""
        now = time.monotonic()
        return hold_interval(now - self._since.get(breaker.connection, now))

    def _wait_after(self, breaker: OpenBreaker, *, has_probed: bool) -> float:
        """Seconds until an attempt that has failed is made again. One that was the single one comes later than those
        that are held back: a saga whose own call always fails must not keep all others from finding out that the
        connection answers.
        """
        interval = self._interval(breaker)
        wait = interval + (self._settings[breaker.connection].probe_every if has_probed else 0.0)
        return wait if wait <= _LONGEST_WAIT else interval

    def _is_due(self, breaker: OpenBreaker) -> bool:
        return time.monotonic() >= self._due.get(breaker.connection, 0.0)

    async def _claim(self, breaker: OpenBreaker, seconds: float) -> bool:
        """Return whether this is the attempt that is made while the circuit breaker is open."""
        if not self._is_due(breaker):
            return False
        name, now = breaker.connection, time.monotonic()
        seconds = max(min(seconds, _LONGEST_PROBE), self._settings[name].probe_every)
        self._open[name], self._due[name] = replace(breaker, probing=True), now + seconds
        if name in self._unshared:
            return True
        claimed: list[bool] = []

        async def claim(engine: AsyncEngine) -> None:
            claimed.append(await rows.claim_probe(engine, name, seconds))

        is_reachable = await self._ask(claim)
        self._read_at = None  # what the row says now
        return claimed[0] if is_reachable else True

    async def _release(self, probes: Sequence[OpenBreaker], wait: float | None = None) -> None:
        """Let another attempt be made after ``wait`` seconds, by default `probe_every`: these have not succeeded."""
        for probe in probes:
            name = probe.connection
            seconds = self._settings[name].probe_every if wait is None else wait
            self._due[name] = time.monotonic() + seconds
            if name in self._open:
                self._open[name] = replace(self._open[name], probing=False)
            if name not in self._unshared:
                await self._ask(lambda engine, probe=probe, seconds=seconds: rows.end_probe(engine, probe, seconds))
                self._read_at = None

    async def _read(self) -> None:
        async with self._lock:
            if self._read_at is None or time.monotonic() - self._read_at >= MAX_AGE:
                await self._refresh()

    async def _refresh(self) -> None:
        rows_read: list[OpenBreaker] = []

        async def read(engine: AsyncEngine) -> None:
            for name in self._unshared:
                await rows.insert_breaker(engine, self._open[name])
            rows_read.extend(await rows.read_breakers(engine))

        is_reachable = await self._ask(read)
        self._read_at = time.monotonic()
        if not is_reachable:
            return
        current = {breaker.connection: breaker for breaker in rows_read if breaker.connection in self._settings}
        self._unshared.clear()
        for name in self._open.keys() - current.keys():
            self._forget(name)
        for name, breaker in current.items():
            before = self._open.get(name)
            if before is None or before.opened_at != breaker.opened_at:  # also one that has closed and opened between
                self._since[name] = self._read_at - breaker.age
        self._open |= current
        self._due |= {name: self._read_at + breaker.due_in for name, breaker in current.items()}

    def _forget(self, name: str) -> None:
        if self._open.pop(name, None) is not None:
            log.info("the circuit breaker of the connection %s is closed", name)
        self._due.pop(name, None)
        self._since.pop(name, None)
        self._unshared.discard(name)
        self._windows[name].clear()

    async def _ask(self, work: Callable[[AsyncEngine], Awaitable[object]]) -> bool:
        """Return whether the ledger has answered."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                await work(self._engine())
        except _UNREACHABLE as error:
            if not self._failed:  # once, not at every attempt
                why = mask(message_of(error)) or "no answer in time"
                log.warning("circuit breakers are not shared with other workers, the ledger does not answer: %s", why)
            self._failed = True
            return False
        self._failed = False
        return True
