"""Calls that have their outcome from another process: the reply to a request, or the callback of one.

No worker holds such an attempt while it waits, so only the run itself sees how long the wait lasts and how it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from sagas.protocol.messages import Call
from sagas.protocol.outcomes import Outcome


@dataclass(slots=True)
class AwaitedReply:
    """A call with all of its attempts. ``began_at``: seconds since the epoch; of a callback for which an earlier run of
    the chain has waited already, when its request was accepted. ``outcome``: None until the call has ended, and for
    good if the next run goes on with it.
    """

    call: Call
    began_at: float
    outcome: Outcome | None = None


ReplyObserver = Callable[[AwaitedReply], AbstractContextManager[None]]
"""Entered in the task of the call before its first attempt, also in a replay."""


def unobserved(awaited: AwaitedReply) -> AbstractContextManager[None]:
    return nullcontext()
