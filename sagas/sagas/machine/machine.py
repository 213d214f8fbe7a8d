"""The saga machine: a deterministic state machine that turns events into commands.

It has no clock, randomness or I/O, so the same events always produce the same commands: Temporal replays it, and
`saga simulate` and the tests drive it through every fault. Rule numbers refer to docs/explanation/guarantees.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Definition
from sagas.expressions.limits import WorkMeter
from sagas.machine import (
    attempt_counts,
    builtin_actions,
    calls,
    cancel,
    commit,
    forward,
    notify,
    operator_record,
    parked,
    repetition,
    standing_pauses,
    state_budget,
    task_budget,
    timers,
)
from sagas.machine.decisions import apply, preview, rules
from sagas.machine.decisions.form import malformed_decision
from sagas.machine.earlier import resets, unknown_steps
from sagas.machine.earlier_runs import EarlierRuns
from sagas.machine.expressions import evaluation, expression_fields
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.finish import finish_command
from sagas.machine.internal_events import (
    CarryOutDecision,
    CompensateEntry,
    CompensateStep,
    CompensationSettled,
    ConfirmEntry,
    ConfirmSettled,
    EffectLookedUp,
    EntrySettled,
    ForwardFailed,
    LookUpEffect,
    PivotFailed,
    PivotFoundDone,
    ReachCommitPoint,
    RequestRollback,
    StartAttempt,
)
from sagas.machine.locking import locks, operator_pause
from sagas.machine.origin import command_recorded, effect_recorded, origin_of
from sagas.machine.remaining_calls import RemainingCall, remaining_calls
from sagas.machine.snapshot import dump_compact, dump_run, load_run
from sagas.machine.state import Entry, InternalEvent, SagaRun
from sagas.machine.undo import effect_lookup, rollback, savepoints
from sagas.machine.view import build_view
from sagas.protocol.messages import (
    AttemptsMade,
    CallEnded,
    CancelRequested,
    ChildParked,
    Command,
    DecisionMade,
    LocksAnswered,
    LocksChanged,
    MachineEvent,
    RunWasReset,
    SagaEnded,
    SignalReceived,
    Started,
    TimerFired,
    UndoRequested,
)
from sagas.protocol.origin import Origin
from sagas.protocol.payloads import LOCK_ACTIVITY
from sagas.protocol.saga_view import PauseView, SagaView


class Machine:
    """One saga. The caller passes every event to :meth:`next` and executes every command it returns."""

    def __init__(
        self,
        definition: Definition,
        input: Any,
        saga_id: str,
        *,
        generation: int = 1,
        generations: Mapping[str, int] | None = None,
        variables: Mapping[str, Any] | None = None,
        parent: str | None = None,
        plan: ExecutionPlan | None = None,
        undo_scope: str = "",
        root_start: str = "",
        repeats: bool = False,
        repeats_since: float | None = None,
        told_committed: bool | None = None,
        told_undone: Mapping[str, int] | None = None,
        undecided: Sequence[str] = (),
        redelivery: Mapping[str, Any] | None = None,
    ) -> None:
        """``generations``: those of single entries, by entry id, where an earlier run of the saga got further.

        ``plan`` is the execution plan of ``definition``, if the caller already has it; machines may share it.

        ``undo_scope``: see :class:`sagas.protocol.messages.StartSaga`. ``root_start``: see
        :class:`sagas.protocol.origin.Origin`. ``repeats``: an earlier run of the saga, of which nobody has the state,
        may have made its calls; ``repeats_since``: see ``since`` of :class:`sagas.machine.earlier_runs.EarlierRuns`.
        ``told_committed``: an operator says whether that was past its commit point;
        ``told_undone``: entries, with their generations, whose undo in another database or service this operator has
        seen. ``undecided``: see :class:`sagas.machine.earlier_runs.EarlierRuns`. ``redelivery``: see
        :attr:`sagas.machine.state.SagaRun.redelivery`.
        """
        self._run = SagaRun(definition, input, saga_id, generation, variables or {}, parent, plan, undo_scope)
        self._run.root_start = root_start
        self._run.earlier.generations = dict(generations or {})
        self._run.earlier.exist = repeats
        self._run.earlier.since = repeats_since
        self._run.earlier.state_is_lost = repeats
        self._run.earlier.told_committed = told_committed
        self._run.earlier.told_undone = dict(told_undone or {})
        self._run.earlier.undecided = list(undecided)
        self._run.redelivery = None if redelivery is None else dict(redelivery)

    # --- state -------------------------------------------------------------------------------------------------

    @property
    def definition(self) -> Definition:
        return self._run.definition

    @property
    def state(self) -> str:
        """RUNNING, COMMITTED, COMPENSATING, PARKED, COMPLETED, COMPENSATED or RESIDUE."""
        return self._run.state

    @property
    def input(self) -> Any:
        return self._run.input

    @property
    def phase(self) -> str:
        """forward, committed or backward."""
        return self._run.phase

    @property
    def finished(self) -> bool:
        return self._run.finished

    @property
    def started_at(self) -> float | None:
        """Start time of the saga in seconds since the epoch; None before it."""
        return self._run.started_at

    @property
    def ended_at(self) -> float | None:
        """End time of the saga in seconds since the epoch; None before it."""
        return self._run.ended_at

    @property
    def generation(self) -> int:
        """The generation of the saga itself: how often a saga with its id was started."""
        return self._run.generation

    @property
    def earlier(self) -> EarlierRuns:
        """Knowledge of the runs of the saga before this one, which must not be modified."""
        return self._run.earlier

    @property
    def highest_generation(self) -> int:
        """The highest generation of any entry; that of the saga itself if there are none."""
        entries = (entry for record in self._run.steps.values() for entry in record.entries)
        return max((entry.generation for entry in entries), default=self._run.generation)

    @property
    def effect_recorded(self) -> bool:
        """A guard has recorded an effect of the saga."""
        return effect_recorded(self._run)

    @property
    def command_recorded(self) -> bool:
        """A command of the saga has been answered, so the row of one has been written."""
        return command_recorded(self._run)

    def origin(self) -> Origin:
        """The start of the saga: its input and what else the guard keeps of it."""
        return origin_of(self._run)

    @property
    def child_running(self) -> bool:
        """A nested saga is in flight. It reports to this Temporal run, so the run must not continue as new."""
        return any(flight.kind == "saga" for flight in self._run.flights.values())

    @property
    def undo_refusal(self) -> str | None:
        """Why `saga undo` would be refused now (rule 15), as the end of a sentence; None if it would not."""
        return rollback.undo_refusal(self._run)

    def decision_notes(self, decision: DecisionMade) -> preview.DecisionNotes:
        """The words about an accepted decision before it is carried out."""
        return preview.decision_notes(self._run, decision)

    def labels(self) -> dict[str, str]:
        """The labels for search. Raises DefinitionError when they cannot be evaluated for this input."""
        return expression_fields.evaluate_labels(self._run)

    def cancel_response(self) -> cancel.CancelResponse:
        """The response to a cancel request received now (rule 6)."""
        return cancel.cancel_response(self._run)

    def check_decision(self, decision: DecisionMade) -> str | None:
        """Why this decision is refused; None when it is accepted."""
        if decision.step == LOCK_ACTIVITY:
            return malformed_decision(decision) or locks.skip_refusal(self._run, decision)
        return rules.decision_refusal(self._run, decision)

    def note_pause(self, what: Literal["pause", "resume"], at: float, who: str, reason: str) -> list[Command]:
        """Record for the view that an operator has paused or resumed the saga. Returns the timers that go on."""
        return operator_pause.note(self._run, what, at, who, reason)

    def pause_refusal(self) -> str | None:
        """Why a pause is refused; None if it is accepted."""
        return operator_record.pause_refusal(self._run)

    def masked_words(self, words: str) -> str:
        """The words, which somebody has written about the saga, with `•••` in place of `x-sensitive` values."""
        return operator_record.masked_words(self._run, words)

    def note_release_left(self, decision: DecisionMade) -> None:
        """Record that an operator leaves the locks of the saga as they are; the saga itself may have ended."""
        operator_record.note_decision(self._run, decision)

    def standing_pause(self) -> PauseView | None:
        """The standing pause that holds calls back; None without one."""
        return standing_pauses.shown(self._run)

    def view(self, *, reveal: bool = False) -> SagaView:
        """The view, without the fields that only the platform knows. ``reveal``: with `x-sensitive` values in clear."""
        return build_view(self._run, reveal=reveal)

    def snapshot(self) -> dict[str, Any]:
        """The whole state as JSON."""
        return dump_run(self._run)

    def compact_snapshot(self) -> dict[str, Any]:
        """The state without the definition; :func:`sagas.machine.snapshot.expand` makes it whole again."""
        return dump_compact(self._run)

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any], plan: ExecutionPlan | None = None) -> Machine:
        """Restore a machine from a snapshot; :meth:`reissue` returns the commands that were in flight.

        ``plan``: as for a new machine; then the snapshot has the definition itself instead of its JSON.
        """
        machine = cls.__new__(cls)
        machine._run = load_run(snapshot, plan)
        return machine

    def remaining_calls(self, *, interrupted: bool = False) -> list[RemainingCall]:
        """The calls of participants that the saga may still make, if its run was ``interrupted`` when continued."""
        return remaining_calls(self._run, interrupted=interrupted)

    def reissue(self, at: float) -> list[Command]:
        """The commands of everything in flight, with the remaining time for timers, and the end if it has ended."""
        run = self._run
        ended = [finish_command(run, completed=run.phase != "backward")] if run.finished else []
        return [*calls.reissue(run, at), *ended]

    def lost_calls(self, at: float) -> list[CallEnded]:
        """End events for all calls in flight, for a new run that continues a terminated one."""
        return calls.lost_calls(self._run, at)

    # --- events ------------------------------------------------------------------------------------------------

    def begin_task(self, work: WorkMeter) -> None:
        """A new workflow task begins. When ``work``, which its machines share, is used up, a timer does the rest."""
        self._run.work = work
        self._run.may_pause = True

    @property
    def paused(self) -> bool:
        """Work is left for the timer. It is not part of a snapshot."""
        return self._run.paused

    def next(self, event: MachineEvent) -> list[Command]:
        """Apply one event and return the resulting commands. Obsolete events produce no commands.

        An event's way through this module is downwards: its handler changes the state of entries and posts internal
        events; these are handled until none is left; then the saga may reach its commit point, end, or be PARKED.
        """
        run = self._run
        run.now, run.commands = event.at, []
        _handle_event(run, event)
        if _advance(run):
            parked.report(run)
        commands, run.commands = run.commands, []
        return commands


def _handle_event(run: SagaRun, event: MachineEvent) -> None:
    """Pass the event to its handler. Obsolete events change nothing."""
    match event:
        case Started():
            _saga_started(run, event.began_at)
        case CallEnded():
            _call_ended(run, event)
        case AttemptsMade():
            attempt_counts.attempts_made(run, event)
        case SagaEnded():
            _saga_ended(run, event)
        case ChildParked():
            parked.reported(run, event)
        case TimerFired():
            timers.timer_fired(run, event)
        case CancelRequested():
            cancel.cancel_requested(run, event)
        case SignalReceived():
            _signal_received(run, event)
        case DecisionMade():
            _decision_made(run, event)
        case UndoRequested():
            cancel.undo_requested(run, event)
        case LocksAnswered():
            locks.answered(run, event)
            _commit_at_start(run)
        case LocksChanged():
            locks.changed(run)
        case RunWasReset():
            resets.run_was_reset(run, event)


def _saga_started(run: SagaRun, began_at: float | None) -> None:
    if run.started_at is not None:
        return
    run.started_at = run.now if began_at is None else began_at
    run.kept_bytes = state_budget.budgeted_size(run.input)
    locks.request_at_start(run)
    _commit_at_start(run)
    if run.definition.deadline is not None and not run.plan.forward_only and not run.earlier.pivot_in_place:
        run.deadline_at = run.now + run.definition.deadline
        run.start_timer("deadline", run.definition.deadline, "deadline")
    if run.definition.warn_after is not None:
        run.start_timer("warn_after", run.definition.warn_after, "warn when overdue")


def _commit_at_start(run: SagaRun) -> None:
    """A saga whose steps can all only go forward is past its commit point once nothing keeps it from starting."""
    if run.plan.forward_only and run.phase == "forward" and locks.are_held(run):
        commit.start_committed(run)


def _call_ended(run: SagaRun, event: CallEnded) -> None:
    flight, entry = run.flight_of(event.id)
    if flight is None or entry is None or flight.kind != "call":
        return  # a duplicate, or an obsolete call
    run.end_flight(flight)
    if resets.is_behind(run, entry):
        resets.catch_up(run, entry)
        repetition.repeat(run, entry, flight)
        return
    outcome = standing_pauses.noted(run, flight, run.without_sensitive_texts(event.outcome))
    if event.attempts == 0 and outcome.failure is not None and outcome.failure.type == evaluation.DEFINITION_FAILURE:
        calls.forget_unsent_arguments(entry, flight.call_kind)
    match flight.call_kind:
        case "do":
            forward.attempt_ended(run, entry, outcome, event.attempts)
        case "probe":
            effect_lookup.probe_ended(run, entry, outcome, flight)
        case "seal":
            effect_lookup.seal_ended(run, entry, outcome, flight.purpose)
        case "write":
            apply.manual_result_ended(run, entry, outcome, flight.purpose, event.attempts)
        case "undo-mark":
            rollback.undo_mark_ended(run, entry, outcome)
        case "undo":
            rollback.undo_ended(run, entry, outcome, event.attempts)
        case "skip":
            apply.skip_recorded(run, entry, outcome)
        case "confirm" | "confirm-mark":
            commit.confirm_ended(run, entry, outcome, event.attempts, mark=flight.call_kind == "confirm-mark")
    if entry.decision is not None and entry.id in run.parked:
        run.post(CarryOutDecision(entry, entry.decision))


def _saga_ended(run: SagaRun, event: SagaEnded) -> None:
    flight, entry = run.flight_of(event.id)
    if flight is None or entry is None or flight.kind != "saga":
        return
    run.end_flight(flight)
    outcome = run.without_sensitive_texts(builtin_actions.child_ended(run, entry, event, flight))
    if flight.call_kind == "undo":
        rollback.undo_ended(run, entry, outcome, 1)
    elif flight.call_kind == "seal":
        effect_lookup.earlier_child_ended(run, entry, outcome, flight.purpose)
    else:
        forward.attempt_ended(run, entry, outcome, 1)


def _signal_received(run: SagaRun, event: SignalReceived) -> None:
    if run.finished:
        return
    for entry in builtin_actions.accept_signal(run, event):
        outcome = builtin_actions.signal_outcome(run.signals[event.name])
        forward.attempt_ended(run, entry, run.without_sensitive_texts(outcome), 1)


def _decision_made(run: SagaRun, event: DecisionMade) -> None:
    if event.step == LOCK_ACTIVITY:
        locks.skip_wait(run, event)
    elif rules.decision_refusal(run, event) is None:
        apply.receive_decision(run, event)


def _advance(run: SagaRun) -> bool:
    """False if the rest of the work is left to a timer."""
    while True:
        while run.agenda:
            if task_budget.must_pause(run):
                return False
            _handle_internal_event(run, run.agenda.popleft())
        if run.finished or run.started_at is None:
            return True
        forward.start_ready_steps(run)
        if run.paused and task_budget.must_pause(run):
            return False
        savepoints.give_up_if_parked(run)
        rollback.start_compensating(run)
        if not run.agenda:
            _end_phase(run)
        if not run.agenda:
            break
    if not run.finished:
        _update_parked_state(run)
    return True


def _handle_internal_event(run: SagaRun, event: InternalEvent) -> None:
    match event:
        case StartAttempt(entry):
            forward.start_attempt(run, entry)
        case ForwardFailed(entry):
            forward.apply_on_failure(run, entry)
        case EntrySettled(entry, ok):
            forward.entry_settled(run, entry, ok)
        case LookUpEffect(entry, purpose):
            effect_lookup.look_up_effect(run, entry, purpose)
        case EffectLookedUp(entry, purpose, verdict):
            effect_lookup.continue_after_lookup(run, entry, purpose, verdict)
        case RequestRollback(cause, entry):
            rollback.request_rollback(run, cause, entry)
        case PivotFailed(entry, cause):
            rollback.continue_after_pivot_failure(run, entry, cause)
        case PivotFoundDone():
            unknown_steps.pivot_is_done(run)
        case CompensateStep(step):
            rollback.compensate_step(run, step)
        case CompensateEntry(entry):
            rollback.compensate_entry(run, entry)
        case CompensationSettled(entry):
            effect_lookup.continue_after_compensation(run, entry)
        case ReachCommitPoint():
            commit.reach_commit_point(run)
        case ConfirmEntry(entry):
            commit.confirm_entry(run, entry)
        case ConfirmSettled(entry):
            commit.continue_after_confirm(run, entry)
        case CarryOutDecision(entry, decision):
            _carry_out(run, entry, decision)


def _carry_out(run: SagaRun, entry: Entry, decision: Mapping[str, Any]) -> None:
    try:
        apply.carry_out(run, entry, decision)
    except DefinitionError as error:
        apply.park_again(run, entry, error)


def _end_phase(run: SagaRun) -> None:
    """Reach the commit point or the end of the saga if nothing is left to do before it."""
    if run.phase == "backward":
        rollback.finish_when_compensated(run)
        forward.start_ready_steps(run)  # what follows a savepoint
    else:
        commit.commit_or_complete(run)


def _update_parked_state(run: SagaRun) -> None:
    """Enter PARKED when only parked operations are left, and leave it when another one runs."""
    if run.parked and unknown_steps.is_idle(run) and not locks.waits(run):
        if run.state != "PARKED":
            run.change_state("PARKED", next(iter(run.parked)))
            notify.notify_milestone(run, "parked")
    elif run.state == "PARKED":
        run.change_state("COMPENSATING" if run.phase == "backward" else "COMMITTED" if run.committed else "RUNNING")
