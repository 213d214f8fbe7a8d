"""What one attempt was, for those who look on: the metrics, the traces and the log.

They are told and never asked: nothing they do changes an outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from sagas.outcomes import Outcome
from sagas.wire import Invocation


@dataclass(slots=True)
class Watched:
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
    waits: bool = False
    traceparent: str | None = None

    @property
    def step(self) -> str:
        """The step's id in the definition: ``reserve`` for the ledger id ``reserve#0``."""
        return self.invocation.step.partition("#")[0]


Watcher = Callable[[Watched], AbstractContextManager[None]]
"""Entered before the attempt and left after it, whether it was answered or cancelled."""
