"""Forward attempts of a step: making them, what their ends mean, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.machine import arguments, budget, calls, joining, nested, waits
from sagas.machine.arguments import DefinitionFault
from sagas.machine.commands import Record
from sagas.machine.facts import Closed, Commit, Confirm, Decide, Failed, GoBack, PivotFailed, Resolve
from sagas.machine.plan import is_nested, is_read
from sagas.machine.retries import interval
from sagas.machine.run import Run
from sagas.machine.state import Entry, Operation
from sagas.outcomes import Failure, Outcome, OutcomeKind


def begin(run: Run, entry: Entry) -> None:
    """Make a forward attempt. Rule 1: the compensation is registered before the attempt is scheduled."""
    step = run.step(entry)
    if run.phase == "backward":
        return  # going backward starts no attempt and no item
    entry.state, entry.resolved = "RUNNING", False  # whatever was known, this attempt may have an effect
    if entry.started_at is None:
        entry.started_at = run.now
    _register(run, entry)
    try:
        if step.do.uses == "require":
            attempt_ended(run, entry, waits.require(run, entry), 1)
        elif step.do.uses == "wait":
            outcome = waits.begin(run, entry)
            if outcome is not None:
                attempt_ended(run, entry, outcome, 1)
        elif is_nested(step):
            nested.begin(run, entry)
        else:
            calls.send(run, entry, "do")
    except DefinitionFault as error:
        attempt_ended(run, entry, arguments.fault(error), 0)


def _register(run: Run, entry: Entry) -> None:
    step = run.step(entry)
    if step.compensate is not None and entry.undo is None:
        entry.undo = Operation()
    if step.confirm is not None and entry.confirm is None:
        entry.confirm = Operation()


def attempt_ended(run: Run, entry: Entry, outcome: Outcome, attempts: int | None) -> None:
    """A forward call has ended. What it says goes into the joined outcome; the phase decides how it goes on."""
    step = run.step(entry)
    before = entry.made
    retry = calls.retry_of(step)
    entry.made, entry.attempts = joining.counted(entry.made, attempts, entry.attempts, outcome, retry)
    murky = joining.hides_attempts(outcome, attempts, retry) and not is_read(step)
    if murky:
        # Perhaps one more than known: no longer alone, though it does not count against the retries.
        entry.made, entry.tries_from = entry.made + 1, entry.tries_from + 1
    entry.last_end = run.now
    uncounted = outcome.not_started or not outcome.counted
    entry.uncounted = entry.uncounted + 1 if uncounted else 0
    if outcome.failure is not None and outcome.kind != "done":
        entry.error = outcome.failure.to_json()
        if uncounted:
            entry.error["details"]["uncounted"] = entry.uncounted
    elif outcome.parks is not None:
        entry.error = Failure("Parked", outcome.parks).to_json()
    if outcome.not_started and entry.made == 0:
        entry.outcome = None
    elif murky and entry.outcome != "done":
        entry.outcome = "unknown"
    elif not outcome.not_started:
        entry.outcome = "done" if entry.outcome == "done" else _join(run, entry, outcome, before)
        entry.word = "definition" if outcome.failure and outcome.failure.type == arguments.DEFINITION else outcome.kind
    if outcome.kind == "done":
        done(run, entry, outcome.result)
    elif outcome.kind == "late":
        _late(run, entry)
    elif entry.decision is not None and counts_now(run, entry.decision):
        run.post(Decide(entry, entry.decision))
    elif run.phase == "backward":
        settle_backward(run, entry)
    elif uncounted and not _gate_closed(run, entry):
        again_later(run, entry, step.do.retry.max_interval)
    elif outcome.parks is not None:
        run.park(entry, "do", outcome.parks)
    elif step.pivot:
        _pivot_ended(run, entry, outcome, before)
    elif calls.asked_once(step) and outcome.kind == "unknown":
        run.post(Resolve(entry, "retry"))
    elif run.committed and step.on_failure == "compensate":
        _committed_trouble(run, entry, outcome)
    elif calls.asked_once(step) and outcome.retryable and outcome.kind == "failed" and may_repeat(run, entry):
        again_later(run, entry, interval(step.do.retry, entry.made))
    else:
        ended(run, entry)


def _join(run: Run, entry: Entry, outcome: Outcome, before: int) -> OutcomeKind:
    step = run.step(entry)
    if is_read(step) or is_nested(step):
        return outcome.kind
    return joining.joined(step.do, outcome, before, step.execution)


def _gate_closed(run: Run, entry: Entry) -> bool:
    """A recorded cancel or deadline lets no new attempt of the pivot start."""
    return run.recorded is not None and run.step(entry).pivot


def ended(run: Run, entry: Entry) -> None:
    """No more attempts. An unguarded UNKNOWN is asked about first; then on_failure decides."""
    step = run.step(entry)
    entry.state = calls.STATE_OF[entry.outcome or "failed"]
    entry.ended_at = run.now
    if entry.outcome == "unknown" and not step.do.guarded and step.probe is not None and not is_read(step):
        run.post(Resolve(entry, "end"))
    else:
        run.post(Failed(entry))


def may_repeat(run: Run, entry: Entry) -> bool:
    """The step's own retries allow another attempt; a person's retry starts the count anew."""
    retry = run.step(entry).do.retry
    if entry.made - entry.tries_from >= retry.max_attempts:
        return False
    since = entry.tries_since if entry.tries_since is not None else entry.started_at
    return retry.give_up_after is None or since is None or run.now - since < retry.give_up_after


def unlimited(run: Run, entry: Entry) -> bool:
    """Past the commit point a step is tried for as long as it takes, unless its `on_failure` says otherwise."""
    return run.committed and run.step(entry).on_failure == "compensate"


def repeat_after_probe(run: Run, entry: Entry) -> None:
    """A probe said absent: the participant may be asked again, if the retries allow it."""
    retry = run.step(entry).do.retry
    if unlimited(run, entry):
        again_later(run, entry, retry.max_interval)
    elif may_repeat(run, entry):
        again_later(run, entry, interval(retry, entry.made))
    else:
        entry.resolved = True
        ended_resolved(run, entry)


def ended_resolved(run: Run, entry: Entry) -> None:
    """The retries have ended, and it is known that nothing happened."""
    if entry.outcome == "unknown":
        entry.state = "NOTHING_TO_UNDO"
    entry.ended_at = run.now
    run.post(Failed(entry))


def again_later(run: Run, entry: Entry, seconds: float) -> None:
    name = run.step(entry).name
    run.depart(f"{entry.id}~retry", "timer", entry, "do", seconds=seconds, summary=f"retry {name}")


def _committed_trouble(run: Run, entry: Entry, outcome: Outcome) -> None:
    """Past the commit point there is only forward: again and again, or a person when trying again cannot help."""
    if outcome.kind == "rejected" or (outcome.kind == "failed" and not outcome.retryable):
        run.park(entry, "do", why(entry))
        return
    if not run.trouble_shown:
        run.trouble_shown = True
        run.emit(Record("COMMITTED", entry.id, None))
    again_later(run, entry, run.step(entry).do.retry.max_interval)


def _late(run: Run, entry: Entry) -> None:
    """Rule 16: it has been undone behind our back (a reused id, a reset). Never counted as success."""
    if run.committed:
        entry.resolved = True
        run.park(entry, "do", "the step had already been undone when this attempt came")
        return
    entry.state, entry.resolved, entry.ended_at = "COMPENSATED", True, run.now
    if entry.undo is not None:
        entry.undo.state, entry.undo.ended_at = "DONE", run.now
    cause = {**arguments.cause_of(entry), "kind": "late"}
    if run.phase == "backward":
        settle_backward(run, entry)
    elif run.step(entry).pivot:
        run.post(PivotFailed(entry, cause))
    else:
        run.post(Closed(entry, False))
        run.post(GoBack(cause, entry))


def _pivot_ended(run: Run, entry: Entry, outcome: Outcome, before: int) -> None:
    """Rule 5: only the pivot's row decides. What the last attempt said is only the reason."""
    step = run.step(entry)
    if not step.do.guarded and _first_and_only(entry, outcome, before):
        if calls.asked_once(step) and outcome.kind == "failed" and outcome.retryable and run.recorded is None:
            again_later(run, entry, interval(step.do.retry, entry.made))
            return
        entry.resolved = True
    if step.on_failure == "park" and run.recorded is None:
        run.park(entry, "do", why(entry))
    elif entry.resolved or (entry.made == 0 and outcome.kind != "unknown"):
        run.post(PivotFailed(entry, arguments.cause_of(entry)))
    else:
        run.post(Resolve(entry, "pivot"))


