"""Determines whether an UNKNOWN step had its effect: by a seal in the guard, or by the author's probe.

A seal is decisive: after it the step has happened or never will. A probe only observes, so its `absent` is accepted
only if the participant sealed the key with its response, or if every attempt ended longer than `settle` ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.definition.model import backoff, is_nested, is_read
from sagas.machine import builtin_actions, calls, failure_reasons, forward, result_rooms, retries
from sagas.machine.corrected_probes import parking_reason, probe_of
from sagas.machine.decisions import apply
from sagas.machine.earlier import effects, unknown_steps
from sagas.machine.entry_ends import leave_to_rollback, mark_nothing_to_undo
from sagas.machine.expressions import evaluation, probe_verdict
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.internal_events import (
    CarryOutDecision,
    CompensateEntry,
    EffectLookedUp,
    LookUpEffect,
    LookupVerdict,
    PivotFailed,
)
from sagas.machine.state import Entry, Flight, LookupPurpose, SagaRun
from sagas.machine.undo import given_up_pivot, rollback
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.saga_view import EntryOperation

_DENIED: tuple[LookupPurpose, ...] = ("compensate", "given_up")
"""An operator says that the effect of an unguarded pivot does not exist."""


def look_up_effect(run: SagaRun, entry: Entry, purpose: LookupPurpose, *, background: bool = False) -> None:
    """Send a seal or a probe. With neither guard nor probe the verdict is `unknown`."""
    step = run.step(entry)
    if is_read(step) or entry.resolved:
        run.post(EffectLookedUp(entry, purpose, "absent"))
    elif is_nested(step) and builtin_actions.has_earlier_child(run, entry):
        builtin_actions.roll_back_child(run, entry, purpose)
    elif is_nested(step):
        run.post(EffectLookedUp(entry, purpose, "unknown"))
    elif step.do.guarded:
        calls.send_call(run, entry, "seal", purpose)
    elif probe_of(run, entry) is not None:
        entry.probe_rounds += 1
        try:
            calls.send_call(run, entry, "probe", purpose, background=background)
        except DefinitionError as error:
            if purpose in _DENIED:
                run.post(EffectLookedUp(entry, purpose, "unknown"))
            else:
                _park_for_definition(run, entry, purpose, str(error))
    else:
        run.post(EffectLookedUp(entry, purpose, "unknown"))


def seal_ended(run: SagaRun, entry: Entry, outcome: Outcome, purpose: LookupPurpose) -> None:
    """Handle the end of a seal. It is retried without limit, because only its row decides."""
    if outcome.kind == "done" and outcome.marker == "sealed":
        _record_verdict(run, entry, purpose, "absent")
    elif outcome.kind == "done" and outcome.marker in ("elsewhere", "confirmed"):
        if purpose == "backward" and effects.is_undo_undecided(run, entry):
            result_rooms.keep_result(run, entry, outcome.result)  # the undo is called again, and may use it
            _record_verdict(run, entry, purpose, "done")
        else:
            _record_verdict(run, entry, purpose, "late")
    elif outcome.kind == "done":
        result_rooms.keep_result(run, entry, outcome.result)
        _record_verdict(run, entry, purpose, "done")
    elif outcome.kind == "late":
        _record_verdict(run, entry, purpose, "late")
    elif outcome.park_reason is not None or (not outcome.retryable and not outcome.infrastructure):
        _park_lookup(run, entry, purpose, outcome)
    elif entry.decision is not None and _decision_takes_over(run, entry.decision, purpose):
        run.post(CarryOutDecision(entry, entry.decision))  # an operator has decided in the meantime
    else:
        _schedule_lookup(run, entry, purpose, retries.longest_interval(run.step(entry).do.retry, outcome))


def earlier_child_ended(run: SagaRun, entry: Entry, outcome: Outcome, purpose: LookupPurpose) -> None:
    """Handle the end of a nested saga that an earlier run has started."""
    if outcome.kind == "done":
        result_rooms.keep_result(run, entry, outcome.result)
        _record_verdict(run, entry, purpose, "done")
    elif outcome.kind != "unknown":
        _record_verdict(run, entry, purpose, "absent")
    else:
        entry.looked_up = True
        run.post(EffectLookedUp(entry, purpose, "unknown"))


def probe_ended(run: SagaRun, entry: Entry, outcome: Outcome, flight: Flight) -> None:
    """Handle the end of a probe."""
    step, purpose = run.step(entry), flight.purpose
    probe = step.probe
    assert probe is not None
    # An operator has decided in the meantime: only a `done` of the probe overrides that decision.
    decided = purpose in _DENIED or (entry.decision is not None and purpose in ("retry", "end", "pivot"))
    if outcome.kind != "done":
        if entry.decision is not None and decided:
            run.post(EffectLookedUp(entry, purpose, "unknown"))
        elif not outcome.counted or not outcome.charged:
            entry.probe_rounds -= 1
            wait = retries.longest_interval(step.do.retry, outcome)
            _schedule_lookup(run, entry, purpose, wait, background=flight.background)
        elif decided:
            run.post(EffectLookedUp(entry, purpose, "unknown"))
        elif outcome.park_reason is not None or (outcome.kind == "failed" and not outcome.retryable):
            _park_lookup(run, entry, purpose, outcome)
        elif outcome.not_started:
            _schedule_lookup(run, entry, purpose, step.do.retry.max_interval, background=flight.background)
        else:
            run.post(EffectLookedUp(entry, purpose, "unknown"))
        return
    try:
        said, result = probe_verdict.probe_verdict(run, entry, probe, outcome)
    except DefinitionError as error:
        if not decided:
            _park_for_definition(run, entry, purpose, str(error))
            return
        said, result = "unknown", None
    if said == "done":
        result_rooms.keep_result(run, entry, result)
        _record_verdict(run, entry, purpose, "done")
    elif said == "absent" and not decided:
        delay = 0.0 if probe.operation.seals else (entry.last_attempt_ended_at or run.now) + step.settle - run.now
        if delay > 0:
            # An attempt that ended within `settle` may still arrive: probe again when it no longer can.
            _schedule_lookup(run, entry, purpose, delay, background=flight.background)
        else:
            _record_verdict(run, entry, purpose, "absent")
    else:
        run.post(EffectLookedUp(entry, purpose, "unknown"))


def _decision_takes_over(run: SagaRun, decision: Mapping[str, Any], purpose: LookupPurpose) -> bool:
    """True unless the decision itself caused this lookup, or the lookup belongs to the other direction of the saga."""
    if run.phase == "backward":
        return purpose == "backward" or decision.get("op") == "undo"
    return purpose in ("retry", "end", "continue", "not_done", "pivot")


def retry_lookup(run: SagaRun, entry: Entry, purpose: LookupPurpose, *, background: bool = False) -> None:
    """Repeat the lookup after a backoff, because the last one was inconclusive."""
    retry = run.step(entry).do.retry
    seconds = retry.max_interval if purpose == "pivot" else backoff(retry, entry.probe_rounds)
    _schedule_lookup(run, entry, purpose, seconds, background=background)


def lookup_timer_fired(run: SagaRun, entry: Entry, flight: Flight) -> None:
    if flight.background:
        look_up_effect(run, entry, flight.purpose, background=True)
    else:
        run.post(LookUpEffect(entry, flight.purpose))


def _record_verdict(run: SagaRun, entry: Entry, purpose: LookupPurpose, verdict: LookupVerdict) -> None:
    """Store the verdict in the entry: what it tells about the effect replaces the outcome."""
    step = run.step(entry)
    if verdict == "done":
        entry.outcome, entry.state, entry.ended_at = "done", "DONE", run.now
        entry.failure_kind, entry.error = "done", None
        if entry.arguments is not None and entry.arguments != entry.override:
            entry.override = None  # an attempt before the correction has made the effect
    elif verdict == "late" and effects.must_be_undone_again(run, entry):
        if purpose == "backward":
            entry.looked_up, verdict = True, "unknown"
    elif verdict == "late":
        entry.outcome, entry.state, entry.resolved, entry.ended_at = "late", "COMPENSATED", True, run.now
        if entry.undo is not None:
            entry.undo.state, entry.undo.ended_at = "DONE", run.now
    elif step.do.guarded or purpose != "retry":
        entry.resolved, entry.ended_at = True, run.now
        if entry.outcome in ("unknown", None):
            mark_nothing_to_undo(entry)
            if entry.undo is not None:
                entry.undo.ended_at = run.now
    run.post(EffectLookedUp(entry, purpose, verdict))


def _schedule_lookup(
    run: SagaRun, entry: Entry, purpose: LookupPurpose, seconds: float, *, background: bool = False
) -> None:
    step = run.step(entry)
    run.start_flight(
        f"{entry.id}~ask",
        "timer",
        entry,
        "seal" if step.do.guarded else "probe",
        purpose,
        seconds=seconds,
        summary=f"probe {step.name} again",
        background=background,
    )


def _park_for_definition(run: SagaRun, entry: Entry, purpose: LookupPurpose, message: str) -> None:
    failure = Failure(evaluation.DEFINITION_FAILURE, message)
    _park_lookup(run, entry, purpose, Outcome("failed", failure=failure, retryable=False))


def _park_lookup(run: SagaRun, entry: Entry, purpose: LookupPurpose, outcome: Outcome) -> None:
    """Rule 10: a lookup that cannot be made waits for an operator."""
    if run.phase == "backward" and purpose != "backward":
        run.post(EffectLookedUp(entry, purpose, "unknown"))  # the rollback looks it up again, and parks its undo
        return
    op: EntryOperation = "undo" if purpose == "backward" else "do"
    message = outcome.park_reason or (
        outcome.failure.message if outcome.failure else "it is unknown whether it took effect"
    )
    if op == "undo" and entry.undo is not None:
        entry.undo.error = outcome.failure.to_json() if outcome.failure else None
    run.park(entry, op, message)


def continue_after_lookup(run: SagaRun, entry: Entry, purpose: LookupPurpose, verdict: LookupVerdict) -> None:
    """Continue after the result of :class:`LookUpEffect`."""
    if purpose == "given_up":
        given_up_pivot.answered(run, entry, verdict)
    elif purpose == "ahead":
        unknown_steps.answered(run, entry, verdict)
    elif purpose == "backward":
        rollback.compensate_after_lookup(run, entry, verdict)
    elif (
        entry.decision is not None
        and purpose in ("retry", "end", "pivot")
        and verdict == "unknown"
        and forward.decision_still_counts(run, entry.decision)
    ):
        apply.carry_out(run, entry, entry.decision)
    elif run.phase == "backward":
        decision = entry.decision
        leave_to_rollback(run, entry)
        if decision is not None and decision.get("op") == "undo" and verdict in ("done", "unknown"):
            apply.carry_out(run, entry, decision)
    elif purpose == "pivot":
        _continue_pivot(run, entry, verdict)
    elif verdict == "done":
        forward.mark_done(run, entry, entry.result)
    elif purpose == "skip":
        apply.skip_entry(run, entry)
    elif purpose == "again" and not (verdict == "late" and entry.outcome == "unknown"):
        apply.start_next_generation(run, entry)
    elif purpose == "compensate":
        apply.give_up_pivot(run, entry)
    elif verdict == "late":
        entry.decision = None
        forward.roll_back_late(run, entry)
    elif purpose == "retry":
        _retry_if_absent(run, entry, verdict)
    elif purpose == "continue" and verdict == "unknown" and _can_be_compensated(run, entry):
        run.post(CompensateEntry(entry))
    elif purpose in ("continue", "not_done"):
        forward.leave_out(run, entry)
    elif verdict == "absent":
        forward.end_without_effect(run, entry)
    else:
        # If rollback follows, it starts at once, and a second lookup would learn nothing new.
        entry.looked_up = run.step(entry).on_failure == "compensate"
        entry.state, entry.ended_at = "UNKNOWN", run.now
        forward.apply_on_failure(run, entry)


def _can_be_compensated(run: SagaRun, entry: Entry) -> bool:
    step = run.step(entry)
    return step.compensate is not None or is_nested(step)


def _retry_if_absent(run: SagaRun, entry: Entry, verdict: LookupVerdict) -> None:
    """`idempotent: false`: only a probe that returns absent allows another attempt."""
    if verdict == "absent":
        forward.retry_after_probe(run, entry)
        return
    step = run.step(entry)
    if probe_of(run, entry) is not None and (
        retries.is_retried_without_limit(run, step, "do") or entry.probe_rounds < step.do.retry.max_attempts
    ):
        retry_lookup(run, entry, "retry")
        return
    entry.state, entry.ended_at = "UNKNOWN", run.now
    forward.apply_on_failure(run, entry)


def _continue_pivot(run: SagaRun, entry: Entry, verdict: LookupVerdict) -> None:
    step = run.step(entry)
    # An answer that the definition cannot read would not be readable after a repetition either.
    has_no_answer = entry.failure_kind == evaluation.DEFINITION_FAILURE
    may_repeat = not has_no_answer and not retries.is_single_attempt(step) and not entry.ahead
    if verdict != "unknown":
        run.unpark(entry)
    if verdict == "done":
        forward.mark_done(run, entry, entry.result)
    elif verdict == "late":
        run.post(PivotFailed(entry, {**failure_reasons.failure_cause(entry), "kind": "late"}))
    elif verdict == "absent":
        if retries.is_single_attempt(step) and run.pending_cause is None and retries.may_retry(run, entry):
            entry.resolved, entry.state, entry.outcome = False, "RUNNING", "unknown"
            retries.schedule_retry(run, entry, step.do.retry.max_interval)
        else:
            run.post(PivotFailed(entry, failure_reasons.failure_cause(entry)))
    elif entry.id in run.parked:
        if probe_of(run, entry) is not None:
            retry_lookup(run, entry, "pivot", background=True)
    elif may_repeat and retries.may_retry(run, entry):
        retries.schedule_retry(run, entry, step.do.retry.max_interval)
    elif not may_repeat and probe_of(run, entry) is not None and entry.probe_rounds < step.do.retry.max_attempts:
        retry_lookup(run, entry, "pivot")
    else:
        unknown = f"it is unknown whether {step.name} took effect"
        reason = failure_reasons.failure_message(entry, "do") if has_no_answer else unknown
        run.park(entry, "do", parking_reason(run, entry, reason))
        if probe_of(run, entry) is not None:
            retry_lookup(run, entry, "pivot", background=True)


def continue_after_compensation(run: SagaRun, entry: Entry) -> None:
    """After an undo: in a rollback, undo the next entry; with `on_failure: continue`, go forward."""
    if run.phase == "backward":
        if run.compensating:
            rollback.compensate_step(run, entry.step)
    else:
        forward.continue_without(run, entry)
