"""Delivers the rows of one database, in one process at a time: reads them, starts or signals, and deletes them.

A row is deleted only after Temporal has what it asks for. A process that dies in between leaves the row, and the next
one delivers it again, which changes nothing: a saga is started once for each id, and takes the first signal of a name.
So the lease, which keeps the order of rows with equal keys, need not be safe against a process that was frozen.
"""

from __future__ import annotations

import asyncio
import logging
import time

from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.concurrency import Backoff, end_tasks, wait_first
from saga_workers.enqueued.deliveries import DATABASE_ERRORS, Deliveries
from saga_workers.enqueued.enqueued_metrics import EnqueuedMetrics
from saga_workers.enqueued.enqueued_table import WAITING_QUERY, EnqueuedRow, EnqueuedTable
from saga_workers.enqueued.row_delivery import DeliveryUnavailable, RowDelivery, RowRefused
from saga_workers.runtime.background import start_background
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.lease import RENEWAL_INTERVAL, Leases, hold_lease
from saga_workers.runtime.logs import fields
from saga_workers.runtime.process_identity import process_identity
from saga_workers.runtime.wakeup import Wakeup
from saga_workers.trigger.retry import WaitLog, error_message
from sagas.errors import RefusedError, SagaError
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

log = logging.getLogger("saga.enqueued")

LEASE = -1
"""The number of the lease in ``saga_relay_lease``; those of the shards of an outbox begin at 0."""

ATTEMPTS = 5
"""Failed attempts after which a row is refused. What does not answer is asked without limit."""

KEPT = 7 * 86_400.0
"""Seconds for which a dropped row is kept."""

_MAX_REASON = 1_000
_PURGE_INTERVAL = 3_600.0
_READ_AGAIN_AFTER = 1.0
_BACKOFF = Backoff(0.2, 5.0)


class Deliverer:
    """Delivers the rows of the database of one connection until ``stop``; with ``once``, until none is left that can be
    delivered. ``trouble``: why rows wait at present; empty if they do not.
    """

    def __init__(
        self,
        connection: str,
        engine: AsyncEngine,
        delivery: RowDelivery,
        metrics: EnqueuedMetrics,
        stop: asyncio.Event,
        *,
        once: bool = False,
    ) -> None:
        self.connection, self.trouble = connection, ""
        self._table, self._delivery, self._metrics = EnqueuedTable(engine), delivery, metrics
        self._leases, self._wakeup = Leases(engine, process_identity()), Wakeup(engine)
        self._stop, self._once = stop, once
        self._fields, self._waits = fields(connection=connection), WaitLog()

    async def run(self, grace: float) -> None:
        """Deliver; after the stop deliveries under way have ``grace`` seconds to end.

        Raises SagaError with ``once``, if something does not answer.
        """
        background = [
            start_background(self._wakeup.run_forever, f"the wake-up of saga_enqueued of {self.connection}"),
            start_background(self._purge_forever, f"the maintenance of saga_enqueued of {self.connection}"),
        ]
        backoff = iter(_BACKOFF)
        try:
            while not self._stop.is_set():
                try:
                    lease = await self._leases.acquire(LEASE)
                    if lease is None and self._once and not await self._table.heads((), (), 1):
                        return
                    if lease is not None:
                        async with hold_lease(self._leases, lease) as lost:
                            await self._deliver_rows(lost, grace)
                        backoff = iter(_BACKOFF)
                        if self._once:
                            return
                except DATABASE_ERRORS as error:
                    self._set_trouble(f"the database does not answer: {driver_message(error)}")
                    if self._once:
                        raise SagaError(f"{self.connection}: {self.trouble}") from error
                    await self._sleep(next(backoff))
                    continue
                await self._sleep(RENEWAL_INTERVAL)  # another process has the lease
        finally:
            await end_tasks(background)
            await self._delivery.close()

    async def _deliver_rows(self, lost: asyncio.Event, grace: float) -> None:
        """Deliver until the stop, or until the lease is lost. Raises the errors of the database."""
        work = Deliveries(self._table, self._deliver, self._count, self._set_trouble)
        try:
            while not self._stop.is_set() and not lost.is_set():
                if await work.take_rows():
                    continue
                if work.held.rows:
                    await work.wait_progress(self._stop, lost)
                elif self._once:
                    return
                else:
                    await self._wait_for_rows(lost)
            if not lost.is_set():
                await work.finish(grace)
        finally:
            await work.end()

    async def _wait_for_rows(self, lost: asyncio.Event) -> None:
        self._set_trouble("")
        await wait_first(self._stop.wait(), lost.wait(), self._wakeup.wait(0, WAITING_QUERY))

    async def _sleep(self, seconds: float) -> None:
        await wait_first(self._stop.wait(), timeout=seconds)

    async def _purge_forever(self) -> None:
        while True:
            try:
                await self._table.purge(KEPT)
            except DATABASE_ERRORS as error:
                log.warning("dropped rows not deleted: %s", driver_message(error), extra=self._fields)
            await asyncio.sleep(_PURGE_INTERVAL)

    def _set_trouble(self, reason: str) -> None:
        self.trouble = reason
        if reason:
            self._waits.log(reason, self._fields)

    def _count(self, outcome: str, seconds: float) -> None:
        self._metrics.count(self.connection, outcome, seconds)

    async def _deliver(self, row: EnqueuedRow, read_at: float) -> str | None:
        """Deliver one row, however often that has to be tried; returns its outcome, and None if it stays.

        ``read_at``: when it was read, by the clock of the process.
        """
        failures, waits, noted = 0, 0, ""
        while True:
            # An operator may have dropped it since.
            if time.monotonic() - read_at > _READ_AGAIN_AFTER and not await self._table.read([row.id]):
                return "dropped"
            try:
                outcome = await self._delivery.deliver(row)
            except RowRefused as error:
                return await self._refuse(row, str(error))
            except DeliveryUnavailable as error:
                reason = shorten(printable_line(str(error)), _MAX_REASON)
                self._set_trouble(reason)
                if reason != noted:
                    noted = reason
                    await self._table.note([row.id], reason)
                if self._once:
                    raise SagaError(f"{self.connection}: {reason}") from error
                delay = _BACKOFF.delay(waits)
                waits += 1
            except Exception as error:  # noqa: BLE001 - it becomes the reason of the row
                failures += 1
                # A saga may have ended just while it was looked at, so a refusal is asked for twice.
                if failures >= (2 if isinstance(error, RefusedError) else ATTEMPTS):
                    return await self._refuse(row, error_message(error))
                delay = _BACKOFF.delay(failures - 1)
            else:
                self._set_trouble("")
                return outcome
            await self._sleep(delay)
            if self._stop.is_set():
                return None

    async def _refuse(self, row: EnqueuedRow, reason: str) -> str:
        text = shorten(printable_line(reason), _MAX_REASON)
        await self._table.refuse(row, text)
        about = fields(connection=self.connection, row=row.id, saga=row.saga_id or row.saga)
        log.warning("enqueued row is REFUSED: %s", text, extra=about)
        return "refused"
