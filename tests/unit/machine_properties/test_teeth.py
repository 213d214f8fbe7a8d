"""The judge has teeth: each of these mistakes in the machine is found within a few hundred random lives.

Every mutation takes one rule out of the running machine by replacing one small function of it. A crash of the mutated
machine does not count: the judge itself has to say which rule is broken.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sagas.machine import (
    arguments,
    asking_again,
    backward,
    by_hand,
    calls,
    commit,
    compensate,
    decisions,
    forward,
    joining,
    keys,
    nested,
    permission,
    resolve,
    scheduling,
    stored,
    waits,
)
from sagas.machine.commands import CancelCall, CancelSaga, StartTimer
from sagas.machine.facts import Begin, PivotFailed, Resolved
from sagas.machine.run import Run
from sagas.machine.state import Entry
from sagas.outcomes import Failure, Outcome

from .book import Violation
from .test_properties import live

LIVES = 1_500


START = {
    "judge by the last attempt": 340,
    "give up for trouble of the infrastructure": 2_080,
    "an undo that cannot be asked counts as one": 400,
    "a confirm that cannot be asked counts as one": 320,
    "the last signal counts": 520,
    "a refused undo of a child is one": 320,
    "other arguments for what may have happened": 450,
    "what a probe cannot tell is absent": 240,
}
"""Where the lives of a mutation begin, to save time: it needs a rare meeting, and shortly after this one it happens."""


def found(lives: int = LIVES, start: int = 0) -> set[str]:
    """The rules broken in random lives, until the first one is broken."""
    for seed in range(start, start + lives):
        source = random.Random(seed)
        try:
            live(source.randbytes(160), source.randbytes(96), source.randbytes(256))
        except Violation as violation:
            return {violation.rule}
        except (AssertionError, KeyError, AttributeError):
            continue
    return set()


def test_the_machine_itself_is_innocent() -> None:
    assert found(200) == set()


# --- the mutations --------------------------------------------------------------------------------------------------


def _last_word(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(joining, "joined", lambda operation, outcome, made_before, execution="remote": outcome.kind)


def _unknown_is_not_undone(patch: pytest.MonkeyPatch) -> None:
    whole = backward.needs_undo
    patch.setattr(backward, "needs_undo", lambda run, entry: entry.outcome == "done" and whole(run, entry))


def _pivot_by_its_last_word(patch: pytest.MonkeyPatch) -> None:
    def ended(run: Run, entry: Entry, outcome: Outcome, before: int) -> None:
        run.post(PivotFailed(entry, arguments.cause_of(entry)))

    patch.setattr(forward, "_pivot_ended", ended)


def _all_compensations_at_once(patch: pytest.MonkeyPatch) -> None:
    whole = backward.roll_when_settled

    def roll_when_settled(run: Run) -> None:
        order, run.plan.dependants = run.plan.dependants, {id: [] for id in run.plan.steps}
        whole(run)
        run.plan.dependants = order

    patch.setattr(backward, "roll_when_settled", roll_when_settled)


def _do_not_wait_for_siblings(patch: pytest.MonkeyPatch) -> None:
    whole = backward.roll_when_settled

    def roll_when_settled(run: Run) -> None:
        busy, run.forward_busy = run.forward_busy, 0
        whole(run)
        run.forward_busy = busy

    patch.setattr(backward, "roll_when_settled", roll_when_settled)


def _believe_without_sealing(patch: pytest.MonkeyPatch) -> None:
    def begin(run: Run, entry: Entry, purpose: Any, *, background: bool = False) -> None:
        run.post(Resolved(entry, purpose, "absent"))

    patch.setattr(resolve, "begin", begin)


def _believe_absent_at_once(patch: pytest.MonkeyPatch) -> None:
    whole = resolve.probed

    def probed(run: Run, entry: Entry, outcome: Outcome, flight: Any) -> None:
        entry.last_end = -1e9
        whole(run, entry, outcome, flight)

    patch.setattr(resolve, "probed", probed)


def _repeat_the_keyless(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(calls, "asked_once", lambda step: False)


def _attempt_in_the_key(patch: pytest.MonkeyPatch) -> None:
    whole = keys.step_key
    patch.setattr(calls, "step_key", lambda *given: f"{whole(*given)}#1")


def _give_up_on_infrastructure(patch: pytest.MonkeyPatch) -> None:
    whole = compensate.ended

    def ended(run: Run, entry: Entry, outcome: Outcome, attempts: int | None, *, counted: bool = True) -> None:
        whole(run, entry, replace(outcome, infrastructure=False), attempts, counted=counted)

    patch.setattr(compensate, "ended", ended)


def _every_decision_is_allowed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(permission, "refusal", lambda run, decision: None)


def _a_pivot_can_be_undone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("sagas.machine.story.can_undo", lambda run: run.state == "COMPLETED")


def _forget_the_residue(patch: pytest.MonkeyPatch) -> None:
    whole = backward.finish

    def finish(run: Run) -> None:
        run.residue.clear()
        whole(run)

    patch.setattr(backward, "finish", finish)


def _new_arguments_for_the_undo(patch: pytest.MonkeyPatch) -> None:
    whole = calls.call_of

    def call_of(run: Run, entry: Entry, flight: Any) -> Any:
        call = whole(run, entry, flight)
        return replace(call, arguments={}) if call.op == "undo" else call

    patch.setattr(calls, "call_of", call_of)


def _endless_retries(patch: pytest.MonkeyPatch) -> None:
    whole = calls.call_of

    def call_of(run: Run, entry: Entry, flight: Any) -> Any:
        call = whole(run, entry, flight)
        return replace(call, retry=replace(call.retry, max_attempts=0))

    patch.setattr(calls, "call_of", call_of)


def _no_arguments_for_a_mistake(patch: pytest.MonkeyPatch) -> None:
    whole = arguments._with  # pyright: ignore[reportPrivateUsage]

    def with_(*given: Any) -> dict[str, Any]:
        try:
            return whole(*given)
        except arguments.DefinitionFault:
            return {}

    patch.setattr(arguments, "_with", with_)


def _a_mistake_is_any_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(arguments, "fault", lambda error: Outcome("failed", failure=Failure("Bug", str(error)), attempt=1))


def _a_mistake_in_an_undo_undoes(patch: pytest.MonkeyPatch) -> None:
    whole = compensate._ask  # pyright: ignore[reportPrivateUsage]

    def ask(run: Run, entry: Entry) -> None:
        whole(run, entry)
        if entry.id in run.parked:
            run.unpark(entry)
            by_hand.undone(run, entry)

    patch.setattr(compensate, "_ask", ask)


def _a_mistake_in_a_confirm_confirms(patch: pytest.MonkeyPatch) -> None:
    whole = commit.begin

    def begin(run: Run, entry: Entry) -> None:
        whole(run, entry)
        if entry.id in run.parked:
            run.unpark(entry)
            commit.confirmed(run, entry)

    patch.setattr(commit, "begin", begin)


def _forget_corrected_arguments(patch: pytest.MonkeyPatch) -> None:
    whole = decisions.decide
    patch.setattr(decisions, "decide", lambda run, entry, said: whole(run, entry, {**said, "arguments": None}))


def _other_arguments_under_the_same_key(patch: pytest.MonkeyPatch) -> None:
    def retry(run: Run, entry: Entry, said: Any, guarded: bool) -> None:
        entry.override, entry.arguments, entry.decision = said.get("arguments"), None, None
        run.post(Begin(entry))

    patch.setattr(decisions, "_retry", retry)


def _forget_the_corrected_definition(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "adopt", lambda run, definition: None)


def _a_retry_skips_the_condition(patch: pytest.MonkeyPatch) -> None:
    whole = scheduling.restart

    def restart(run: Run, record: Any) -> None:
        whole(run, record) if record.items is not None else run.post(Begin(record.entries[0]))

    patch.setattr(scheduling, "restart", restart)


def _what_a_probe_cannot_tell_is_absent(patch: pytest.MonkeyPatch) -> None:
    whole = arguments.probed

    def probed(run: Run, entry: Entry, probe: Any, answer: Outcome) -> tuple[str, Any]:
        said, result = whole(run, entry, probe, answer)
        return ("absent" if said == "unknown" and probe.done is not None else said), result

    patch.setattr(arguments, "probed", probed)


def _done_without_asking_the_guard(patch: pytest.MonkeyPatch) -> None:
    whole = calls.send

    def send(run: Run, entry: Entry, ask: Any, purpose: Any = "", *, background: bool = False) -> None:
        if ask == "write" and not purpose:
            forward.done(run, entry, None)
        else:
            whole(run, entry, ask, purpose, background=background)

    patch.setattr(calls, "send", send)


def _the_last_signal_counts(patch: pytest.MonkeyPatch) -> None:
    whole = waits.signalled

    def signalled(run: Run, event: Any) -> list[Entry]:
        run.signals.pop(event.name, None)
        return whole(run, event)

    patch.setattr(waits, "signalled", signalled)


def _early_signals_are_lost(patch: pytest.MonkeyPatch) -> None:
    whole = waits.signalled

    def signalled(run: Run, event: Any) -> list[Entry]:
        waiting = whole(run, event)
        if not waiting:
            run.signals.pop(event.name)
        return waiting

    patch.setattr(waits, "signalled", signalled)


def _a_wait_that_ran_out_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(waits, "fired", lambda run, entry: Outcome.done({"data": None, "by": None, "at": None}))


def _every_requirement_is_met(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(waits, "require", lambda run, entry: Outcome.done(None))


def _signals_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stored, "PLAIN", tuple(name for name in stored.PLAIN if name != "signals"))


def _a_new_run_forgets_what_was_cancelled(patch: pytest.MonkeyPatch) -> None:
    whole = asking_again.outstanding
    cancels = (CancelCall, CancelSaga)
    patch.setattr(
        asking_again, "outstanding", lambda run, at: [c for c in whole(run, at) if not isinstance(c, cancels)]
    )


def _timers_start_anew(patch: pytest.MonkeyPatch) -> None:
    whole = asking_again.outstanding

    def outstanding(run: Run, at: float) -> list[Any]:
        return [replace(c, seconds=c.seconds + 9.0) if isinstance(c, StartTimer) else c for c in whole(run, at)]

    patch.setattr(asking_again, "outstanding", outstanding)


def _a_continued_item_keeps_its_result(patch: pytest.MonkeyPatch) -> None:
    whole = scheduling.closed

    def closed(run: Run, entry: Entry, ok: bool) -> None:
        results = run.record(entry).results
        whole(run, entry, ok)
        if results is not None and entry.continued and entry.index is not None:
            results[entry.index] = {"continued": True}

    patch.setattr(scheduling, "closed", closed)


def _a_refused_undo_of_a_child_is_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nested, "_undone", lambda event: Outcome.done(None))


def _a_refused_child_is_done(patch: pytest.MonkeyPatch) -> None:
    whole = nested._done  # pyright: ignore[reportPrivateUsage]

    def done(event: Any, story: Any) -> Outcome:
        return Outcome.done(None) if event.state == "REFUSED" else whole(event, story)

    patch.setattr(nested, "_done", done)


def _late_is_done(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forward, "_late", lambda run, entry: forward.done(run, entry, None))


def _decide_at_any_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(permission, "_stuck", lambda run, entry, op, at: entry.flight is not None)


def _other_arguments_while_an_attempt_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(permission, "_unchangeable", lambda run, decision, entry, op: None)


MUTATIONS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], set[str]]] = {
    "judge by the last attempt": (_last_word, {"I2", "I3", "I4"}),
    "an unknown step is not undone": (_unknown_is_not_undone, {"I2", "I9"}),
    "a pivot is given up by its last word": (_pivot_by_its_last_word, {"rule 5", "I2", "I9", "I10"}),
    "compensate everything at once": (_all_compensations_at_once, {"I9"}),
    "compensate while siblings run": (_do_not_wait_for_siblings, {"rule 2", "states"}),
    "believe that nothing happened, without a seal": (
        _believe_without_sealing,
        {"I2", "I3", "I9", "rule 5", "idempotent: false"},
    ),
    "believe a probe before its attempts are old": (_believe_absent_at_once, {"idempotent: false", "I2", "I3"}),
    "repeat what has no key": (_repeat_the_keyless, {"idempotent: false"}),
    "the attempt is part of the key": (_attempt_in_the_key, {"rule 8: keys"}),
    "give up for trouble of the infrastructure": (_give_up_on_infrastructure, {"rule 3"}),
    "accept every decision": (_every_decision_is_allowed, {"decisions"}),
    "a saga with a pivot can be undone": (_a_pivot_can_be_undone, {"rule 15", "I10"}),
    "forget what a person left behind": (_forget_the_residue, {"I2", "states", "I9", "RESIDUE"}),
    "other arguments for the short form": (_new_arguments_for_the_undo, {"short form"}),
    "no end to the attempts of one call": (_endless_retries, {"rule 4"}),
    "no arguments where an expression fails": (_no_arguments_for_a_mistake, {"rule 10"}),
    "an expression that fails is any failure": (_a_mistake_is_any_failure, {"rule 10", "wait", "require"}),
    "an undo that cannot be asked counts as one": (_a_mistake_in_an_undo_undoes, {"I2", "I9"}),
    "a confirm that cannot be asked counts as one": (_a_mistake_in_a_confirm_confirms, {"rule 13"}),
    "forget the arguments a person gave": (_forget_corrected_arguments, {"retry --with", "rule 10", "wait"}),
    "other arguments under the same key": (
        _other_arguments_under_the_same_key,
        {"one key, one intention", "retry --with", "earlier attempts"},
    ),
    "forget the definition a person gave": (_forget_the_corrected_definition, {"rule 7"}),
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
    "a person may decide at any time": (_decide_at_any_time, {"decisions"}),
    "other arguments for what may have happened": (_other_arguments_while_an_attempt_is_in_flight, {"decisions"}),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_machine_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, rules = MUTATIONS[name]
    mutate(monkeypatch)
    broken = found(start=START.get(name, 0))
    assert broken, "the judge saw nothing wrong"
    assert broken <= rules, f"found, but called {broken}"
