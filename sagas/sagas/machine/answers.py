"""What follows when it has become known (or stays unknown) whether a step happened; by why it was asked."""

from __future__ import annotations

from sagas.machine import arguments, backward, by_hand, calls, decisions, forward, resolve
from sagas.machine.facts import Closed, GoBack, PivotFailed, Undo, Verdict
from sagas.machine.plan import is_nested
from sagas.machine.run import Run
from sagas.machine.state import Entry, Purpose


def resolved(run: Run, entry: Entry, purpose: Purpose, verdict: Verdict) -> None:
    """Carry on from the answer to :class:`Resolve`."""
    if purpose == "backward":
        backward.resolved(run, entry, verdict)
    elif (
        entry.decision is not None
        and purpose in ("retry", "end", "pivot")
        and verdict == "unknown"
        and forward.counts_now(run, entry.decision)
    ):
        decisions.decide(run, entry, entry.decision)
    elif run.phase == "backward":
        forward.settle_backward(run, entry)
    elif purpose == "pivot":
        _pivot(run, entry, verdict)
    elif verdict == "done":
        forward.done(run, entry, entry.result)
    elif purpose == "skip":
        by_hand.skipped(run, entry)
    elif purpose == "again":
        decisions.next_generation(run, entry)
    elif purpose == "compensate":
        by_hand.pivot_given_up(run, entry)
    elif verdict == "late":
        run.post(Closed(entry, False))
        run.post(GoBack({**arguments.cause_of(entry), "kind": "late"}, entry))
    elif purpose == "retry":
        _before_repeating(run, entry, verdict)
    elif purpose == "continue" and verdict == "unknown" and _undoable(run, entry):
        run.post(Undo(entry))
    elif purpose in ("continue", "not_done"):
        forward.go_on_without(run, entry)
    elif verdict == "absent":
        forward.ended_resolved(run, entry)
    else:
        # It goes backward at once, if it does: the same question again would learn nothing.
        entry.asked = run.step(entry).on_failure == "compensate"
        entry.state, entry.ended_at = "UNKNOWN", run.now
        forward.failed(run, entry)


def _undoable(run: Run, entry: Entry) -> bool:
    step = run.step(entry)
    return step.compensate is not None or is_nested(step)


def _before_repeating(run: Run, entry: Entry, verdict: Verdict) -> None:
    """`idempotent: false`: only a probe that says absent allows another attempt."""
    if verdict == "absent":
        forward.repeat_after_probe(run, entry)
        return
    step = run.step(entry)
    if step.probe is not None and (forward.unlimited(run, entry) or entry.rounds < step.do.retry.max_attempts):
        resolve.later(run, entry, "retry")
        return
    entry.state, entry.ended_at = "UNKNOWN", run.now
    forward.failed(run, entry)


def _pivot(run: Run, entry: Entry, verdict: Verdict) -> None:
    step = run.step(entry)
    if verdict != "unknown":
        run.unpark(entry)
    if verdict == "done":
        forward.done(run, entry, entry.result)
    elif verdict == "late":
        run.post(PivotFailed(entry, {**arguments.cause_of(entry), "kind": "late"}))
    elif verdict == "absent":
        if calls.asked_once(step) and run.recorded is None and forward.may_repeat(run, entry):
            entry.resolved, entry.state = False, "RUNNING"
            forward.again_later(run, entry, step.do.retry.max_interval)
        else:
            run.post(PivotFailed(entry, arguments.cause_of(entry)))
    elif entry.id in run.parked:
        if step.probe is not None:
            resolve.later(run, entry, "pivot", background=True)
    elif not calls.asked_once(step) and forward.may_repeat(run, entry):
        forward.again_later(run, entry, step.do.retry.max_interval)
    elif calls.asked_once(step) and step.probe is not None and entry.rounds < step.do.retry.max_attempts:
        resolve.later(run, entry, "pivot")
    else:
        run.park(entry, "do", f"nobody can say whether {step.name} happened")
        if step.probe is not None:
            resolve.later(run, entry, "pivot", background=True)


def undone(run: Run, entry: Entry) -> None:
    """The compensation of an entry is closed: going backward the next one's turn comes; alone, the saga goes on."""
    if run.phase == "backward":
        if run.rolling:
            backward.roll(run, entry.step)
    else:
        forward.go_on_without(run, entry)
