"""Records who has started sagas over HTTP, and who has had payloads decoded, in the audit of the ledger.

Nobody waits for that: the records are written in the background, many at once. A process that is killed loses those of
its last moments, and all that waited for a ledger that did not answer.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError

from saga_activities.concurrency import Backoff, end_tasks
from saga_activities.guard.entry_key import fits_guard_key
from saga_activities.ledger.audit import DecodeAccess, StartAccess, record_decoding, record_starts
from saga_workers.bulk.acceptance import NotClaimed
from saga_workers.ledger.run_ledger import RunLedger
from saga_workers.runtime.background import start_background
from saga_workers.runtime.database_access import driver_message
from saga_workers.start.start_requests import StartResult
from sagas.errors import RefusedError, SagaError, UsageError
from sagas.protocol.access_view import StartOutcome
from sagas.settings.masking import mask
from sagas.text.shortening import counted

log = logging.getLogger("saga.serve")

MAX_WAITING = 10_000
"""Starts that wait for the ledger; then the oldest is dropped. As many periods in which payloads were decoded."""

_BATCH = 500
_GATHERING = 0.1
"""Seconds in which more starts arrive before a statement has those so far."""

_PERIOD = 60.0
"""Seconds in which all payloads that a token has decoded have one record."""

_NAMESPACES = 3
_WRITE_TIMEOUT = 15.0
_LAST_WRITES = 5.0
_DELAYS = Backoff(0.5, 15.0)


@dataclass(frozen=True, slots=True)
class _WaitingAccess:
    saga_id: str
    who: str
    outcome: StartOutcome
    at: float


@dataclass(eq=False, slots=True)
class _Period:
    """The payloads that a token has had decoded within a minute. ``namespaces``: those that its requests have named."""

    who: str
    began: float
    namespaces: list[str] = field(default_factory=list[str])
    payloads: int = 0
    written: int = 0
    row: int | None = None

    def add(self, namespace: str, payloads: int) -> None:
        self.payloads += payloads
        if namespace and namespace not in self.namespaces and len(self.namespaces) < _NAMESPACES:
            self.namespaces.append(namespace)


class AccessLog:
    """The records of one process that are not written yet; none in a project without a ledger."""

    def __init__(self, ledger: RunLedger) -> None:
        self._ledger = ledger
        self._starts: collections.deque[_WaitingAccess] = collections.deque()
        self._periods: dict[str, _Period] = {}
        self._changed: dict[_Period, None] = {}
        self._dropped = 0
        self._silent_until = 0.0
        self._wake = asyncio.Event()

    @contextmanager
    def start(self, who: str, saga_id: str | None) -> Iterator[Callable[[StartResult], StartResult]]:
        """Record the start that is made in the block, which passes its result on to what it gets.

        ``saga_id``: the id, if it is known before.
        """
        result: StartResult | None = None

        def started(answer: StartResult) -> StartResult:
            nonlocal result
            result = answer
            return answer

        try:
            yield started
        except UsageError:  # nothing was started, and the id may be one that must not be stored
            raise
        except RefusedError:
            self._add_start(saga_id, who, "refused")
            raise
        except NotClaimed as error:
            self._add_start(error.saga_id, who, "unanswered")
            raise
        except (Exception, asyncio.CancelledError):
            self._add_start(saga_id, who, "unanswered")
            raise
        if result is not None:
            self._add_start(result.id, who, "started" if result.started else "existing")

    def _add_start(self, saga_id: str | None, who: str, outcome: StartOutcome) -> None:
        if not self._ledger.configured or saga_id is None or not fits_guard_key(saga_id):
            return
        if len(self._starts) >= MAX_WAITING:
            self._starts.popleft()
            self._dropped += 1
        self._starts.append(_WaitingAccess(saga_id, who, outcome, time.monotonic()))
        self._wake.set()

    def decoded(self, who: str, namespace: str, payloads: int) -> None:
        """Record that the holder of a token has had payloads decoded. ``namespace``: what the request has said."""
        if not self._ledger.configured or not payloads:
            return
        period, now = self._periods.get(who), time.monotonic()
        if period is None or now - period.began >= _PERIOD:
            if len(self._changed) >= MAX_WAITING:
                del self._changed[next(iter(self._changed))]
                self._dropped += 1
            period = self._periods[who] = _Period(who, now)
        period.add(namespace, payloads)
        self._changed[period] = None
        self._wake.set()

    async def write_forever(self) -> None:
        """Write what is recorded, as soon as the ledger takes it."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(_GATHERING)
            self._wake.clear()
            for delay in _DELAYS:
                try:
                    await self._write()
                    break
                except (SagaError, SQLAlchemyError, OSError, TimeoutError) as error:
                    self._warn(error.message if isinstance(error, SagaError) else driver_message(error))
                await asyncio.sleep(delay)

    async def stop(self, writer: asyncio.Task[None]) -> None:
        """End ``writer``, and write what is left if the ledger takes it soon."""
        await end_tasks([writer])
        with suppress(SagaError, SQLAlchemyError, OSError, TimeoutError):
            async with asyncio.timeout(_LAST_WRITES):
                await self._write()
        if waiting := len(self._starts) + len(self._changed):
            log.warning(
                "%s of starts and decoded values not in the ledger", counted(waiting, "record is", "records are")
            )

    async def _write(self) -> None:
        while self._starts or self._changed:
            async with asyncio.timeout(_WRITE_TIMEOUT):
                await self._write_starts()
                await self._write_periods()
        if self._dropped:
            log.error("%s of starts and decoded values dropped, too many waited for the ledger", self._dropped)
            self._dropped = 0

    async def _write_starts(self) -> None:
        now = time.monotonic()
        part = [self._starts[number] for number in range(min(_BATCH, len(self._starts)))]
        if part:
            accesses = [StartAccess(each.saga_id, each.who, each.outcome, now - each.at) for each in part]
            await record_starts(self._ledger.engine, accesses)
        for start in part:
            if self._starts and self._starts[0] is start:  # not dropped meanwhile
                self._starts.popleft()

    async def _write_periods(self) -> None:
        for period in list(self._changed):
            payloads, age = period.payloads, time.monotonic() - period.began
            names = ", ".join(period.namespaces)
            access = DecodeAccess(period.who, names, payloads, age, period.row)
            period.row = await record_decoding(self._ledger.engine, access)
            if period.payloads == payloads:
                self._changed.pop(period, None)

    def _warn(self, why: str) -> None:
        """At most once a minute: a database may be down for hours."""
        if time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + 60.0
            waiting = counted(len(self._starts) + len(self._changed), "record waits", "records wait")
            log.warning("starts and decoded values are not recorded, %s: %s", waiting, mask(why))


@asynccontextmanager
async def using_access_log(ledger: RunLedger) -> AsyncIterator[AccessLog]:
    """A log that is written to the ledger until the end of the block."""
    access_log = AccessLog(ledger)
    writer = start_background(access_log.write_forever, "the writer of the audit")
    try:
        yield access_log
    finally:
        await access_log.stop(writer)
