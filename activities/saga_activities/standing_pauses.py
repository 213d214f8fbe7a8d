"""Holds back attempts while an operator has paused their connection, or all sagas of their name.

An attempt that is held back is not made and does not count: the saga repeats it later. So nothing that a pause meets is
decided by it, and a cancel or a deadline takes effect as usual.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence

from saga_activities.needed_connections import NeededConnections, makes_call
from sagas.errors import SagaError
from sagas.protocol.held_outcomes import held_outcome
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from sagas.protocol.standing_pause import StandingPause

log = logging.getLogger("saga.pause")

MAX_AGE = 1.0
"""Seconds for which what was read counts: a pause and its end are known after this time, at one query per second."""

_READ_TIMEOUT = 2.0
_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 1.0, 60.0
"""Seconds until an attempt asks again: a tenth of the pause so far, within these limits."""

ReadPauses = Callable[[], Awaitable[Sequence[StandingPause]]]
EnclosingNames = Callable[[str], Awaitable[Collection[str]]]


class StandingPauses:
    """The standing pauses as this process knows them.

    ``enclosing_names`` returns the names of the sagas in which the saga with an id is nested. While the ledger does not
    answer, what was read last counts: no saga waits for the ledger.
    """

    def __init__(
        self,
        read: ReadPauses,
        connections: NeededConnections,
        enclosing_names: EnclosingNames,
    ) -> None:
        self._read = read
        self._connections = connections
        self._enclosing_names = enclosing_names
        self._pauses: Sequence[StandingPause] = ()
        self._read_at: float | None = None
        self._known_at = 0.0
        self._failed = False
        self._lock = asyncio.Lock()

    async def current(self) -> Sequence[StandingPause]:
        """The pauses, as they were at most :data:`MAX_AGE` ago if the ledger answers."""
        async with self._lock:
            if self._read_at is None or time.monotonic() - self._read_at >= MAX_AGE:
                await self._refresh()
            return self._pauses

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(_READ_TIMEOUT):
                self._pauses = await self._read()
            self._known_at = time.monotonic()
            self._failed = False
        except (SagaError, TimeoutError) as error:
            if not self._failed:  # once, not at every attempt
                why = error.message if isinstance(error, SagaError) else "no answer in time"
                log.warning("standing pauses not read, those read before still hold: %s", why)
            self._failed = True
        self._read_at = time.monotonic()

    async def hold(self, invocation: Invocation, saga: str, attempt: int) -> Outcome | None:
        """The outcome of an attempt that is held back; None if it may be made."""
        if not makes_call(invocation, attempt):
            return None
        pauses = await self.current()
        if not pauses:
            return None
        needed = {("saga", saga), *(("connection", name) for name in self._connections.of(invocation))}
        if any(pause.kind == "saga" for pause in pauses):
            needed |= {("saga", name) for name in await self._enclosing_names(invocation.saga_id)}
        pause = next((pause for pause in pauses if (pause.kind, pause.name) in needed), None)
        return None if pause is None else held_outcome(pause, attempt, self._interval(pause))

    def _interval(self, pause: StandingPause) -> float:
        return hold_interval(pause.age + time.monotonic() - self._known_at)


def hold_interval(so_far: float) -> float:
    """Seconds until an attempt asks again that is held back; ``so_far``: the seconds of the pause."""
    return min(max(so_far / 10, _SHORTEST_INTERVAL), _LONGEST_INTERVAL)
