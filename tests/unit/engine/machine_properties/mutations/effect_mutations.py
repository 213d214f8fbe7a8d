"""Mutations in how the machine decides about effects: each removes one rule from the running machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sagas.definition.model import Operation
from sagas.machine import calls, commit, failure_reasons, retries
from sagas.machine.decisions import rules
from sagas.machine.internal_events import EffectLookedUp, PivotFailed
from sagas.machine.state import Entry, SagaRun
from sagas.machine.undo import effect_lookup, rollback
from sagas.protocol import outcomes, payloads
from sagas.protocol.outcomes import Outcome, OutcomeKind

Mutation = tuple[Callable[[pytest.MonkeyPatch], None], set[str]]
"""What is taken out of the running machine, and the rules of which one has to be found broken."""


def _last_word(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outcomes, "merge_outcome", lambda operation, outcome, *before: outcome.kind)


def _every_rejection_is_remembered(patch: pytest.MonkeyPatch) -> None:
    whole = outcomes.merge_outcome

    def merge(operation: Operation, outcome: Outcome, *before: Any) -> OutcomeKind:
        return whole(replace(operation, remembers_rejections=True), outcome, *before)

    patch.setattr(outcomes, "merge_outcome", merge)


def _unknown_is_not_undone(patch: pytest.MonkeyPatch) -> None:
    whole = rollback.needs_compensation
    patch.setattr(rollback, "needs_compensation", lambda run, entry: entry.outcome == "done" and whole(run, entry))


def _pivot_by_its_last_word(patch: pytest.MonkeyPatch) -> None:
    def ended(run: SagaRun, entry: Entry, outcome: Outcome, before: int) -> None:
        run.post(PivotFailed(entry, failure_reasons.failure_cause(entry)))

    patch.setattr(commit, "pivot_attempt_ended", ended)


def _all_compensations_at_once(patch: pytest.MonkeyPatch) -> None:
    whole = rollback.start_compensating

    def roll_when_settled(run: SagaRun) -> None:
        order, run.plan.dependants = run.plan.dependants, {id: [] for id in run.plan.steps}
        whole(run)
        run.plan.dependants = order

    patch.setattr(rollback, "start_compensating", roll_when_settled)


def _do_not_wait_for_siblings(patch: pytest.MonkeyPatch) -> None:
    whole = rollback.start_compensating

    def roll_when_settled(run: SagaRun) -> None:
        busy, run.forward_busy = run.forward_busy, 0
        whole(run)
        run.forward_busy = busy

    patch.setattr(rollback, "start_compensating", roll_when_settled)


def _believe_without_sealing(patch: pytest.MonkeyPatch) -> None:
    def begin(run: SagaRun, entry: Entry, purpose: Any, *, background: bool = False) -> None:
        run.post(EffectLookedUp(entry, purpose, "absent"))

    patch.setattr(effect_lookup, "look_up_effect", begin)


def _believe_absent_at_once(patch: pytest.MonkeyPatch) -> None:
    whole = effect_lookup.probe_ended

    def probed(run: SagaRun, entry: Entry, outcome: Outcome, flight: Any) -> None:
        entry.last_attempt_ended_at = -1e9
        whole(run, entry, outcome, flight)

    patch.setattr(effect_lookup, "probe_ended", probed)


def _repeat_the_keyless(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retries, "is_single_attempt", lambda step: False)


def _attempt_in_the_key(patch: pytest.MonkeyPatch) -> None:
    whole = payloads.idempotency_key
    patch.setattr(calls, "idempotency_key", lambda *given: f"{whole(*given)}#1")


def _give_up_on_infrastructure(patch: pytest.MonkeyPatch) -> None:
    whole = rollback.undo_ended

    def ended(run: SagaRun, entry: Entry, outcome: Outcome, attempts: int | None, *, counted: bool = True) -> None:
        whole(run, entry, replace(outcome, infrastructure=False), attempts, counted=counted)

    patch.setattr(rollback, "undo_ended", ended)


def _every_decision_is_allowed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "decision_refusal", lambda run, decision: None)


def _a_pivot_can_be_undone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("sagas.machine.view.undo_refusal", lambda run: None if run.state == "COMPLETED" else "it runs")


def _forget_the_residue(patch: pytest.MonkeyPatch) -> None:
    whole = rollback.finish

    def finish(run: SagaRun, *, completed: bool) -> None:
        run.residue.clear()
        whole(run, completed=completed)

    patch.setattr(rollback, "finish", finish)


def _new_arguments_for_the_undo(patch: pytest.MonkeyPatch) -> None:
    whole = calls.build_call

    def call_of(run: SagaRun, entry: Entry, flight: Any) -> Any:
        call = whole(run, entry, flight)
        return replace(call, arguments={}) if call.op == "undo" else call

    patch.setattr(calls, "build_call", call_of)


def _endless_retries(patch: pytest.MonkeyPatch) -> None:
    whole = calls.build_call

    def call_of(run: SagaRun, entry: Entry, flight: Any) -> Any:
        call = whole(run, entry, flight)
        return replace(call, retry=replace(call.retry, max_attempts=0))

    patch.setattr(calls, "build_call", call_of)


EFFECTS: dict[str, Mutation] = {
    "judge by the last attempt": (_last_word, {"I2", "I3", "I4", "I9"}),
    "every participant remembers its rejections": (_every_rejection_is_remembered, {"I2", "I3", "I4", "I9"}),
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
}
