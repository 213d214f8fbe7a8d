"""Forward execution: which steps may start, how many items run in parallel, forward attempts and their results."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sagas.definition.model import StepDefinition, backoff, has_effect, is_nested, is_read
from sagas.machine import (
    attempt_counts,
    builtin_actions,
    calls,
    commit,
    corrections,
    failure_reasons,
    result_rooms,
    retries,
    standing_pauses,
    task_budget,
)
from sagas.machine.compensations import is_always_undone
from sagas.machine.corrected_probes import parking_reason, probe_of
from sagas.machine.earlier import decisions, effects, operators
from sagas.machine.earlier.doubts import believed_promises, count_earlier_run, doubt
from sagas.machine.entry_ends import STATE_BY_OUTCOME, leave_to_rollback, mark_nothing_to_undo, register_operations
from sagas.machine.expressions import arguments, context, evaluation, expression_fields
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.failure_reasons import failure_message
from sagas.machine.internal_events import (
    CarryOutDecision,
    CompensateEntry,
    ConfirmEntry,
    EntrySettled,
    ForwardFailed,
    LookUpEffect,
    PivotFailed,
    RequestRollback,
    StartAttempt,
)
from sagas.machine.locking import locks, row_locks
from sagas.machine.state import Entry, OperationState, SagaRun, StepRecord
from sagas.protocol import outcomes
from sagas.protocol.messages import RecordState
from sagas.protocol.outcomes import Failure, Outcome, OutcomeKind
from sagas.text.shortening import counted


def start_ready_steps(run: SagaRun) -> None:
    """Start every ready step, in the order of the definition."""
    if run.phase == "backward" or not run.ready:
        return
    # While a recorded rollback waits for the pivot's outcome, no other step starts.
    if run.pending_cause is not None:
        return
    held: list[str] = []
    while run.ready and not task_budget.must_pause(run):
        ready, run.ready = sorted(run.ready, key=run.plan.order.__getitem__), []
        for id in ready:
            if task_budget.must_pause(run):
                run.ready.append(id)
            elif run.is_cut_off(id):
                _skip_step(run, run.steps[id])
            elif locks.hold_back(run, id) or run.must_wait_for_commit(id):
                held.append(id)
            else:
                # A skipped or empty step settles at once and may make others ready.
                _start_step(run, run.steps[id])
    run.ready += held


def _start_step(run: SagaRun, record: StepRecord) -> None:
    step = run.plan.steps[record.id]
    record.begun = True
    try:
        if (why := decisions.why_left_out(run, step)) is not None:
            _skip_step(run, record, why)
            return
        if (why := decisions.why_doubtful(run, step)) is not None:
            _park_doubtful_step(run, record, why)
            return
        is_told = operators.are_about(run, step.id)
        is_decided = effects.exist(run, step.id) or decisions.was_asked(run, step) or is_told
        if not is_decided and not expression_fields.should_run(run, step):
            _skip_step(run, record)
            return
        if step.for_each is None or is_told:
            run.post(StartAttempt(run.new_entry(record, None)))
            record.running += 1
            return
        items = _items_of(run, step)
        result_rooms.keep_items(run, record, items)
    except DefinitionError as error:
        entry = run.new_entry(record, None)
        record.running += 1
        if step.for_each is None and has_effect(step) and not is_nested(step):
            count_earlier_run(run, entry, step.do)
        attempt_ended(run, entry, evaluation.definition_outcome(error), 0)
        return
    record.results = [None] * len(items)
    if not items:
        entry = run.new_entry(record, None)
        # DONE without items: nothing to confirm and nothing to undo.
        entry.state, entry.outcome, entry.resolved = "DONE", "done", True
        entry.started_at = entry.ended_at = run.now
        entry.undo = OperationState() if step.compensate is not None else None
        _settle_step(run, record)
        return
    start_items(run, record)


def _items_of(run: SagaRun, step: StepDefinition) -> list[Any]:
    """The list of a `for_each`: that with which an earlier run has begun, because its items have their keys."""
    items = effects.earlier_items(run, step.id)
    if items is None:
        items = expression_fields.for_each_items(run, step)
    recorded = effects.recorded_entries(run, step.id)
    if recorded > len(items):
        earlier, now = counted(recorded, "item"), counted(len(items), "item")
        raise DefinitionError(f"{step.id}.for_each: an earlier run has begun {earlier}, and the list has {now} now")
    return items


def restart_step(run: SagaRun, record: StepRecord) -> None:
    """Evaluate `if` and `for_each` again after an operator's retry."""
    override = record.entries[0].override
    record.entries.clear()
    record.running = 0
    _start_step(run, record)
    if record.items is None:
        record.entries[0].override = override


