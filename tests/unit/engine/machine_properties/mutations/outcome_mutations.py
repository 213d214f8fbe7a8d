"""Mutations in how the machine handles decisions, definitions, signals and nested sagas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sagas.machine import builtin_actions, calls, commit, forward, notify, snapshot
from sagas.machine.decisions import apply, rules
from sagas.machine.expressions import arguments, evaluation, probe_verdict
from sagas.machine.internal_events import StartAttempt
from sagas.machine.state import Entry, SagaRun
from sagas.machine.undo import rollback
from sagas.protocol.messages import CancelCall, CancelSaga, Notify, StartTimer
from sagas.protocol.outcomes import Failure, Outcome
from tests.unit.engine.machine_properties.mutations.effect_mutations import Mutation


def _no_arguments_for_a_mistake(patch: pytest.MonkeyPatch) -> None:
    whole = arguments._render_arguments  # pyright: ignore[reportPrivateUsage]

    def with_(*given: Any, **more: Any) -> dict[str, Any]:
        try:
            return whole(*given, **more)
        except evaluation.DefinitionError:
            return {}

    patch.setattr(arguments, "_render_arguments", with_)


def _a_mistake_is_any_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        evaluation, "definition_outcome", lambda error: Outcome("failed", failure=Failure("Bug", str(error)), attempt=1)
    )


def _a_mistake_in_an_undo_undoes(patch: pytest.MonkeyPatch) -> None:
    whole = rollback._send_undo  # pyright: ignore[reportPrivateUsage]

    def ask(run: SagaRun, entry: Entry) -> None:
        whole(run, entry)
        if entry.id in run.parked:
            run.unpark(entry)
            apply.mark_compensated_manually(run, entry)

    patch.setattr(rollback, "_send_undo", ask)


def _a_mistake_in_a_confirm_confirms(patch: pytest.MonkeyPatch) -> None:
    whole = commit.confirm_entry

    def begin(run: SagaRun, entry: Entry) -> None:
        whole(run, entry)
        if entry.id in run.parked:
            run.unpark(entry)
            commit.mark_confirmed(run, entry)

    patch.setattr(commit, "confirm_entry", begin)


def _forget_corrected_arguments(patch: pytest.MonkeyPatch) -> None:
    whole = apply.carry_out
    patch.setattr(apply, "carry_out", lambda run, entry, output: whole(run, entry, {**output, "arguments": None}))


def _other_arguments_under_the_same_key(patch: pytest.MonkeyPatch) -> None:
    whole = apply.start_next_generation

    def again(run: SagaRun, entry: Entry) -> None:
        attempts, generation = entry.min_attempts, entry.generation
        whole(run, entry)
        entry.min_attempts, entry.generation = attempts, generation

    patch.setattr(apply, "start_next_generation", again)


def _forget_the_corrected_definition(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SagaRun, "replace_definition", lambda run, definition: None)


def _a_definition_withdraws_nothing(patch: pytest.MonkeyPatch) -> None:
    whole = apply._correct_arguments  # pyright: ignore[reportPrivateUsage]
    patch.setattr(
        apply,
        "_correct_arguments",
        lambda *given: whole(*given) if given[-1].get("arguments") is not None else False,
    )


def _a_retry_skips_the_condition(patch: pytest.MonkeyPatch) -> None:
    whole = forward.restart_step

    def restart(run: SagaRun, record: Any) -> None:
        whole(run, record) if record.items is not None else run.post(StartAttempt(record.entries[0]))

    patch.setattr(forward, "restart_step", restart)


def _what_a_probe_cannot_tell_is_absent(patch: pytest.MonkeyPatch) -> None:
    whole = probe_verdict.probe_verdict

    def probed(run: SagaRun, entry: Entry, probe: Any, answer: Outcome) -> tuple[str, Any]:
        output, result = whole(run, entry, probe, answer)
        return ("absent" if output == "unknown" and probe.done is not None else output), result

    patch.setattr(probe_verdict, "probe_verdict", probed)


def _done_without_asking_the_guard(patch: pytest.MonkeyPatch) -> None:
    whole = calls.send_call

    def send(run: SagaRun, entry: Entry, ask: Any, purpose: Any = "", *, background: bool = False) -> None:
        if ask == "write" and not purpose:
            forward.mark_done(run, entry, None)
        else:
            whole(run, entry, ask, purpose, background=background)

    patch.setattr(calls, "send_call", send)


def _the_last_signal_counts(patch: pytest.MonkeyPatch) -> None:
    whole = builtin_actions.accept_signal

    def signalled(run: SagaRun, event: Any) -> list[Entry]:
        run.signals.pop(event.name, None)
        return whole(run, event)

    patch.setattr(builtin_actions, "accept_signal", signalled)


def _early_signals_are_lost(patch: pytest.MonkeyPatch) -> None:
    whole = builtin_actions.accept_signal

    def signalled(run: SagaRun, event: Any) -> list[Entry]:
        waiting = whole(run, event)
        if not waiting:
            run.signals.pop(event.name)
        return waiting

    patch.setattr(builtin_actions, "accept_signal", signalled)


def _a_wait_that_ran_out_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        builtin_actions, "wait_timer_fired", lambda run, entry: Outcome.done({"data": None, "by": None, "at": None})
    )


def _every_requirement_is_met(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(builtin_actions, "evaluate_require", lambda run, entry: Outcome.done(None))


def _signals_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(snapshot, "RUN_FIELDS", tuple(name for name in snapshot.RUN_FIELDS if name != "signals"))


def _a_new_run_forgets_what_was_cancelled(patch: pytest.MonkeyPatch) -> None:
    whole = calls.reissue
    cancels = (CancelCall, CancelSaga)
    patch.setattr(calls, "reissue", lambda run, at: [c for c in whole(run, at) if not isinstance(c, cancels)])


def _timers_start_anew(patch: pytest.MonkeyPatch) -> None:
    whole = calls.reissue

    def outstanding(run: SagaRun, at: float) -> list[Any]:
        return [replace(c, seconds=c.seconds + 9.0) if isinstance(c, StartTimer) else c for c in whole(run, at)]

    patch.setattr(calls, "reissue", outstanding)


def _a_continued_item_keeps_its_result(patch: pytest.MonkeyPatch) -> None:
    whole = forward.entry_settled

    def closed(run: SagaRun, entry: Entry, ok: bool) -> None:
        results = run.record(entry).results
        whole(run, entry, ok)
        if results is not None and entry.failure_ignored and entry.index is not None:
            results[entry.index] = {"continued": True}

    patch.setattr(forward, "entry_settled", closed)


def _a_refused_undo_of_a_child_is_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(builtin_actions, "_undo_outcome", lambda event: Outcome.done(None))


def _a_refused_child_is_done(patch: pytest.MonkeyPatch) -> None:
    whole = builtin_actions._forward_outcome  # pyright: ignore[reportPrivateUsage]

    def done(event: Any, saga_id: str) -> Outcome:
        return Outcome.done(None) if event.state == "REFUSED" else whole(event, saga_id)

    patch.setattr(builtin_actions, "_forward_outcome", done)


def _late_is_done(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forward, "_late_attempt_ended", lambda run, entry: forward.mark_done(run, entry, None))


def _decide_at_any_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "_retried_for_long", lambda run, entry, op, at: entry.flight is not None)


def _other_arguments_while_an_attempt_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "_unsafe_retry", lambda run, decision, entry, op: None)


def _whoever_cannot_be_told_is_a_reason(patch: pytest.MonkeyPatch) -> None:
    whole = notify.notify_milestone

    def reached(run: SagaRun, moment: Any) -> None:
        whole(run, moment)
        if any(isinstance(command, Notify) and command.call is None for command in run.commands):
            run.overdue = True

    patch.setattr(notify, "notify_milestone", reached)


def _told_twice(patch: pytest.MonkeyPatch) -> None:
    whole = notify.notify_milestone

    def reached(run: SagaRun, moment: Any) -> None:
        whole(run, moment)
        whole(run, moment)

    patch.setattr(notify, "notify_milestone", reached)


def _a_residue_is_told_as_an_undo(patch: pytest.MonkeyPatch) -> None:
    whole = notify.notify_milestone
    words: dict[Any, Any] = {"residue": "compensated"}
    patch.setattr(notify, "notify_milestone", lambda run, moment: whole(run, words.get(moment, moment)))


def _only_the_first_parking_is_told(patch: pytest.MonkeyPatch) -> None:
    whole = notify.notify_milestone

    def reached(run: SagaRun, moment: Any) -> None:
        if moment != "parked" or not any(row["when"] == moment for row in run.notifications):
            whole(run, moment)

    patch.setattr(notify, "notify_milestone", reached)


def _a_won_seal_stays_unknown(patch: pytest.MonkeyPatch) -> None:
    whole = forward.mark_nothing_to_undo

    def mark(entry: Entry) -> None:
        before = entry.outcome
        whole(entry)
        entry.outcome = before

    patch.setattr(forward, "mark_nothing_to_undo", mark)


WORDS: dict[str, Mutation] = {
    "a won seal stays unknown": (_a_won_seal_stays_unknown, {"seal"}),
    "a notification that cannot be made changes the saga": (_whoever_cannot_be_told_is_a_reason, {"notify"}),
    "everybody is told twice": (_told_twice, {"notify"}),
    "a residue is told as an undo": (_a_residue_is_told_as_an_undo, {"notify"}),
    "only the first parking is told": (_only_the_first_parking_is_told, {"notify"}),
    "no arguments where an expression fails": (_no_arguments_for_a_mistake, {"rule 10"}),
    "an expression that fails is any failure": (_a_mistake_is_any_failure, {"rule 10", "wait", "require"}),
    "an undo that cannot be asked counts as one": (_a_mistake_in_an_undo_undoes, {"I2", "I9"}),
    "a confirm that cannot be asked counts as one": (_a_mistake_in_a_confirm_confirms, {"rule 13"}),
    "forget the arguments a person gave": (_forget_corrected_arguments, {"retry --with", "rule 10", "wait"}),
    "other arguments under the same key": (
        _other_arguments_under_the_same_key,
        {"one key, one intention", "earlier attempts"},
    ),
    "forget the definition a person gave": (_forget_the_corrected_definition, {"rule 7"}),
    "a definition withdraws no arguments": (_a_definition_withdraws_nothing, {"retry --definition", "wait"}),
    "a retry skips the condition": (_a_retry_skips_the_condition, {"if", "rule 10"}),
    "what a probe cannot tell is absent": (_what_a_probe_cannot_tell_is_absent, {"idempotent: false", "I2", "I3"}),
    "done without asking the guard": (_done_without_asking_the_guard, {"I2", "I3", "I9", "rule 5", "earlier attempts"}),
    "the last signal counts": (_the_last_signal_counts, {"wait"}),
    "early signals are lost": (_early_signals_are_lost, {"wait"}),
    "a wait that ran out goes on": (_a_wait_that_ran_out_goes_on, {"wait"}),
    "every requirement is met": (_every_requirement_is_met, {"require", "rule 10"}),
    "signals are not stored": (_signals_are_not_stored, {"snapshot", "wait", "determinism"}),
    "a new run forgets what was cancelled": (_a_new_run_forgets_what_was_cancelled, {"snapshot"}),
    "timers start anew in a new run": (_timers_start_anew, {"snapshot", "timers"}),
    "a continued item keeps its result": (_a_continued_item_keeps_its_result, {"arguments"}),
    "a refused undo of a child is one": (_a_refused_undo_of_a_child_is_one, {"I2", "I9"}),
    "a refused child is done": (_a_refused_child_is_done, {"I2"}),
    "late is done": (_late_is_done, {"I2", "I3", "I9", "rule 5"}),
    "a person may decide at any time": (_decide_at_any_time, {"decisions", "states"}),
    "other arguments for what may have happened": (_other_arguments_while_an_attempt_is_in_flight, {"decisions"}),
}
