"""Works off what the parts of the machine tell each other, until the saga waits, or is over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.machine import answers, backward, commit, compensate, decisions, forward, notify, resolve, scheduling
from sagas.machine.arguments import DefinitionFault
from sagas.machine.facts import (
    Begin,
    Closed,
    Commit,
    Confirm,
    ConfirmClosed,
    Decide,
    Fact,
    Failed,
    GoBack,
    PivotFailed,
    Resolve,
    Resolved,
    Roll,
    Undo,
    Undone,
)
from sagas.machine.run import Run
from sagas.machine.state import Entry


def settle(run: Run) -> None:
    """Work off what the parts told each other, until nothing more follows from it."""
    while True:
        while run.agenda:
            _handle(run, run.agenda.popleft())
        if run.finished or run.started_at is None:
            return
        scheduling.advance(run)
        backward.roll_when_settled(run)
        if not run.agenda and not _conclude(run):
            return


def _conclude(run: Run) -> bool:
    """The end, the commit point, or PARKED. True when more may follow from it."""
    if run.phase == "backward":
        if run.rolling and run.undo_open == 0:
            backward.finish(run)
            return False
    elif run.steps_open == 0:
        if not run.committed:
            run.post(Commit())
            return True
        if run.confirm_steps_open == 0 and not run.parked:
            commit.finish(run)
            if run.finished:
                return False
    working = "COMPENSATING" if run.phase == "backward" else "COMMITTED" if run.committed else "RUNNING"
    if run.parked and run.busy == 0:
        if run.state != "PARKED":
            run.change("PARKED", next(iter(run.parked)))
            notify.reached(run, "parked")
    elif run.state == "PARKED":
        run.change(working)
    return False


def _handle(run: Run, fact: Fact) -> None:
    match fact:
        case Begin(entry):
            forward.begin(run, entry)
        case Failed(entry):
            forward.failed(run, entry)
        case Closed(entry, ok):
            scheduling.closed(run, entry, ok)
        case Resolve(entry, purpose):
            resolve.begin(run, entry, purpose)
        case Resolved(entry, purpose, verdict):
            answers.resolved(run, entry, purpose, verdict)
        case GoBack(cause, entry):
            backward.request(run, cause, entry)
        case PivotFailed(entry, cause):
            backward.pivot_failed(run, entry, cause)
        case Roll(step):
            backward.roll(run, step)
        case Undo(entry):
            compensate.begin(run, entry)
        case Undone(entry):
            answers.undone(run, entry)
        case Commit():
            commit.commit(run)
        case Confirm(entry):
            commit.begin(run, entry)
        case ConfirmClosed(entry):
            commit.closed(run, entry)
        case Decide(entry, decision):
            _decide(run, entry, decision)


def _decide(run: Run, entry: Entry, decision: Mapping[str, Any]) -> None:
    try:
        decisions.decide(run, entry, decision)
    except DefinitionFault as error:
        decisions.catch(run, entry, error)