def _park_doubtful_step(run: SagaRun, record: StepRecord, why: str) -> None:
    """Let an operator decide about a step that an earlier run may have left out, or called."""
    entry = run.new_entry(record, None)
    record.running += 1
    step = run.plan.steps[record.id]
    if step.for_each is None and has_effect(step) and not is_nested(step):
        register_operations(run, entry)
        doubt(run, entry)
    run.park(entry, "do", why)


def _skip_step(run: SagaRun, record: StepRecord, why: str | None = None) -> None:
    """Leave the step out. ``why``: for another reason than its condition."""
    entry = run.new_entry(record, None)
    entry.state = "SKIPPED"
    if why is not None:
        entry.error = Failure("EarlierRun", why).to_json()
    record.begun = True
    entry.ended_at = run.now
    _settle_step(run, record)


def start_items(run: SagaRun, record: StepRecord) -> None:
    """Start items up to `max_parallel`; none after a failed item or during a rollback."""
    step = run.plan.steps[record.id]
    if record.items is None or record.stopped or run.phase == "backward" or run.pending_cause is not None:
        return
    while record.running < step.max_parallel and len(record.entries) < len(record.items):
        entry = run.new_entry(record, len(record.entries))
        record.running += 1
        run.post(StartAttempt(entry))


def entry_settled(run: SagaRun, entry: Entry, ok: bool) -> None:
    """Count a finished entry, start the next item, and settle the step when all its items are done."""
    record = run.record(entry)
    record.running -= 1
    run.result_rooms.pop(entry.id, None)
    if not ok:
        record.stopped = True
        return
    record.closed += 1
    if record.items is None or entry.index is None:
        _settle_step(run, record)
        return
    if record.results is not None:
        good = entry.outcome == "done" and not entry.failure_ignored
        record.results[entry.index] = entry.result if good else None
    if record.closed == len(record.items):
        _settle_step(run, record)
    else:
        start_items(run, record)


def _settle_step(run: SagaRun, record: StepRecord) -> None:
    record.settled = True
    run.steps_open -= 1
    context.publish_result(run, record)
    for dependant in run.plan.dependants[record.id]:
        other = run.steps[dependant]
        other.needs_open -= 1
        if other.needs_open == 0:
            run.ready.append(dependant)


def start_attempt(run: SagaRun, entry: Entry) -> None:
    """Start a forward attempt. Rule 1: the compensation is registered before the attempt is scheduled."""
    step = run.step(entry)
    if run.phase == "backward" or _waits_for_rollback(run, entry):
        return
    entry.state, entry.resolved = "RUNNING", False  # not resolved any more: this attempt may have an effect
    if entry.started_at is None:
        entry.started_at = run.now
        corrections.carry_over(run, entry)
    register_operations(run, entry)
    if (told := operators.decided_entry(run, entry)) is not None:
        operators.repeat_decision(run, entry, told)
        if told.state == "SKIPPED":
            run.post(EntrySettled(entry, True))
        else:
            mark_done(run, entry, told.result)
        return
    if operators.asks_again(run, entry):
        return
    if (kept := decisions.kept_read(run, entry)) is not None:
        mark_done(run, entry, kept.result)
        return
    calls_participant = has_effect(step) and not is_nested(step)
    if calls_participant and effects.was_left_out_undone(run, entry):
        entry.outcome = "unknown"
        _mark_undone(run, entry)
        continue_without(run, entry)
        return
    if calls_participant and (undone := effects.outcome_of_undone(run, entry)) is not None:
        with suppress(DefinitionError):  # an undo that is to be sent again may have the arguments of the forward call
            entry.arguments = arguments.forward_arguments(run, entry, entry.override)
        attempt_ended(run, entry, undone, 0)
        return
    may_have_run = calls_participant and count_earlier_run(run, entry, step.do)
    if may_have_run and retries.is_single_attempt(step):
        message = "an earlier run of the saga may have called the participant, which does not honour the key"
        entry.error = Failure("EarlierRun", message).to_json()
        run.post(LookUpEffect(entry, "pivot" if step.pivot else "retry"))
        return
    try:
        if step.do.uses in ("require", "pass", "finish"):
            attempt_ended(run, entry, builtin_actions.evaluate(run, entry), 1)
        elif step.do.uses == "wait":
            outcome = builtin_actions.start_wait(run, entry)
            if outcome is not None:
                attempt_ended(run, entry, outcome, 1)
        elif is_nested(step):
            builtin_actions.start_child(run, entry)
        else:
            calls.send_call(run, entry, "do")
    except DefinitionError as error:
        attempt_ended(run, entry, evaluation.definition_outcome(error), 0)


