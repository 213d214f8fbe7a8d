"""The rejections that are believed: none of a call that an earlier run of the saga may have made as well.

No guard records a call to a participant outside of it. Such a call may have been made before a reset or a termination
of the run, even with other arguments, because these may come from the results of other steps. So its first attempt in
this run counts as a repetition, and a rejection proves nothing, even from a participant that remembers rejections.

A guard records its steps, but it tells of one only when it is asked, and an attempt may end before that: it is held
back by a pause, its arguments cannot be evaluated, or the database refuses it. So a guarded step is doubted as well,
and sealed before it counts as one without an effect.
"""

from __future__ import annotations

from dataclasses import replace

from sagas.definition.model import Operation, has_effect, is_nested
from sagas.machine.attempt_counts import count_hidden_attempt
from sagas.machine.compensations import current_alternate
from sagas.machine.state import Entry, OperationState, SagaRun
from sagas.protocol.outcomes import Outcome


def count_earlier_run(run: SagaRun, state: Entry | OperationState, operation: Operation) -> bool:
    """Count an attempt of an earlier run of the saga before the first one of this run. Returns whether one is counted.

    None is counted for an undo or a confirm with a guard: these end only with an answer of it, or of an operator.
    """
    answered_by_guard = operation.guarded and not isinstance(state, Entry)
    if not run.earlier.exist or state.min_attempts or answered_by_guard:
        return False
    doubt(run, state)
    return True


def doubt(run: SagaRun, state: Entry | OperationState) -> None:
    """Count one attempt with an unknown outcome, which an earlier run may have made."""
    count_hidden_attempt(state)
    state.outcome = "unknown"
    if isinstance(state, Entry):
        state.last_attempt_ended_at = run.now


def doubt_open_calls(run: SagaRun, entry: Entry) -> None:
    """Doubt what the attempts of the open operations of this entry have said: the earlier run may have made more."""
    step, undo, confirm = run.step(entry), entry.undo, entry.confirm
    is_open = entry.state == "RUNNING" or (entry.id in run.parked and run.parked[entry.id].op == "do")
    if is_open and has_effect(step) and not is_nested(step):
        doubt(run, entry)
    is_undoing = undo is not None and undo.state in ("RUNNING", "PARKED")
    if undo is not None and is_undoing and step.compensate and not current_alternate(step, undo).guarded:
        doubt(run, undo)
    is_confirming = confirm is not None and confirm.state in ("RUNNING", "PARKED")
    if confirm is not None and is_confirming and step.confirm and not step.confirm.guarded:
        doubt(run, confirm)


def believed_promises(run: SagaRun, operation: Operation, outcome: Outcome | None = None) -> Operation:
    """The operation with what its participant promises of its rejections, also by this ``outcome``.

    It is nothing if an earlier run of the saga may have sent another request under the same key: the rejection may be
    about that.
    """
    remembers = operation.remembers_rejections or (outcome is not None and outcome.definite)
    return replace(operation, remembers_rejections=remembers and not run.earlier.exist)
