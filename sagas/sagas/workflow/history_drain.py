"""Continue-as-new of a run with a long history, which needs that nothing is in flight.

A call may take days, so a run does not wait for that without end while it keeps everything else from starting: after a
while it goes on in the same history, and tries again when that is longer by a quarter. Only near Temporal's own limit,
at which it terminates a run, does it wait as long as it takes.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow

from sagas.workflow.limits import history_is_full

MAX_DRAIN = timedelta(seconds=30)
"""Time for what is in flight to end."""


class HistoryDrain:
    """Decides when a run begins to wait until nothing is in flight, and for how long."""

    def __init__(self) -> None:
        self._next_length = 0

    @property
    def is_due(self) -> bool:
        """True if the history is long, and no wait at about this length has been in vain."""
        info = workflow.info()
        if not info.is_continue_as_new_suggested():
            return False
        return self.is_urgent or info.get_current_history_length() >= self._next_length

    @property
    def is_urgent(self) -> bool:
        """True if the history has come close to the limit."""
        return history_is_full()

    def give_up(self) -> None:
        """The wait was in vain."""
        self._next_length = workflow.info().get_current_history_length() * 5 // 4
