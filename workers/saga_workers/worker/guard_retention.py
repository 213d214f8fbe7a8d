"""Retention of guard rows: purges sagas that are over for good, so that the guard tables do not grow forever.

Every `saga worker` does this at its start and then hourly. Two workers at once are harmless: a watermark only rises,
and rows that one has deleted the other does not find.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError
from temporalio.service import RPCError

from saga_activities.connections import DatabaseConnections
from saga_activities.guard import watermark
from saga_activities.locks.tables import request_table
from saga_workers.location.locator import Locator
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.logs import fields
from saga_workers.temporal.server_time import ServerTime
from saga_workers.worker.retention_horizon import retention_horizon
from sagas.definition.model import Definition
from sagas.errors import SagaError

log = logging.getLogger("saga.upkeep")

CLEANUP_INTERVAL = 3600.0
"""Seconds between two rounds."""

HORIZON_MARGIN = 3600.0
"""Seconds the watermark stays below the oldest saga, because visibility lags and clocks differ."""

_COMMIT_MARGIN = 60.0
"""Seconds a transaction may outlast its attempt: for its COMMIT, and for the recheck after a lost acknowledgement."""


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """Result of one round for one database: the number of purged ``sagas``."""

    connection: str
    sagas: int


class GuardRetention:
    """Raises the watermark of each database of a project and deletes the rows below it.

    ``retention``: seconds for which a finished saga is kept at least. ``longest_transaction`` gives the seconds for
    which an attempt that has read the old watermark may still run. ``locks``: the connection with the lock tables.
    """

    def __init__(
        self,
        locator: Locator,
        databases: DatabaseConnections,
        *,
        retention: float = watermark.RETENTION,
        longest_transaction: Callable[[], float] = lambda: _COMMIT_MARGIN,
        locks: str | None = None,
    ) -> None:
        self._locator = locator
        self._databases = databases
        self._retention = retention
        self._longest_transaction = longest_transaction
        self._locks = locks
        self._time = ServerTime(locator.temporal)

    async def run_forever(self) -> None:
        """One round now and one every hour. An error is logged, and the next round tries again."""
        while True:
            await self.run_once()
            await asyncio.sleep(CLEANUP_INTERVAL)

    async def run_once(self) -> list[CleanupResult]:
        """One round over all databases; errors are logged."""
        now = await self._time.now()
        if now is None:
            return []
        try:
            oldest = await retention_horizon(self._locator, before=now - self._retention + HORIZON_MARGIN)
        except RPCError as error:
            log.warning("guard tables not purged, Temporal does not answer: %s", error.message)
            return []
        except SagaError as error:
            log.warning("guard tables not purged, the ledger does not answer: %s", error.message)
            return []
        floor = None if oldest is None else oldest - HORIZON_MARGIN
        answers = await asyncio.gather(*(self._clean(name, floor, now) for name in self._databases.names()))
        return [answer for answer in answers if answer is not None]

    async def _clean(self, name: str, floor: float | None, now: float) -> CleanupResult | None:
        try:
            engine = self._databases.engine(name)
            sagas = await watermark.clean_up(
                engine,
                oldest_open=floor,
                now=now,
                longest_transaction=self._longest_transaction(),
                retention=self._retention,
                more_tables=(request_table.name,) if name == self._locks else (),
            )
            done = CleanupResult(name, sagas)
        except (SagaError, SQLAlchemyError, OSError) as error:
            log.warning("guard table not purged: %s", driver_message(error), extra=fields(connection=name))
            return None
        if sagas:
            log.info("guard table purged, %d finished sagas deleted", sagas, extra=fields(connection=name))
        return done


def longest_attempt(definitions: Iterable[Definition]) -> float:
    """Seconds the longest attempt of any step may take, with a margin for its COMMIT."""
    timeouts = [0.0]
    for definition in definitions:
        for step in definition.steps:
            operations = [step.do, step.confirm, *(step.compensate.alternates if step.compensate else ())]
            operations.append(step.compensate.confirmed if step.compensate else None)
            timeouts += [operation.timeout for operation in operations if operation is not None]
    return max(timeouts) + _COMMIT_MARGIN
