"""Holds back attempts while an operator has paused their connection, or all sagas of their name.

An attempt that is held back is not made and does not count: the saga repeats it later. So nothing that a pause meets is
decided by it, and a cancel or a deadline takes effect as usual.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sagas.builtins.callbacks import CALLBACK_ACTION
from sagas.builtins.messaging import REPLY_PROBE, REQUEST
from sagas.builtins.spark import RECONCILE, SPARK
from sagas.errors import SagaError
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import CLOSE_NESTED, NOTIFICATION_PREFIX, Invocation
from sagas.protocol.standing_pause import StandingPause, held_outcome

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

    ``connection_of`` returns the connection of a Python action, ``enclosing_names`` the names of the sagas in which the
    saga with an id is nested; ``outbox`` is the connection of requests. While the ledger does not answer, what was read
    last counts: no saga waits for the ledger.
    """

    def __init__(
        self,
        read: ReadPauses,
        connection_of: Callable[[str], str | None],
        enclosing_names: EnclosingNames,
        outbox: str | None = None,
    ) -> None:
        self._read = read
        self._connection_of = connection_of
        self._enclosing_names = enclosing_names
        self._outbox = outbox
        self._pauses: Sequence[StandingPause] = ()
        self._read_at: float | None = None
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
            self._failed = False
        except (SagaError, TimeoutError) as error:
            if not self._failed:  # once, not at every attempt
                why = error.message if isinstance(error, SagaError) else "no answer in time"
                log.warning("standing pauses not read, those read before still hold: %s", why)
            self._failed = True
        self._read_at = time.monotonic()

    async def hold(self, invocation: Invocation, saga: str, attempt: int) -> Outcome | None:
        """The outcome of an attempt that is held back; None if it may be made."""
        if invocation.action == CALLBACK_ACTION or invocation.entry.startswith(NOTIFICATION_PREFIX):
            return None  # the answer to a call that was made before the pause, or a notification
        if invocation.at_most_once and attempt > 1:
            return None  # no call is made: an earlier attempt may have had its effect
        pauses = await self.current()
        if not pauses:
            return None
        needed = {("saga", saga), *(("connection", name) for name in self._connections(invocation))}
        if any(pause.kind == "saga" for pause in pauses):
            needed |= {("saga", name) for name in await self._enclosing_names(invocation.saga_id)}
        pause = next((pause for pause in pauses if (pause.kind, pause.name) in needed), None)
        return None if pause is None else held_outcome(pause, attempt, _interval(pause))

    def _connections(self, invocation: Invocation) -> set[str]:
        names = self._connections_of(invocation.action, invocation.arguments)
        guard = invocation.guard
        if guard is not None:
            names.add(guard.connection)
            if isinstance(guard.confirmed, tuple):
                names |= self._connections_of(*guard.confirmed)
        return names

    def _connections_of(self, action: str, arguments: Mapping[str, Any]) -> set[str]:
        if action == CLOSE_NESTED:
            return set(arguments["connections"])
        if action in ("http", "sql"):
            return {name for name in (arguments.get("connection"),) if isinstance(name, str)}
        if action.partition(".")[0] in (SPARK, RECONCILE):
            return set(_named_connections(arguments))
        name = self._outbox if action in (REQUEST, REPLY_PROBE) else self._connection_of(action)
        return set() if name is None else {name}


def _named_connections(arguments: Any) -> list[str]:
    """The connections that inputs and outputs of a Spark job, or the sides of a comparison, name."""
    if isinstance(arguments, Mapping):
        own = [value for name, value in arguments.items() if name == "connection" and isinstance(value, str)]
        return own + [name for value in arguments.values() for name in _named_connections(value)]
    if isinstance(arguments, list | tuple):
        return [name for value in arguments for name in _named_connections(value)]
    return []


def _interval(pause: StandingPause) -> float:
    so_far = time.time() - datetime.fromisoformat(pause.at).timestamp()
    return min(max(so_far / 10, _SHORTEST_INTERVAL), _LONGEST_INTERVAL)
