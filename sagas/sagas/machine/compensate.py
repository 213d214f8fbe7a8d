"""Undoing one entry: where the guard decides, which action runs, and what its end means (rule 3)."""

from __future__ import annotations

from sagas.machine import arguments, calls, joining, nested
from sagas.machine.arguments import DefinitionFault
from sagas.machine.facts import Undone
from sagas.machine.plan import is_nested
from sagas.machine.retries import interval
from sagas.machine.run import Run
from sagas.machine.state import Entry, Operation
from sagas.outcomes import Outcome


def begin(run: Run, entry: Entry) -> None:
    """Compensate an entry that is, or may be, done."""
    step = run.step(entry)
    if entry.undo is None:
        entry.undo = Operation()
    undo = entry.undo
    entry.state, undo.state = "COMPENSATING", "RUNNING"
    if undo.started_at is None:
        undo.started_at = run.now
    if is_nested(step) and step.compensate is None:
        if entry.id not in run.children:
            run.park(entry, "undo", "no nested saga ever ran here: what a person did instead only a person can undo")
            return
        command = nested.undo_of(run, entry)
        run.depart(command.id, "saga", entry, "undo")
        run.emit(command)
        return
    confirmed = entry.confirm is not None and entry.confirm.state == "DONE"
    if confirmed and step.compensate is not None and step.compensate.confirmed is not None and not step.do.guarded:
        undo.use_confirmed = True
    _ask(run, entry)


def _ask(run: Run, entry: Entry) -> None:
    step, undo = run.step(entry), entry.undo
    assert undo is not None
    mark = calls.mark_first(step, calls.alternate(step, undo)) and not undo.marked
    try:
        calls.send(run, entry, "undo-mark" if mark else "undo")
    except DefinitionFault as error:
        undo.error = {"type": arguments.DEFINITION, "message": str(error), "details": {}}
        run.park(entry, "undo", str(error))


def marked(run: Run, entry: Entry, outcome: Outcome) -> None:
    """The guard where the step ran has decided about an undo whose action lives elsewhere."""
    undo = entry.undo
    assert undo is not None
    if outcome.kind != "done" or outcome.marker == "unknown_effect":
        _guard_trouble(run, entry, outcome)
    elif outcome.marker == "elsewhere":
        undo.marked, undo.arguments = True, None
        if entry.decision is None:
            _ask(run, entry)
        else:
            run.park(entry, "undo", "a person has decided about it")  # the decision is carried out by the caller
    else:
        ended(run, entry, outcome, None, counted=False)


def _confirmed_elsewhere(run: Run, entry: Entry) -> bool:
    step = run.step(entry)
    action = step.compensate.confirmed if step.compensate else None
    return action is not None and action.connection != step.do.connection


def _guard_trouble(run: Run, entry: Entry, outcome: Outcome) -> None:
    undo = entry.undo
    assert undo is not None
    if outcome.failure is not None:
        undo.error = outcome.failure.to_json()
    hopeless = outcome.kind in ("rejected", "late") or (not outcome.retryable and not outcome.infrastructure)
    if outcome.marker == "unknown_effect":
        run.park(entry, "undo", "the guard does not know this effect")
    elif outcome.parks is not None or hopeless:
        run.park(entry, "undo", outcome.parks or why(entry))
    else:
        # The mark has no effect of its own, so it may be asked for as long as it takes.
        _later(run, entry, run.step(entry).do.retry.max_interval)


def ended(run: Run, entry: Entry, outcome: Outcome, attempts: int | None, *, counted: bool = True) -> None:
    """A compensation has ended."""
    undo, step = entry.undo, run.step(entry)
    assert undo is not None
    before = undo.made
    if counted:
        retry = step.do.retry if step.compensate is None else calls.alternate(step, undo).retry
        undo.made, undo.attempts = joining.counted(undo.made, attempts, undo.attempts, outcome, retry)
        if joining.hides_attempts(outcome, attempts, retry):
            undo.made, undo.tries_from = undo.made + 1, undo.tries_from + 1
    if outcome.kind != "done" and outcome.failure is not None:
        undo.error = outcome.failure.to_json()
    if outcome.marker == "unknown_effect":
        run.park(entry, "undo", "the guard does not know this effect")
    elif outcome.kind == "done":
        _done(run, entry, outcome)
    elif outcome.parks is not None:
        run.park(entry, "undo", outcome.parks)
    elif outcome.kind == "late":
        run.park(entry, "undo", "the guard refuses this compensation: it comes too late")
    elif entry.decision is not None:
        run.park(entry, "undo", why(entry))  # the decision is carried out by the caller
    elif is_nested(step) and step.compensate is None:
        run.park(entry, "undo", why(entry))
    else:
        _failed(run, entry, outcome, before)


def _done(run: Run, entry: Entry, outcome: Outcome) -> None:
    undo = entry.undo
    assert undo is not None
    if outcome.marker == "confirmed" and not undo.use_confirmed and _confirmed_elsewhere(run, entry):
        undo.marked, undo.use_confirmed, undo.arguments, undo.override = True, True, None, None
        _ask(run, entry)
        return
    if outcome.marker == "confirmed":
        run.park(entry, "undo", "the step is confirmed, and nothing undoes a confirmed effect (compensate.confirmed)")
        return
    undo.ended_at, undo.error, undo.arguments, undo.override = run.now, None, None, None
    entry.ended_at = run.now
    if outcome.marker == "nothing_to_undo":
        entry.state, undo.state, entry.resolved = "NOTHING_TO_UNDO", "NOTHING_TO_UNDO", True
    else:
        entry.state, undo.state = "COMPENSATED", "DONE"
    entry.decision = None
    run.post(Undone(entry))


def _failed(run: Run, entry: Entry, outcome: Outcome, before: int) -> None:
    step, undo = run.step(entry), entry.undo
    assert undo is not None
    action = calls.alternate(step, undo)
    if outcome.not_started:
        _later(run, entry, action.retry.max_interval)
        return
    if outcome.kind == "failed" and not outcome.retryable:
        # Rule 10: bad arguments are a bug; no alternate mends it, a person does.
        run.park(entry, "undo", why(entry))
        return
    if outcome.infrastructure:
        _later(run, entry, action.retry.max_interval)
        return
    harmless = joining.joined(action, outcome, before) in ("rejected", "failed")
    if harmless:
        if not undo.use_confirmed and step.compensate and undo.alternate + 1 < len(step.compensate.alternates):
            undo.alternate += 1
            undo.made, undo.tries_from, undo.arguments, undo.override = 0, 0, None, None
            _ask(run, entry)
        else:
            run.park(entry, "undo", why(entry))
    elif undo.made - undo.tries_from < action.retry.max_attempts:
        _later(run, entry, interval(action.retry, undo.made))
    else:
        run.park(entry, "undo", why(entry))


def _later(run: Run, entry: Entry, seconds: float) -> None:
    name = run.step(entry).name
    run.depart(f"{entry.id}~undo-retry", "timer", entry, "undo", seconds=seconds, summary=f"retry ↩ undo {name}")


def again(run: Run, entry: Entry) -> None:
    """Its retry timer has fired."""
    if entry.undo is not None:
        entry.state, entry.undo.state = "COMPENSATING", "RUNNING"
    _ask(run, entry)


def why(entry: Entry) -> str:
    error = entry.undo.error if entry.undo else None
    return f"{error['type']}: {error['message']}" if error else "the compensation has not succeeded"
