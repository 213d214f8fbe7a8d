"""The ends of timers: of the whole saga, of a step that waits, and of the delay before an attempt."""

from __future__ import annotations

from sagas.machine import builtin_actions, forward, notify, repetition, task_budget
from sagas.machine.cancel import external_cause
from sagas.machine.internal_events import RequestRollback
from sagas.machine.locking import locks
from sagas.machine.state import SagaRun
from sagas.machine.undo import savepoints
from sagas.protocol.messages import TimerFired


def timer_fired(run: SagaRun, event: TimerFired) -> None:
    """Handle the end of a timer: of a wait, of a delay before an attempt, or of the whole saga."""
    if event.id == task_budget.PAUSE:
        run.paused = False
        return
    if event.id in run.timers:
        _saga_timer_fired(run, event.id)
        return
    flight, entry = run.flight_of(event.id)
    if flight is None or entry is None or flight.fires_at is None:
        return
    run.end_flight(flight)
    if flight.kind == "wait":
        forward.attempt_ended(run, entry, builtin_actions.wait_timer_fired(run, entry), 1)
        return
    repetition.repeat(run, entry, flight)


def _saga_timer_fired(run: SagaRun, id: str) -> None:
    """Handle a timer of the whole saga: its deadline, or the warning before it."""
    del run.timers[id]
    if id == savepoints.TIMER:
        savepoints.run_again(run)
    elif id in locks.TIMERS:
        locks.timer_fired(run, id)
    elif id == "warn_after":
        run.overdue = True
        notify.notify_milestone(run, "overdue")
    else:
        run.post(RequestRollback(external_cause("deadline", "Deadline", "the deadline has passed", {})))
