"""The context of one attempt, its heartbeats, and the interface for its observers (metrics, traces, log)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from saga_activities.guard.sql_session import SqlSession

import asyncio
import contextlib
from contextlib import AbstractContextManager
from dataclasses import replace

from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from sagas.text.masked_texts import TextMask, texts_of_attempt

ActionBody: TypeAlias = "Callable[[SqlSession | None], Awaitable[Any]]"
"""An action that runs inside (or, with None, outside) a guarded transaction."""


class ReplyPending(Exception):
    """The attempt continues without a worker: the consumer of the reply completes it by its task token."""


@dataclass(frozen=True)
class AttemptContext:
    """The context of one attempt. Times are seconds since the epoch; ``number`` counts from 1.

    ``saga`` is the saga's name. ``traceparent`` (W3C trace context) is sent with requests to other systems; None: no
    tracing. ``task_token`` is Temporal's token with which any process can complete the attempt; empty: only this
    process can. ``run_id``: the run of the workflow that has made the call.
    """

    number: int
    scheduled_at: float
    deadline: float
    heartbeat: Callable[[Any], None]
    logger: logging.Logger | logging.LoggerAdapter[Any]
    traceparent: str | None = None
    saga: str = ""
    task_token: bytes = b""
    run_id: str = ""


def with_masked_heartbeats(attempt: AttemptContext) -> AttemptContext:
    """The attempt with heartbeats that mask the texts of :func:`sagas.text.masked_texts.masking`."""
    texts = texts_of_attempt()
    if not texts:
        return attempt

    def heartbeat(details: Any = None) -> None:
        attempt.heartbeat(None if details is None else TextMask(texts).shown(details))

    return replace(attempt, heartbeat=heartbeat)


# Heartbeats of long attempts: they report progress, and keep Temporal from handing the attempt to another worker.
HEARTBEAT_INTERVAL = 1.0
"""Seconds between two heartbeats."""


@contextlib.contextmanager
def repeat_heartbeats(attempt: AttemptContext) -> Iterator[AttemptContext]:
    """Repeat the attempt's last heartbeat while the block runs, also while it waits for another attempt's transaction.

    Yields the attempt with a ``heartbeat`` that sets what is repeated. To be used on the event loop.
    """
    loop = asyncio.get_running_loop()
    heartbeat_details: Any = None

    def heartbeat(details: Any = None) -> None:
        nonlocal heartbeat_details
        heartbeat_details = details
        attempt.heartbeat(details)

    def beat() -> None:
        nonlocal timer
        timer = loop.call_later(HEARTBEAT_INTERVAL, beat)
        attempt.heartbeat(heartbeat_details)

    # Not a task: most attempts end before the first repetition, and a task costs more than a timer.
    timer = loop.call_later(HEARTBEAT_INTERVAL, beat)
    try:
        yield replace(attempt, heartbeat=heartbeat)
    finally:
        timer.cancel()


# Observers of attempts: metrics, traces and the log. They never change an outcome.
@dataclass(slots=True)
class ObservedAttempt:
    """One attempt, as its observers see it.

    ``number`` counts from 1 over all calls of the operation. ``outcome`` is set when the attempt has ended; it stays
    None if this worker does not know the action, and if the attempt ``awaits_reply``, which another process receives.
    An observer may set ``traceparent`` (W3C trace context) before the action runs; it is sent with requests to other
    systems.
    """

    saga: str
    invocation: Invocation
    number: int
    outcome: Outcome | None = None
    awaits_reply: bool = False
    traceparent: str | None = None

    @property
    def step(self) -> str:
        """The step's id in the definition: ``reserve`` for the entry id ``reserve#0``."""
        return self.invocation.entry.partition("#")[0]


@dataclass(slots=True)
class ObservedChunk:
    """One attempt of equal calls of several sagas. ``outcomes`` are set when it has ended, in the order of ``calls``.

    None among them: a call that was not attempted, because time ran out.
    """

    calls: Sequence[Invocation]
    number: int
    outcomes: Sequence[Outcome | None] | None = None

    @property
    def saga(self) -> str:
        return self.calls[0].saga or ""

    @property
    def op(self) -> str:
        return self.calls[0].op

    @property
    def step(self) -> str:
        """The step's id in the definition."""
        return self.calls[0].entry.partition("#")[0]


ChunkObserver = Callable[[ObservedChunk], AbstractContextManager[None]]
"""Entered before the attempt of a chunk and exited after it, even if it is cancelled."""

AttemptObserver = Callable[[ObservedAttempt], AbstractContextManager[None]]
"""Entered before the attempt and exited after it, even if it is cancelled."""