def _waits_for_rollback(run: SagaRun, entry: Entry) -> bool:
    """True for an entry that was looked up ahead of this run; only a pivot may be called to learn its outcome."""
    return entry.ahead and not run.step(entry).pivot


def attempt_ended(run: SagaRun, entry: Entry, outcome: Outcome, attempts: int | None) -> None:
    """Handle the end of a forward call: merge its outcome into the entry's, then continue by phase and outcome."""
    step = run.step(entry)
    outcome, attempts = row_locks.after_wait(run, entry, outcome, attempts)
    outcome = result_rooms.attempt_refused(run, entry, outcome)
    single = retries.is_single_attempt(step)
    before = entry.min_attempts
    is_repeated = outcome.kind == "unknown" and attempts == 1 and retries.is_first_of_more_attempts(step, before)
    _record_attempt(run, entry, outcome, attempts)
    doubted = outcomes.is_doubted(step.do, outcome, entry.outcome)
    had_no_effect = retries.is_to_be_repeated(run, entry, outcome)
    result_rooms.attempt_ended(run, entry)
    is_local = step.execution == "local"
    if outcome.kind == "done":
        mark_done(run, entry, outcome.result)
    elif outcome.kind == "late":
        _late_attempt_ended(run, entry)
    elif entry.decision is not None and decision_still_counts(run, entry.decision):
        run.post(CarryOutDecision(entry, entry.decision))
    elif run.phase == "backward":
        leave_to_rollback(run, entry)
    elif operators.decided_entry(run, entry) is not None:
        run.post(StartAttempt(entry))
    elif entry.uncounted and not commit.pivot_is_blocked(run, entry) and not (single and outcome.kind == "unknown"):
        _uncounted_attempt_ended(run, entry, outcome)
    elif outcome.park_reason is not None:
        run.park(entry, "do", outcome.park_reason)
    elif result_rooms.fits_later(run, entry, outcome) and run.pending_cause is None:
        result_rooms.try_again(run, entry)
    elif is_repeated and run.pending_cause is None and retries.may_retry(run, entry):
        retries.schedule_retry(run, entry, outcome.retry_after or backoff(step.do.retry, entry.min_attempts))
    elif is_local and had_no_effect and run.pending_cause is None:
        retries.schedule_retry(run, entry, retries.interval_before_next(step, entry, outcome))
    elif step.pivot:
        commit.pivot_attempt_ended(run, entry, outcome, before)
    elif single and (outcome.kind == "unknown" or doubted):
        run.post(LookUpEffect(entry, "retry"))
    elif run.committed and step.on_failure == "compensate":
        _failed_after_commit(run, entry, outcome, doubted)
    elif had_no_effect or (doubted and retries.may_retry(run, entry)):
        retries.schedule_retry(run, entry, retries.interval_before_next(step, entry, outcome))
    else:
        attempts_ended(run, entry)


def _uncounted_attempt_ended(run: SagaRun, entry: Entry, outcome: Outcome) -> None:
    """Repeat the attempt; one of another project's worker only as often as the step may make attempts.

    An attempt that was made and may have had its effect is repeated only if the participant honours the key.
    """
    if retries.gives_up_uncounted(run, entry, outcome):
        run.park(entry, "do", f"not counted as an attempt, {entry.uncounted} times: {failure_message(entry, 'do')}")
        entry.uncounted = 0
    else:
        seconds = row_locks.retry_interval(run, entry) or retries.longest_interval(run.step(entry).do.retry, outcome)
        retries.schedule_retry(run, entry, seconds)


