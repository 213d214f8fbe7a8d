"""One line in the log for every attempt somebody may want to know of."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from saga_activities.watching import Watched

log = logging.getLogger("saga.step")

_WORDS = {
    "rejected": "said no",
    "failed": "failed, nothing happened",
    "unknown": "ended without an answer",
    "late": "came too late and was refused",
}


@contextmanager
def log_attempt(watched: Watched) -> Iterator[None]:
    """Watches one attempt; see :data:`saga_activities.watching.Watcher`.

    A business no is news, trouble is a warning. What went well is told only for the undo (a plain log of a healthy
    system stays quiet); at DEBUG everything is told.
    """
    try:
        yield
    finally:
        invocation, outcome = watched.invocation, watched.outcome
        context: dict[str, Any] = {
            "saga": watched.saga,
            "saga_id": invocation.saga_id,
            "step": invocation.step,
            "op": invocation.op,
            "attempt": watched.number,
        }
        if watched.waits:
            log.debug("%s: waits for the reply", invocation.action, extra={"context": context})
        elif outcome is None:
            log.warning("%s is not served by this worker", invocation.action, extra={"context": context})
        elif outcome.kind == "done":
            level = logging.INFO if invocation.op == "undo" else logging.DEBUG
            words = (outcome.marker or "done").replace("_", " ")
            log.log(level, "%s: %s", invocation.action, words, extra={"context": context})
        else:
            failure = outcome.failure
            said = f": {failure.type}: {failure.message}" if failure is not None else ""
            level = logging.INFO if outcome.kind == "rejected" else logging.WARNING
            context["outcome"] = outcome.kind
            log.log(level, "%s %s%s", invocation.action, _WORDS[outcome.kind], said, extra={"context": context})
