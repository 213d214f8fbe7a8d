"""Upkeep of the guards: forgets sagas that are over for good, so that the guard's tables do not grow for ever.

It runs inside every `saga worker`, at its start and then hourly. Two workers at once do no harm: a watermark only
rises, and what one has deleted the other does not find.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError
from temporalio.client import Client
from temporalio.service import RPCError

from saga_activities.connections import Connections
from saga_activities.guard import watermark
from saga_activities.guard.errors import classify
from saga_workers.oldest import oldest_needed
from sagas.definition.model import Definition
from sagas.errors import SagaError

log = logging.getLogger("saga.upkeep")

PERIOD = 3600.0
"""Seconds between two rounds."""

MARGIN = 3600.0
"""Seconds the watermark stays below the oldest saga: visibility lags behind, and clocks differ."""

_LEAST_WAIT = 60.0
"""Seconds. A transaction may outlive its attempt by its COMMIT and by the reading again after a lost one."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What one round did to one database: ``sagas`` forgotten, ``mark`` the watermark (seconds since the epoch)."""

    connection: str
    sagas: int
    mark: float


class Upkeep:
    """Raises the watermark of every database of a project and deletes below it.

    ``retention`` (seconds) is how long a finished saga is remembered at least. ``longest_transaction`` (seconds) is
    how long an attempt that has read the old watermark may still be at work.
    """

    def __init__(
        self,
        client: Client,
        databases: Connections,
        *,
        retention: float = watermark.RETENTION,
        longest_transaction: float = _LEAST_WAIT,
    ) -> None:
        self._client = client
        self._databases = databases
        self._retention = retention
        self._longest_transaction = longest_transaction

    async def run_for_ever(self) -> None:
        """A round now and one every hour. Trouble is one line in the log, and the next round tries again."""
        while True:
            await self.run_once()
            await asyncio.sleep(PERIOD)

    async def run_once(self) -> list[Forgotten]:
        """One round over all databases. What stands in its way is in the log."""
        now = time.time()
        try:
            oldest = await oldest_needed(self._client, before=now - self._retention + MARGIN)
        except RPCError as error:
            log.warning("the guards were not cleaned up, because Temporal did not answer: %s", error.message)
            return []
        floor = None if oldest is None else oldest - MARGIN
        answers = await asyncio.gather(*(self._clean(name, floor, now) for name in self._databases.names()))
        return [one for one in answers if one is not None]

    async def _clean(self, name: str, floor: float | None, now: float) -> Forgotten | None:
        try:
            engine = self._databases.engine(name)
            sagas = await watermark.clean_up(
                engine,
                oldest_open=floor,
                now=now,
                longest_transaction=self._longest_transaction,
                retention=self._retention,
            )
            done = Forgotten(name, sagas, await watermark.read(engine))
        except (SagaError, SQLAlchemyError, OSError) as error:
            trouble = None if isinstance(error, SagaError) else classify(error)
            log.warning("the guard of %s was not cleaned up: %s", name, trouble.message if trouble else error)
            return None
        if sagas:
            log.info("the guard of %s forgot %d sagas that ended long ago", name, sagas)
        return done


def longest_attempt(definitions: Iterable[Definition]) -> float:
    """Seconds the longest attempt of any step may take, and a margin for its COMMIT."""
    timeouts = [0.0]
    for definition in definitions:
        for step in definition.steps:
            operations = [step.do, step.confirm, *(step.compensate.alternates if step.compensate else ())]
            operations.append(step.compensate.confirmed if step.compensate else None)
            timeouts += [operation.timeout for operation in operations if operation is not None]
    return max(timeouts) + _LEAST_WAIT