def _record_attempt(run: SagaRun, entry: Entry, outcome: Outcome, attempts: int | None) -> None:
    """Count the attempts of a call, and merge its outcome and error into those of the entry."""
    step = run.step(entry)
    before = entry.min_attempts
    retry = retries.call_retry(step, before)
    attempt_counts.count_attempts(entry, outcome, attempts, retry)
    hidden = outcomes.hides_earlier_attempts(outcome, attempts) and not is_read(step)
    if hidden:
        attempt_counts.count_hidden_attempt(entry)
    entry.last_attempt_ended_at = run.now
    uncounted = outcome.not_started or not outcome.counted
    entry.uncounted = entry.uncounted + 1 if uncounted or not outcome.charged else 0
    if outcome.failure is not None and outcome.kind != "done":
        entry.error = standing_pauses.failure_json(entry.error, outcome.failure, outcome)
        if uncounted:
            entry.error["details"]["uncounted"] = entry.uncounted
    elif outcome.park_reason is not None:
        entry.error = Failure("Parked", outcome.park_reason).to_json()
    if outcome.not_started and entry.min_attempts == 0:
        entry.outcome = None
    elif hidden and entry.outcome != "done":
        entry.outcome = "unknown"
    elif not outcome.not_started:
        entry.outcome = "done" if entry.outcome == "done" else _merged_outcome(run, entry, outcome, before)
        entry.failure_kind = (
            "definition" if outcome.failure and outcome.failure.type == evaluation.DEFINITION_FAILURE else outcome.kind
        )


def _merged_outcome(run: SagaRun, entry: Entry, outcome: Outcome, before: int) -> OutcomeKind:
    step = run.step(entry)
    if is_read(step) or is_nested(step):
        return outcome.kind
    operation = believed_promises(run, step.do, outcome)
    return outcomes.merge_outcome(operation, outcome, before, entry.outcome, step.execution)


def attempts_ended(run: SagaRun, entry: Entry) -> None:
    """End the attempts of an entry. An unguarded UNKNOWN is probed first; then `on_failure` decides."""
    step = run.step(entry)
    entry.state = STATE_BY_OUTCOME[entry.outcome or "failed"]
    entry.ended_at = run.now
    if entry.outcome == "unknown" and not step.do.guarded and probe_of(run, entry) is not None and not is_read(step):
        run.post(LookUpEffect(entry, "end"))
    else:
        run.post(ForwardFailed(entry))


def retry_after_probe(run: SagaRun, entry: Entry) -> None:
    """After a probe's `absent`: call the participant again if the retry policy allows it."""
    step = run.step(entry)
    retry = step.do.retry
    if retries.is_retried_without_limit(run, step, "do"):
        retries.schedule_retry(run, entry, retry.max_interval)
    elif retries.may_retry(run, entry):
        retries.schedule_retry(run, entry, backoff(retry, entry.min_attempts))
    else:
        entry.resolved = True
        end_without_effect(run, entry)


def end_without_effect(run: SagaRun, entry: Entry) -> None:
    """End an entry whose retries are exhausted and which is known to have no effect."""
    if entry.outcome == "unknown":
        mark_nothing_to_undo(entry)
    entry.ended_at = run.now
    run.post(ForwardFailed(entry))


def _failed_after_commit(run: SagaRun, entry: Entry, outcome: Outcome, doubted: bool) -> None:
    """Past the commit point a failure cannot roll back: retry without limit, or park if a retry cannot help."""
    if not outcome.retryable and not doubted:
        run.park(entry, "do", failure_reasons.failure_message(entry, "do"))
        return
    if not run.retrying_recorded:
        run.retrying_recorded = True
        run.emit(RecordState("COMMITTED", entry.id, None))
    retries.schedule_retry(run, entry, run.step(entry).do.retry.max_interval)


def _late_attempt_ended(run: SagaRun, entry: Entry) -> None:
    """Rule 16: the step was undone outside this run (a reused id, a reset). This is never a success."""
    if run.is_irrevocable:
        entry.resolved = True
        run.park(entry, "do", "the step had already been undone when this attempt arrived")
        return
    if not effects.must_be_undone_again(run, entry):
        _mark_undone(run, entry)
    roll_back_late(run, entry)


