"""The id of the ledger that a worker writes to, with which it marks effects; see `known_ends.py` for what that tells.

No saga waits for the ledger: while the database does not answer, effects are not marked.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from saga_activities.concurrency import Backoff, end_tasks
from saga_workers.ledger.run_ledger import LedgerUnavailable, RunLedger
from saga_workers.runtime.background import start_background
from sagas.settings.masking import mask

log = logging.getLogger("saga.ledger")

_FIRST_WAIT = 2.0
"""Seconds for which a worker that begins waits for the id, so that its first effects have it."""

_DELAYS = Backoff(0.5, 15.0)


class LedgerMark:
    """``id`` is empty until it is known, and without a ledger."""

    def __init__(self) -> None:
        self.id = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self, ledger: RunLedger) -> None:
        """Read the id; in the background if the database does not answer soon."""
        self._task = start_background(partial(self._read, ledger), "the id of the ledger")
        await asyncio.wait({self._task}, timeout=_FIRST_WAIT)

    async def stop(self) -> None:
        if self._task is not None:
            await end_tasks([self._task])

    async def _read(self, ledger: RunLedger) -> None:
        for attempt, delay in enumerate(_DELAYS):
            try:
                self.id = await ledger.identity()
            except LedgerUnavailable as error:
                if attempt == 0:
                    log.warning("effects are not marked with the ledger yet: %s", mask(error.message))
                await asyncio.sleep(delay)
            else:
                return
