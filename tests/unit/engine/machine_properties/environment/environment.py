"""The simulated environment: participants, and a platform that makes attempts and reports what Temporal would report.

Attempts are separate things. One may succeed, be rejected, fail and be rolled back, be lost before or after its
effect, be delivered twice, or linger as a zombie that commits later. The machine receives only the last outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sagas.definition.model import Definition, StepDefinition
from sagas.protocol.messages import Call, CallEnded
from sagas.protocol.outcomes import Failure, Outcome
from tests.unit.engine.machine_properties.environment.effects import Effect, EffectLog
from tests.unit.engine.machine_properties.environment.guard_model import CLOSE, DECISIONS, WRITE, Database, RolledBack
from tests.unit.engine.machine_properties.environment.participants import Participant

Fate = Literal[
    "ok", "rejected", "failed", "failed_final", "infrastructure", "lost_before", "lost_after", "zombie", "duplicate",
    "raised_before", "raised_after", "not_started", "unsure", "late",
]  # fmt: skip
"""What becomes of one attempt. ``raised_…``: the worker caught an error of an unguarded action and reports `unknown`.
``late``: the step was sealed from outside (a reused id, a reset) before the attempt."""

CHOICES: dict[str, tuple[Fate, ...]] = {
    "do": ("rejected", "lost_after", "lost_before", "failed", "zombie", "failed_final", "infrastructure", "duplicate",
           "raised_after", "raised_before", "not_started", "late", "late", "late"),
    "undo": ("failed", "lost_after", "rejected", "zombie", "infrastructure", "lost_before", "duplicate", "not_started",
             "failed_final"),
    "confirm": ("lost_after", "rejected", "failed", "zombie", "infrastructure", "duplicate", "failed_final"),
    "seal": ("lost_before", "lost_after", "infrastructure", "zombie"),
    "probe": ("unsure", "lost_before"),
}  # fmt: skip

MadeFate = Callable[[Call, int], Fate]
"""Chooses the fate of attempt n of a call."""


@dataclass(slots=True)
class Flight:
    """A call in flight."""

    call: Call
    attempt: int = 0
    clean: bool = True
    held: Outcome | None = None
    cancelled: bool = False


@dataclass(slots=True)
class Zombie:
    """An abandoned attempt that may still commit (until ``until``, if known)."""

    call: Call
    until: float | None = None


@dataclass
class Environment:
    """Everything outside the machine. ``fate`` decides the result of each attempt, ``chance`` the details."""

    definition: Definition
    fate: MadeFate
    chance: Callable[[int], bool]
    log: EffectLog = field(default_factory=EffectLog)
    on_effect: Callable[[Effect], None] = lambda effect: None
    databases: dict[str, Database] = field(default_factory=dict)
    zombies: list[Zombie] = field(default_factory=list)
    uncertain: set[str] = field(default_factory=set)
    lates: int = 0

    def __post_init__(self) -> None:
        self.participant = Participant(
            standing=lambda call: self.log.net(call.entry, call.generation) > 0,
            keyed=lambda call: call.op != "do" or self.step(call.entry).do.idempotent,
            made_elsewhere=lambda call: self.step(call.entry).do.guarded,
        )

    def step(self, entry: str) -> StepDefinition:
        return self.definition.step(entry.partition("#")[0])

    # --- what the platform does ---------------------------------------------------------------------------------

    def advance(self, flight: Flight, at: float) -> CallEnded | None:
        """Let one thing happen to a call: an attempt is made, or its answer arrives. None while it goes on."""
        call = flight.call
        if flight.held is not None:
            if flight.cancelled and call.cancellable and self.chance(50):
                self.uncertain.add(call.key)
                return _ended(call, Outcome("unknown", failure=Failure("Cancelled", "cancelled")), at)
            return self._decide_outcome(flight, flight.held, at)
        if flight.cancelled and flight.attempt == 0:
            never = Outcome("failed", failure=Failure("Cancelled", "never started"), attempt=1, retryable=False)
            return CallEnded(call.id, never, at, 0)
        if flight.cancelled:
            return _ended(call, Outcome("unknown", failure=Failure("Cancelled", "cancelled")), at)
        flight.attempt += 1
        outcome = self.attempt(call, self.fate(call, flight.attempt), at)
        if outcome.attempt is not None:
            outcome = replace(outcome, attempt=flight.attempt if call.local else None)
        outcome = replace(outcome, nothing_before=call.local and flight.clean and flight.attempt > 1)
        flight.clean &= outcome.kind in ("failed", "rejected") and not outcome.not_started
        if outcome.kind == "done" and self.chance(25):
            flight.held = outcome
            return None
        return self._decide_outcome(flight, outcome, at)

    def _decide_outcome(self, flight: Flight, outcome: Outcome, at: float) -> CallEnded | None:
        call = flight.call
        limit = 1 if call.at_most_once else call.retry.max_attempts
        if not call.local and outcome.kind in ("unknown", "rejected") and flight.attempt >= limit:
            outcome = replace(outcome, attempt=limit)  # Temporal tells of a failed activity that its maximum is reached
        definite = call.guard is not None or call.remembers_rejections or not call.local
        doubted = outcome.kind == "rejected" and not definite and flight.attempt > 1 and not outcome.nothing_before
        hopeless = outcome.kind in ("done", "rejected", "late") or not outcome.retryable
        final = (hopeless and not doubted) or not outcome.counted
        if final or flight.attempt >= limit or (call.retry.give_up_after is not None and self.chance(30)):
            return _ended(call, outcome, at)
        flight.held = None
        return None

    def commit_zombie(self, index: int) -> None:
        """An attempt that was given up goes through after all (or is refused by who guards against that)."""
        zombie = self.zombies.pop(index)
        outcome = self._transaction(zombie.call, lambda action: self._effect(zombie.call, action))
        self.lates += outcome.kind == "late"

    def expire(self, now: float) -> None:
        """Attempts older than what their participant promises (``settle``) are gone."""
        self.zombies = [z for z in self.zombies if z.until is None or z.until > now]

    # --- one attempt --------------------------------------------------------------------------------------------

    def attempt(self, call: Call, fate: Fate, at: float) -> Outcome:
        """Make one attempt of a call; its number is not part of the outcome."""
        fate = self._possible(call, fate)
        if fate == "late":
            assert call.guard is not None
            base = self.databases.setdefault(call.guard.connection, Database(call.guard.connection))
            base.run(replace(call, op="seal"), lambda action: None)
            fate = "ok"
        lost = Outcome("unknown", failure=Failure("Timeout", "no answer in time"), attempt=None)
        raised = Outcome("unknown", failure=Failure("OSError", "the action raised"), attempt=1)
        run = self._probe if call.op == "probe" else self._transaction
        if fate in ("ok", "lost_after", "raised_after", "duplicate"):
            outcome = run(call, lambda action: self._effect(call, action))
            if fate == "duplicate":
                self.linger(call, at)
            if fate in ("ok", "duplicate"):
                return outcome
            self.uncertain.add(call.key)
            return lost if fate == "lost_after" else raised
        if fate == "unsure":
            return Outcome.done({"probe": "unknown", "status": "pending", "message": "cannot tell"})
        if fate in ("lost_before", "zombie", "raised_before"):
            self.uncertain.add(call.key)
            if fate == "zombie":
                self.linger(call, at)
            return lost if fate != "raised_before" else raised
        if fate == "not_started":
            failure = Failure("NotFoundError", "no worker knows this action")
            return Outcome("failed", failure=failure, attempt=None, not_started=True)

        def refuse(action: str) -> Any:
            raise RolledBack(_REFUSALS[fate])

        return run(call, refuse)

    def _possible(self, call: Call, fate: Fate) -> Fate:
        """The nearest fate that this kind of participant can have."""
        if call.action in DECISIONS and fate in ("late", "rejected", "failed", "failed_final"):
            return "ok"  # no action runs, so nothing can reject
        if fate == "duplicate" and call.op == "do" and call.guard is None and not self.step(call.entry).do.idempotent:
            return "ok"  # without a key the second call is indistinguishable from the first
        if call.guard is not None and fate in ("raised_before", "raised_after"):
            return "lost_before" if fate == "raised_before" else "lost_after"
        if call.guard is None:
            if fate == "late":
                return "ok"
            if not call.local and fate in ("failed", "failed_final", "infrastructure"):
                return "raised_before"
            if fate == "infrastructure":
                return "failed"
            if fate in ("failed", "failed_final") and call.key in self.uncertain:
                return "raised_before"
        return fate

    def linger(self, call: Call, at: float) -> None:
        """An attempt of the call is abandoned, and may commit later."""
        if call.op == "probe":
            return
        step = self.step(call.entry)
        unguarded = call.op == "do" and call.guard is None
        if unguarded and not step.do.idempotent and step.probe is None:
            return  # nothing in the contract could ever catch it
        promised = unguarded and step.probe is not None and not step.probe.operation.seals
        self.zombies.append(Zombie(call, at + step.settle if promised else None))

    def _transaction(self, call: Call, action: Callable[[str], Any]) -> Outcome:
        if call.action == CLOSE:
            return Outcome.done({"parts": []}, marker="skipped" if call.arguments["skip"] else None)
        if call.guard is None:
            if call.op == "undo":
                self._forget_unkeyed(call)
            outcome = self.participant.run(call, action)
            if outcome.kind == "rejected" and call.op != "do" and call.remembers_rejections:
                # Its rejection applies to all attempts before it, though an operator may retry.
                self.zombies = [z for z in self.zombies if z.call.key != call.key]
            return outcome
        base = self.databases.setdefault(call.guard.connection, Database(call.guard.connection))
        return base.run(call, action)

    def _forget_unkeyed(self, call: Call) -> None:
        """Without keys no late attempt could be refused; such a participant promises that none comes after an undo."""
        if not self.step(call.entry).do.idempotent:
            self.zombies = [z for z in self.zombies if not (z.call.entry == call.entry and z.call.op == "do")]

    def _effect(self, call: Call, action: str) -> Any:
        assert call.op in ("do", "undo", "confirm")
        if action == WRITE:
            return call.arguments.get("result")
        if self.step(call.entry).kind == "read":
            return {"read": True}
        compensate = self.step(call.entry).compensate
        always = compensate is not None and compensate.always and call.op == "undo"
        nothing = always and self.log.net(call.entry, call.generation) <= 0
        self.record(Effect(call.entry, call.generation, "always" if nothing else call.op, action))
        return {"id": f"{action}:{call.key}", "n": len(self.log.effects)} if call.op == "do" else None

    def record(self, effect: Effect) -> None:
        self.log.add(effect)
        self.on_effect(effect)

    def _probe(self, call: Call, action: Callable[[str], Any]) -> Outcome:
        probe = self.step(call.entry).probe
        spoken = probe is None or (probe.done is None and probe.absent is None)  # else expressions read the answer
        if self.log.net(call.entry, call.generation) > 0:
            stored = self.participant.answers.get(call.key)
            result = stored.result if stored else {"id": "probed"}
            return Outcome.done({"probe": "done", "result": result} if spoken else {"status": "here", "value": result})
        if probe is not None and probe.operation.seals:
            self.participant.refuse(call.key)
            self.zombies = [z for z in self.zombies if z.call.key != call.key]
        return Outcome.done({"probe": "absent"}, marker="absent") if spoken else Outcome.done({"status": "gone"})


_REFUSALS: dict[str, Outcome] = {
    "rejected": Outcome("rejected", failure=Failure("Rejected", "no", {"why": "business"}), attempt=1, retryable=False),
    "failed": Outcome("failed", failure=Failure("ValueError", "rolled back"), attempt=1),
    "failed_final": Outcome("failed", failure=Failure("TooLarge", "rolled back for good"), attempt=1, retryable=False),
    "infrastructure": Outcome("failed", failure=Failure("Infrastructure", "40001"), attempt=1, infrastructure=True),
}


def _ended(call: Call, outcome: Outcome, at: float) -> CallEnded:
    attempts = outcome.attempt
    if outcome.not_started and (call.at_most_once or (not call.local and call.retry.max_attempts == 1)):
        attempts = 0  # no attempt is before it; else the workflow does not know that
    return CallEnded(call.id, outcome, at, attempts if attempts is None or outcome.counted else attempts - 1)
