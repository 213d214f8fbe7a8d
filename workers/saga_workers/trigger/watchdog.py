"""Ends a process in which a handler blocks the event loop or does not return, so that the next process goes on.

The process that is started then counts the attempts of the record (`delivery.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import sys
import time
from collections.abc import Iterator

from saga_workers.runtime.logs import fields

log = logging.getLogger("saga.trigger")

USUAL_TIMEOUT = 30.0
MARGIN = 2.0
"""Seconds that a handler has after its timeout, which a responsive one never needs."""
PATIENCE = 10
"""How many times its timeout a thread may take that cannot be interrupted, while it may be harmless."""
_INTERVAL = 0.5
_EXIT_CODE = 1


class Watchdog:
    """One for a process. ``longest``: the longest timeout of a handler that runs on the event loop, in seconds.

    It does nothing before :meth:`run`.
    """

    def __init__(self) -> None:
        self.longest = USUAL_TIMEOUT
        self._alone: float | None = None
        self._calls: dict[object, tuple[float, str, str]] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                self._arm()
                self._end_overdue()
                await asyncio.sleep(_INTERVAL)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def alone(self, timeout: float) -> Iterator[None]:
        """Note that the only handler of the process has this timeout."""
        self._alone = timeout
        try:
            yield
        finally:
            self._alone = None

    @contextlib.contextmanager
    def thread(self, group: str, record: str, timeout: float) -> Iterator[None]:
        """Note that a thread handles a record, and may take ``timeout`` seconds."""
        call = object()
        self._calls[call] = (time.monotonic() + timeout, group, record)
        try:
            yield
        finally:
            del self._calls[call]

    def _arm(self) -> None:
        # A timer of C: a handler may keep the interpreter lock, so that no thread of Python runs.
        timeout = self.longest if self._alone is None else self._alone
        faulthandler.dump_traceback_later(timeout + MARGIN, exit=True, file=sys.__stderr__ or 2)

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for end, group, record in list(self._calls.values()):
            if now > end:
                about = fields(group=group, record=record)
                log.error("the handler of this record does not return, so the process ends", extra=about)
                logging.shutdown()
                faulthandler.dump_traceback(file=sys.__stderr__ or 2)
                os._exit(_EXIT_CODE)
