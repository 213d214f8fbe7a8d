"""Finding out whether an UNKNOWN step took effect: by a seal in the guard, or by the author's probe.

A seal decides: after it the step has happened or never will. A probe only tells, so its `absent` is believed when the
participant sealed the key while answering, or when every attempt ended longer ago than `settle`.
"""

from __future__ import annotations

from sagas.machine import arguments, calls
from sagas.machine.arguments import DefinitionFault
from sagas.machine.facts import Decide, Resolve, Resolved, Verdict
from sagas.machine.plan import is_nested, is_read
from sagas.machine.retries import interval
from sagas.machine.run import Run
from sagas.machine.state import Entry, EntryOp, Flight, Purpose
from sagas.outcomes import Failure, Outcome


def begin(run: Run, entry: Entry, purpose: Purpose, *, background: bool = False) -> None:
    """Ask. Where nobody can be asked the answer is `unknown`."""
    step = run.step(entry)
    if is_read(step) or entry.resolved:
        run.post(Resolved(entry, purpose, "absent"))
    elif is_nested(step):
        run.post(Resolved(entry, purpose, "unknown"))
    elif step.do.guarded:
        calls.send(run, entry, "seal", purpose)
    elif step.probe is not None:
        entry.rounds += 1
        try:
            calls.send(run, entry, "probe", purpose, background=background)
        except DefinitionFault as error:
            _definition(run, entry, purpose, str(error))
    else:
        run.post(Resolved(entry, purpose, "unknown"))


def sealed(run: Run, entry: Entry, outcome: Outcome, purpose: Purpose) -> None:
    """A seal has ended. It is asked without limit, because only its row decides."""
    if outcome.kind == "done" and outcome.marker == "sealed":
        _answer(run, entry, purpose, "absent")
    elif outcome.kind == "done":
        entry.result = outcome.result
        _answer(run, entry, purpose, "done")
    elif outcome.kind == "late":
        _answer(run, entry, purpose, "late")
    elif outcome.parks is not None or (not outcome.retryable and not outcome.infrastructure):
        _park(run, entry, purpose, outcome)
    elif entry.decision is not None and _may_decide(run, purpose):
        run.post(Decide(entry, entry.decision))  # a person decided meanwhile
    else:
        _later(run, entry, purpose, run.step(entry).do.retry.max_interval)


def probed(run: Run, entry: Entry, outcome: Outcome, flight: Flight) -> None:
    """A probe has ended."""
    step, purpose = run.step(entry), flight.purpose
    probe = step.probe
    assert probe is not None
    # A person decided meanwhile: only a `done` wins over that, and anything else leaves it to the decision.
    decided = entry.decision is not None and purpose in ("retry", "end", "pivot")
    if outcome.kind != "done":
        if decided:
            run.post(Resolved(entry, purpose, "unknown"))
        elif outcome.parks is not None or (outcome.kind == "failed" and not outcome.retryable):
            _park(run, entry, purpose, outcome)
        elif outcome.not_started:
            _later(run, entry, purpose, step.do.retry.max_interval, background=flight.background)
        else:
            run.post(Resolved(entry, purpose, "unknown"))
        return
    try:
        said, result = arguments.probed(run, entry, probe, outcome)
    except DefinitionFault as error:
        if not decided:
            _definition(run, entry, purpose, str(error))
            return
        said, result = "unknown", None
    if said == "done":
        entry.result = result
        _answer(run, entry, purpose, "done")
    elif said == "absent" and not decided:
        rest = 0.0 if probe.operation.seals else (entry.last_end or run.now) + step.settle - run.now
        if rest > 0:
            # An attempt that ended a moment ago may still arrive: ask again when it no longer can.
            _later(run, entry, purpose, rest, background=flight.background)
        else:
            _answer(run, entry, purpose, "absent")
    else:
        run.post(Resolved(entry, purpose, "unknown"))


def _may_decide(run: Run, purpose: Purpose) -> bool:
    """A person's decision can take over: it is not what asks, and it belongs to the direction the saga goes."""
    if run.phase == "backward":
        return purpose == "backward"
    return purpose in ("retry", "end", "continue", "not_done", "pivot")


def later(run: Run, entry: Entry, purpose: Purpose, *, background: bool = False) -> None:
    """Ask again after a while, because the last answer said nothing."""
    retry = run.step(entry).do.retry
    seconds = retry.max_interval if purpose == "pivot" else interval(retry, entry.rounds)
    _later(run, entry, purpose, seconds, background=background)


def timer_fired(run: Run, entry: Entry, flight: Flight) -> None:
    if flight.background:
        begin(run, entry, flight.purpose, background=True)
    else:
        run.post(Resolve(entry, flight.purpose))


def _answer(run: Run, entry: Entry, purpose: Purpose, verdict: Verdict) -> None:
    """Write the knowledge into the entry: a seal that lost or a probe that says done sets the outcome to done."""
    step = run.step(entry)
    if verdict == "done":
        entry.outcome, entry.state, entry.ended_at = "done", "DONE", run.now
        entry.word, entry.error = "done", None
    elif verdict == "late":
        entry.outcome, entry.state, entry.resolved, entry.ended_at = "late", "COMPENSATED", True, run.now
        if entry.undo is not None:
            entry.undo.state, entry.undo.ended_at = "DONE", run.now
    elif step.do.guarded or purpose != "retry":
        entry.resolved, entry.ended_at = True, run.now
        if entry.outcome in ("unknown", None):
            entry.state = "NOTHING_TO_UNDO"
        if entry.undo is not None and entry.outcome in ("unknown", None):
            entry.undo.state, entry.undo.ended_at = "NOTHING_TO_UNDO", run.now
    run.post(Resolved(entry, purpose, verdict))


def _later(run: Run, entry: Entry, purpose: Purpose, seconds: float, *, background: bool = False) -> None:
    step = run.step(entry)
    run.depart(
        f"{entry.id}~ask",
        "timer",
        entry,
        "seal" if step.do.guarded else "probe",
        purpose,
        seconds=seconds,
        summary=f"ask again about {step.name}",
        background=background,
    )


def _definition(run: Run, entry: Entry, purpose: Purpose, sentence: str) -> None:
    failure = Failure(arguments.DEFINITION, sentence)
    _park(run, entry, purpose, Outcome("failed", failure=failure, retryable=False))


def _park(run: Run, entry: Entry, purpose: Purpose, outcome: Outcome) -> None:
    """Rule 10: a probe that cannot even be asked needs a person."""
    op: EntryOp = "undo" if purpose == "backward" else "do"
    sentence = outcome.parks or (outcome.failure.message if outcome.failure else "nobody can say whether it happened")
    if op == "undo" and entry.undo is not None:
        entry.undo.error = outcome.failure.to_json() if outcome.failure else None
    run.park(entry, op, sentence)
