"""The share of one workflow task that the evaluation of expressions may take."""

from __future__ import annotations

from sagas.input_limits import MAX_TASK_STEPS
from sagas.machine.state import SagaRun
from sagas.protocol.messages import StartTimer

PAUSE, PAUSE_SECONDS = "pause", 0.001
"""The timer that continues the work."""


def must_pause(run: SagaRun) -> bool:
    """True if the rest of the work is left to a timer, which is started."""
    if not run.work.exceeds(MAX_TASK_STEPS) or not run.may_pause:
        return False
    if not run.paused:
        run.paused = True
        run.emit(StartTimer(PAUSE, PAUSE_SECONDS, "spread the evaluation of expressions over several tasks"))
    return True