def _mark_undone(run: SagaRun, entry: Entry) -> None:
    """Mark an entry that was undone outside this run."""
    entry.state, entry.resolved, entry.ended_at = "COMPENSATED", True, run.now
    if entry.undo is not None:
        entry.undo.state, entry.undo.ended_at = "DONE", run.now


def roll_back_late(run: SagaRun, entry: Entry) -> None:
    """Roll the saga back, because the step was undone outside this run."""
    cause = {**failure_reasons.failure_cause(entry), "kind": "late"}
    if run.phase == "backward":
        leave_to_rollback(run, entry)
    elif run.step(entry).pivot:
        run.post(PivotFailed(entry, cause))
    else:
        run.post(EntrySettled(entry, False))
        run.post(RequestRollback(cause, entry))


def mark_done(run: SagaRun, entry: Entry, result: object) -> None:
    """Mark the entry as done: its effect exists exactly once."""
    step = run.step(entry)
    result_rooms.keep_result(run, entry, result)
    entry.outcome, entry.error = "done", None
    entry.state, entry.ended_at, entry.failure_kind = "DONE", run.now, "done"
    entry.resolved = False
    if entry.undo is not None and entry.undo.state == "NOTHING_TO_UNDO":
        entry.undo = None  # a probe found no effect, then an operator made it by hand: now there is one to undo
    register_operations(run, entry)  # an operator's `done` may come before any attempt
    if entry.decision is not None:
        # A recorded effect overrides an operator's decision.
        entry.decision = None
    if not _arguments_needed_later(run, entry):
        entry.arguments = None
    if run.phase == "backward" or _waits_for_rollback(run, entry):
        leave_to_rollback(run, entry)
    elif step.pivot:
        commit.pivot_done(run, entry)
    elif run.committed and step.confirm is not None and run.plan.runs_after_commit(step.id):
        run.post(ConfirmEntry(entry))
    else:
        run.post(EntrySettled(entry, True))


def _arguments_needed_later(run: SagaRun, entry: Entry) -> bool:
    """True when a confirm or compensation in short form reuses the arguments of the forward call."""
    step = run.step(entry)
    later = (*step.compensations, *((step.confirm,) if step.confirm else ()))
    return any(operation.with_ is None for operation in later)


def decision_still_counts(run: SagaRun, decision: Mapping[str, Any]) -> bool:
    """True unless a rollback makes the decision obsolete; `done` stays valid, as there is an effect to undo."""
    return run.phase != "backward" or decision["decision"] == "done"


def apply_on_failure(run: SagaRun, entry: Entry) -> None:
    """Apply `on_failure` to an entry whose retries are exhausted."""
    step = run.step(entry)
    if run.phase == "backward":
        leave_to_rollback(run, entry)
    elif step.on_failure == "park":
        run.park(entry, "do", parking_reason(run, entry, failure_reasons.failure_message(entry, "do")))
    elif step.on_failure == "continue":
        unsure = entry.outcome == "unknown" and not entry.resolved and not is_read(step)
        if unsure:
            run.post(LookUpEffect(entry, "not_done" if run.committed else "continue"))
        else:
            leave_out(run, entry)
    elif run.is_irrevocable:
        run.park(entry, "do", parking_reason(run, entry, failure_reasons.failure_message(entry, "do")))
    else:
        run.record(entry).stopped = True
        run.post(EntrySettled(entry, False))
        run.post(RequestRollback(failure_reasons.failure_cause(entry), entry))


def leave_out(run: SagaRun, entry: Entry) -> None:
    """Go on without the step, after the compensation that runs whatever became of it."""
    if is_always_undone(run, entry) and not run.committed:
        run.post(CompensateEntry(entry))
    else:
        continue_without(run, entry)


def continue_without(run: SagaRun, entry: Entry) -> None:
    """Rule 11: go on as if the step had not run."""
    result_rooms.give_back(run, entry)
    entry.failure_ignored = True
    entry.ended_at = run.now
    if run.committed:
        run.not_done.append(entry.id)
    run.post(EntrySettled(entry, True))
