"""The participants of a simulated run: the effects, and the state of guards and of participants that honour keys.

They implement the rules of the guard (docs/explanation/guard.md) independently of the machine, so that an error in the
machine shows as an effect that stays or is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sagas.definition.checks.probes import can_answer
from sagas.definition.model import Definition, StepDefinition, is_read
from sagas.definition.parser.operation_builder import has_reply_probe
from sagas.errors import DefiniteFailure
from sagas.protocol.messages import Call
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.result_room import require_room
from sagas.protocol.saga_view import ResidueView, SagaView
from sagas.text.exact_json import encode_json

Key = tuple[str, str, int]
"""Saga id, entry id, generation."""


@dataclass(slots=True)
class Effect:
    """The effect of one entry. ``repeated``: a late attempt had the effect once more, unnoticed."""

    path: str
    step: StepDefinition
    entry: str
    key: str = ""
    result: Any = None
    done: bool = False
    undone: bool = False
    sealed: bool = False
    confirmed: bool = False
    repeated: bool = False

    @property
    def is_present(self) -> bool:
        return self.repeated or (self.done and not self.undone)

    @property
    def deduplicates(self) -> bool:
        """True with a guard, or a participant that honours the key: a repeated attempt is recognised."""
        return self.step.do.guarded or self.step.do.idempotent


class Participants:
    """All participants of a simulated run. Reads have no effect."""

    def __init__(self) -> None:
        self._effects: dict[Key, Effect] = {}
        self._late_attempts: list[tuple[Key, Effect]] = []
        self.undone: list[str] = []

    def effects(self) -> Iterator[Effect]:
        yield from self._effects.values()

    def perform(
        self, definition: Definition, path: str, saga_id: str, call: Call, outcome: str, result: Any
    ) -> Outcome:
        """Perform one call, including all its attempts, and return its outcome."""
        step = definition.step(call.step)
        key = (saga_id, call.entry, call.generation)
        effect = self._effects.setdefault(key, Effect(path, step, call.entry, call.key))
        if call.op == "do" and outcome == "late":
            self._late_attempts.append((key, effect))
        match call.op:
            case "do":
                return self._do(call, effect, outcome, result)
            case "seal":
                return self._seal(effect)
            case "probe":
                return self._probe(effect, step)
            case "undo":
                return self._undo(call, effect, outcome)
            case "confirm":
                return self._confirm(call, effect, outcome)

    def deliver_late_attempts(self, saga_id: str | None = None, entry: str | None = None) -> None:
        """Let lost attempts arrive now: those of one entry, or all remaining ones."""
        waiting, self._late_attempts = self._late_attempts, []
        for key, effect in waiting:
            if entry is not None and key[:2] != (saga_id, entry):
                self._late_attempts.append((key, effect))
                continue
            deduplicated = effect.deduplicates and (effect.sealed or effect.undone or effect.done)
            if deduplicated or is_read(effect.step):
                continue
            # A participant that does not deduplicate repeats the effect, and nothing undoes it.
            effect.repeated = effect.done or effect.undone
            effect.done = True

    def _do(self, call: Call, effect: Effect, outcome: str, result: Any) -> Outcome:
        repeated = call.retry.max_attempts > 1 and not call.at_most_once
        if effect.deduplicates and not is_read(effect.step):
            if effect.sealed or effect.undone:
                return Outcome("late", failure=Failure("AlreadyCompensated", "already undone"), retryable=False)
            if effect.done and outcome in ("done", "rejected", "failed"):
                return Outcome.done(effect.result)
        if outcome == "late":
            return failed_outcome("unknown", call)
        if outcome in ("rejected", "failed", "unknown"):
            return failed_outcome(outcome, call)
        if call.guard is not None and call.guard.room is not None:
            try:
                require_room(encode_json(result), call.guard.room)
            except DefiniteFailure as error:  # as its guard does
                failure = Failure(error.type, str(error), error.details)
                return Outcome("failed", failure=failure, attempt=1, retryable=False)
        effect.done, effect.result = True, result
        if outcome == "crash after effect" and not repeated:
            return Outcome("unknown", failure=Failure("Timeout", "no response"), retryable=False)
        return Outcome.done(result, attempt=2 if outcome == "crash after effect" else 1)

    def _seal(self, effect: Effect) -> Outcome:
        if effect.undone:
            return Outcome("late", failure=Failure("AlreadyCompensated", "already undone"), retryable=False)
        if effect.done:
            return Outcome.done(effect.result)
        effect.sealed = True
        return Outcome.done(None, marker="sealed")

    def _probe(self, effect: Effect, step: StepDefinition) -> Outcome:
        probe = step.probe
        if probe is None or not can_answer(probe):
            return Outcome.done({"probe": "unknown"})
        if effect.done and not effect.undone:
            return Outcome.done({"probe": "done", "result": effect.result})
        if has_reply_probe(step):
            return Outcome.done({"probe": "unknown"})  # the command is on its way: only its reply is conclusive
        effect.sealed = effect.sealed or probe.operation.seals
        by_expression = probe.done is not None or probe.absent is not None
        return Outcome.done({"probe": "absent"}, marker=None if by_expression else "absent")

    def _undo(self, call: Call, effect: Effect, outcome: str) -> Outcome:
        mode = call.guard.mode if call.guard is not None else "own"
        if mode in ("decide", "mark"):
            if effect.sealed or not effect.done:
                effect.sealed = True
                return Outcome.done(None, marker="nothing_to_undo")
            if effect.confirmed and (call.guard is None or call.guard.confirmed in (None, "elsewhere")):
                return Outcome.done(None, marker="confirmed")
            if mode == "mark":
                return Outcome.done(None, marker="elsewhere")
        if effect.undone:
            return Outcome.done(None)
        if outcome in ("rejected", "failed", "unknown", "late"):
            return failed_outcome("unknown" if outcome == "late" else outcome, call)
        effect.undone = True
        self.undone.append(effect.path + effect.entry)
        return Outcome.done(None, attempt=2 if outcome == "crash after effect" else 1)

    def _confirm(self, call: Call, effect: Effect, outcome: str) -> Outcome:
        if call.guard is not None and call.guard.mode == "mark":
            return Outcome.done(None, marker="elsewhere")
        if outcome in ("rejected", "failed", "unknown", "late"):
            return failed_outcome("unknown" if outcome == "late" else outcome, call)
        effect.confirmed = True
        return Outcome.done(None)


def failed_outcome(kind: str, call: Call) -> Outcome:
    """An outcome without an effect; for ``failed``, ``attempt`` is the last attempt of the call."""
    if kind == "rejected":
        failure = Failure("Rejected", f"{call.action} rejects")
        return Outcome("rejected", failure=failure, attempt=1, retryable=False)
    if kind == "failed":
        failure = Failure("Failed", f"{call.action} fails")
        attempts = attempts_made(kind, call)
        return Outcome("failed", failure=failure, attempt=attempts, nothing_before=attempts > 1)
    return Outcome("unknown", failure=Failure("Timeout", f"no response from {call.action}"))


def attempts_made(kind: str, call: Call) -> int:
    """The number of attempts of a call with this outcome."""
    if kind in ("failed", "unknown", "late"):
        return 1 if call.at_most_once else call.retry.max_attempts
    return 2 if kind == "crash after effect" and call.retry.max_attempts > 1 and not call.at_most_once else 1


def find_inconsistencies(views: Mapping[str, SagaView], participants: Participants) -> list[ResidueView]:
    """Effects that stay although a saga is COMPENSATED, or are missing although it is COMPLETED.

    ``views`` are the views of the saga and its nested sagas, by path.
    """
    inconsistencies: list[ResidueView] = []
    for effect in participants.effects():
        end = views[effect.path]
        if is_read(effect.step) or end.state not in ("COMPLETED", "COMPENSATED"):
            continue
        row = next((row for row in end.steps if row.id == effect.entry), None)
        expected = row is not None and row.state in ("DONE", "CONFIRMED")
        stays = effect.entry in end.not_done
        if effect.repeated or (effect.is_present and not expected and not stays):
            kind = "effect_stays"
        elif expected and not effect.is_present:
            kind = "effect_missing"
        else:
            continue
        step = effect.path + effect.entry
        inconsistencies.append(ResidueView(step=step, kind=kind, system=effect.step.do.system, key=effect.key))
    return inconsistencies