def _first_and_only(entry: Entry, outcome: Outcome, before: int) -> bool:
    return outcome.kind in ("rejected", "failed") and joining.alone(outcome, before) and entry.made <= 1


def done(run: Run, entry: Entry, result: object) -> None:
    """The effect is there, exactly once."""
    step = run.step(entry)
    entry.result, run.kept_bytes = budget.within(run.kept_bytes, result)
    entry.outcome, entry.error = "done", None
    entry.state, entry.ended_at, entry.word = "DONE", run.now, "done"
    entry.resolved = False
    if entry.undo is not None and entry.undo.state == "NOTHING_TO_UNDO":
        entry.undo = None  # a probe had found nothing, then a person made it by hand: now there is something
    _register(run, entry)  # a person's `done` may come before any attempt
    if entry.decision is not None:
        # The row wins over a person's decision.
        entry.decision = None
    if not _needs_arguments(run, entry):
        entry.arguments = None
    if run.phase == "backward":
        settle_backward(run, entry)
    elif step.pivot:
        run.post(Closed(entry, True))
        run.post(Commit())
    elif run.committed and step.confirm is not None and run.plan.commits_late(step.id):
        run.post(Confirm(entry))
    else:
        run.post(Closed(entry, True))


def _needs_arguments(run: Run, entry: Entry) -> bool:
    """Short forms take the argument values of the forward call, frozen."""
    step = run.step(entry)
    later = [step.confirm] if step.confirm else []
    if step.compensate is not None:
        later += [*step.compensate.alternates, *([step.compensate.confirmed] if step.compensate.confirmed else [])]
    return any(action.with_ is None for action in later)


