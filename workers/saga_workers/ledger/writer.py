"""Writes the rows of a worker's sagas to the ledger, in the background: no saga ever waits for it.

While the database does not answer the rows wait in memory, within limits; those that are lost with the worker are
written by others, see :mod:`saga_workers.reconcile.missing_rows`.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.concurrency import Backoff, end_tasks
from saga_activities.guard.database_errors import classify_database_error
from saga_activities.ledger import claims
from saga_activities.ledger.records import RunRecord
from saga_activities.ledger.rows import make_record
from saga_workers.runtime.background import start_background
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.logs import fields
from sagas.protocol.payloads import compress_state, input_digest
from sagas.settings.masking import mask
from sagas.text.shortening import counted

log = logging.getLogger("saga.ledger")

MAX_WAITING_ROWS = 10_000
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Above either limit the oldest row is dropped."""

_BATCH_ROWS = 100
_BATCH_BYTES = 4 * 1024 * 1024
_WRITE_TIMEOUT = 15.0
"""Seconds for one statement; a database that hangs would hold the rows back without a word in the log."""

_DELAYS = Backoff(0.5, 15.0)


class LedgerMetrics:
    """The metrics of the ledger of one worker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.rows = Counter(
            "saga_ledger_rows_total",
            "Rows for the ledger: written, refused by the database, or dropped because too many waited.",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("written", "refused", "dropped"):
            self.rows.labels(outcome)  # shown at zero: a counter that first appears at 1 hides that step from rate()
        self.waiting = Gauge("saga_ledger_waiting_rows", "Rows that are not written yet.", registry=registry)


@dataclass(frozen=True, slots=True)
class ObservedState:
    """A saga in a state that belongs into the ledger.

    ``document``: its view as JSON. ``labels``: None for an undo, which has none of its own. ``at``: seconds since the
    epoch, by Temporal's clock. ``snapshot``: the machine from which it can be undone; it must not change any more.
    ``root_start``: that of the origin of a nested saga.
    """

    saga_id: str
    document: Mapping[str, Any]
    labels: Mapping[str, str] | None
    at: float
    input: Any
    snapshot: Mapping[str, Any] | None = None
    root_start: str = ""

    def to_record(self) -> RunRecord | None:
        return make_record(
            self.document,
            saga_id=self.saga_id,
            labels=self.labels,
            updated_at=datetime.fromtimestamp(self.at, UTC),
            input_digest=input_digest(self.input),
            machine=None if self.snapshot is None else compress_state(self.snapshot),
            root_start=self.root_start,
        )


class LedgerWriter:
    """The queue of one worker. ``add`` may be called from any thread; everything else on the event loop."""

    def __init__(self, metrics: LedgerMetrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._observed: collections.deque[ObservedState] = collections.deque()
        self._dropped = 0
        self._waiting: dict[tuple[str, datetime], RunRecord] = {}
        self._bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._silent_until = 0.0

    def add(self, state: ObservedState) -> None:
        """Write this state soon; of one saga only the latest state is written."""
        with self._lock:
            if len(self._observed) >= MAX_WAITING_ROWS:
                self._observed.popleft()
                self._dropped += 1
            self._observed.append(state)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    def start(self, engine: AsyncEngine) -> None:
        """Write to this database from now on."""
        self._loop = asyncio.get_running_loop()
        self._task = start_background(partial(self._run, engine), "the writer of the ledger")

    async def stop(self, grace: timedelta) -> None:
        """Write what is left, for at most ``grace``."""
        assert self._task is not None
        self._wake.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace.total_seconds()):
                while (self._observed or self._waiting) and not self._task.done():
                    await asyncio.wait({self._task}, timeout=0.02)
        await end_tasks([self._task])
        if waiting := len(self._observed) + len(self._waiting):
            log.warning(
                "%s not in the ledger; saga reconcile --repair writes them", counted(waiting, "row is", "rows are")
            )

    async def _run(self, engine: AsyncEngine) -> None:
        self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._take_observed()
            while self._waiting:
                batch = self._next_batch()
                await self._write_retrying(engine, batch)
                await self._take_observed()

    async def _take_observed(self) -> None:
        with self._lock:
            observed = list(self._observed)
        if not observed:
            return
        # In a thread, because compression of many states would hold up the heartbeats of attempts.
        records = await asyncio.to_thread(lambda: [_to_record(state) for state in observed])
        for record in records:
            if record is not None:
                self._bytes += record.size - (earlier.size if (earlier := self._waiting.pop(record.key, None)) else 0)
                self._waiting[record.key] = record
        with self._lock:
            for state in observed:
                if self._observed and self._observed[0] is state:  # not dropped for newer ones meanwhile
                    self._observed.popleft()
        self._drop_oldest()
        self._metrics.waiting.set(len(self._waiting))

    def _drop_oldest(self) -> None:
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        while len(self._waiting) > MAX_WAITING_ROWS or self._bytes > MAX_WAITING_BYTES:
            self._forget(next(iter(self._waiting.values())))
            dropped += 1
        if dropped:
            self._metrics.rows.labels("dropped").inc(dropped)
            shown = counted(dropped, "row is", "rows are")
            log.error("%s dropped, too many wait for the ledger; saga reconcile --repair writes them", shown)

    def _forget(self, record: RunRecord) -> None:
        """Remove a row from the queue, unless a later state of its saga has replaced it."""
        if self._waiting.get(record.key) is record:
            del self._waiting[record.key]
            self._bytes -= record.size

    def _next_batch(self) -> list[RunRecord]:
        batch: list[RunRecord] = []
        size = 0
        for record in self._waiting.values():
            if batch and (len(batch) == _BATCH_ROWS or size + record.size > _BATCH_BYTES):
                break
            batch.append(record)
            size += record.size
        return batch

    async def _write_retrying(self, engine: AsyncEngine, batch: Sequence[RunRecord]) -> None:
        for delay in _DELAYS:
            try:
                async with asyncio.timeout(_WRITE_TIMEOUT):
                    await claims.record(engine, batch)
            except Exception as error:
                classified = classify_database_error(error)
                if classified is None:
                    raise
                if classified.infrastructure:
                    self._warn(driver_message(error), len(self._waiting))
                    await asyncio.sleep(delay)
                    await self._take_observed()
                    batch = [
                        record for record in batch if self._waiting.get(record.key) is record
                    ] or self._next_batch()
                    continue
                if len(batch) > 1:  # one of them is refused: the others must not wait for it
                    for record in batch:
                        await self._write_retrying(engine, [record])
                    return
                context = fields(saga=batch[0].saga, saga_id=batch[0].saga_id)
                log.error("row refused by the ledger's database: %s", driver_message(error), extra=context)
                self._metrics.rows.labels("refused").inc()
            else:
                self._metrics.rows.labels("written").inc(len(batch))
            for record in batch:
                self._forget(record)
            self._metrics.waiting.set(len(self._waiting))
            return

    def _warn(self, message: str, waiting: int) -> None:
        """At most once a minute: a database may be down for hours."""
        if time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + 60.0
            log.warning("the ledger is not written, %s: %s", counted(waiting, "row waits", "rows wait"), mask(message))


def _to_record(state: ObservedState) -> RunRecord | None:
    record = state.to_record()
    if record is None:
        log.warning("not in the ledger: the id is too long", extra=fields(saga_id=state.saga_id))
    return record
