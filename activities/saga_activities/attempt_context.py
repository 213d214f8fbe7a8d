"""The circumstances of one attempt, and what an attempt runs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from saga_activities.guard.session import SqlSession

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from dataclasses import replace

from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation

ActionBody: TypeAlias = "Callable[[SqlSession | None], Awaitable[Any]]"
"""An action that runs inside (or, with None, outside) a guarded transaction."""


class ReplyPending(Exception):
    """The attempt goes on without a worker: whoever hears the reply completes it, by the token of the attempt."""


@dataclass(frozen=True)
class AttemptContext:
    """The circumstances of one attempt. Times are seconds since the epoch; ``number`` counts from 1.

    ``saga`` is the saga's name. ``traceparent`` (W3C trace context) goes along with requests to other systems; None:
    nobody traces. ``token`` is the name under which Temporal takes the attempt's end from any process; empty: from
    none but this one.
    """

    number: int
    scheduled_at: float
    deadline: float
    heartbeat: Callable[[Any], None]
    logger: logging.Logger | logging.LoggerAdapter[Any]
    traceparent: str | None = None
    saga: str = ""
    task_token: bytes = b""


# Heartbeats of long attempts: they say how far the work is, and keep the platform from giving it to somebody else.


HEARTBEAT_INTERVAL = 1.0
"""Seconds between two heartbeats."""


@contextlib.asynccontextmanager
async def repeat_heartbeats(attempt: AttemptContext) -> AsyncIterator[AttemptContext]:
    """The same attempt, whose last heartbeat is told again and again while the block runs: also while it waits for the
    guarded transaction of another attempt."""
    told: Any = None

    def heartbeat(details: Any = None) -> None:
        nonlocal told
        told = details
        attempt.heartbeat(details)

    async def beat() -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL)
            attempt.heartbeat(told)

    task = asyncio.create_task(beat())
    try:
        yield replace(attempt, heartbeat=heartbeat)
    finally:
        task.cancel()


# What one attempt was, for those who look on: the metrics, the traces and the log.
#
# They are told and never asked: nothing they do changes an outcome.


@dataclass(slots=True)
class ObservedAttempt:
    """One attempt while it runs.

    ``number`` is the attempt's number over all calls of this operation, from 1. ``outcome`` is set when the attempt
    has ended; it stays None when this worker does not know the action, and when the attempt ``waits`` for a reply,
    which another process will hear. ``traceparent`` (W3C trace context) may be set by a watcher before the action
    runs; requests to other systems carry it.
    """

    saga: str
    invocation: Invocation
    number: int
    outcome: Outcome | None = None
    awaits_reply: bool = False
    traceparent: str | None = None

    @property
    def step(self) -> str:
        """The step's id in the definition: ``reserve`` for the ledger id ``reserve#0``."""
        return self.invocation.entry.partition("#")[0]


AttemptObserver = Callable[[ObservedAttempt], AbstractContextManager[None]]
"""Entered before the attempt and left after it, whether it was answered or cancelled."""