def counts_now(run: Run, decision: Mapping[str, Any]) -> bool:
    """Going backward, of what a person decided before only `done` still matters: there is an effect to undo."""
    return run.phase != "backward" or decision["decision"] == "done"


def settle_backward(run: Run, entry: Entry) -> None:
    """Going backward, an entry whose attempts have ended is left to its turn."""
    if entry.state in ("RUNNING", "PARKED"):
        known_absent = entry.resolved and entry.outcome == "unknown"
        entry.state = "NOTHING_TO_UNDO" if known_absent else calls.STATE_OF[entry.outcome or "failed"]
    if entry.outcome is None:
        entry.outcome = "failed"
    entry.decision = None
    entry.ended_at = entry.ended_at or run.now


def failed(run: Run, entry: Entry) -> None:
    """`on_failure` of a step whose retries have ended."""
    step = run.step(entry)
    if run.phase == "backward":
        settle_backward(run, entry)
    elif step.on_failure == "park":
        run.park(entry, "do", why(entry))
    elif step.on_failure == "continue":
        unsure = entry.outcome == "unknown" and not entry.resolved and not is_read(step)
        if unsure:
            run.post(Resolve(entry, "not_done" if run.committed else "continue"))
        else:
            go_on_without(run, entry)
    elif run.committed:
        run.park(entry, "do", why(entry))
    else:
        run.record(entry).stopped = True
        run.post(Closed(entry, False))
        run.post(GoBack(arguments.cause_of(entry), entry))


def go_on_without(run: Run, entry: Entry) -> None:
    """Rule 11: as if the step had not run."""
    entry.continued, entry.result = True, None
    entry.ended_at = run.now
    if run.committed:
        run.not_done.append(entry.id)
    run.post(Closed(entry, True))


def why(entry: Entry) -> str:
    """One sentence about what is stuck."""
    if entry.error is None:
        return f"{entry.id} has not succeeded"
    return f"{entry.error['type']}: {entry.error['message']}"
