"""Random sagas with locks, by the same rules and rule 17; and mutations of the machine that break it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Definition, Locks
from sagas.machine.locking import locks
from sagas.protocol.messages import (
    AcquireLocks,
    Call,
    Command,
    LocksAnswered,
    LocksChanged,
    MachineEvent,
    ReleaseLocks,
    StartSaga,
    TimerFired,
    UndoRequested,
)
from tests.helpers.sampling import scaled
from tests.unit.engine.machine_properties.inputs.choice_sequence import ChoiceSequence
from tests.unit.engine.machine_properties.inputs.scenarios import RandomScenario
from tests.unit.engine.machine_properties.inputs.strategies import make_case
from tests.unit.engine.machine_properties.oracle.ledger import Violation
from tests.unit.engine.machine_properties.runner import Runner
from tests.unit.engine.machine_properties.seeds import broken_rules, valid_runs

RUNS = scaled(170, 6_000)
BLOCKER = {"key": "k", "owner": "another", "since": 0.0}


class LockRunner(Runner):
    """Answers the requests for locks, by the rules of the lock tables, and checks what the saga does without them."""

    def __init__(self, definition: Definition, *given: Any, source: random.Random, **more: Any) -> None:
        super().__init__(definition, *given, **more)
        self.source = source
        self.request: AcquireLocks | None = None
        self.waiting: AcquireLocks | None = None
        self.granted: set[str] = set()
        self.closed: set[str] = set()
        self.requested: set[str] = set()
        self.refused = False
        self.begun = False
        plan, written = ExecutionPlan(definition), definition.locks
        assert written is not None
        covered = set(plan.steps) if written.from_ is None else {written.from_, *plan.descendants(written.from_)}
        self.covered = covered

    def _options(self) -> dict[str, Callable[[], None]]:
        options = super()._options()
        if self.request is not None:
            options["locks"] = lambda: self._answer(self.request)  # pyright: ignore[reportArgumentType]
        elif self.waiting is not None:
            options["locks changed"] = self._wake
        return options

    def _answer(self, request: AcquireLocks) -> None:
        self.request = None
        word = "granted"
        if request.holder in self.closed:
            word = "late"
        elif request.holder not in self.granted and self.source.random() < 0.5:
            word = "waiting" if request.waits else "refused"
        if word == "granted":
            self.granted.add(request.holder)
        self.waiting = request if word == "waiting" else None
        if word in ("refused", "late"):
            self.oracle.ledger.causes += ["locked", "late"]
        self.seen.add(f"locks {word}")
        self.feed(LocksAnswered(word, self.now, [] if word == "granted" else [BLOCKER]))  # pyright: ignore[reportArgumentType]

    def _wake(self) -> None:
        if self.waiting is not None and self.source.random() < 0.5:
            self.granted.add(self.waiting.holder)
        self.feed(LocksChanged(self.now))

    def feed(self, event: MachineEvent) -> None:
        if isinstance(event, TimerFired) and event.id == locks.LIMIT:
            self.oracle.ledger.causes.append("locked")
            self.seen.add("locks in vain")
        if isinstance(event, UndoRequested):
            self.begun = False
        super().feed(event)

    def _carry_out(self, command: Command) -> None:
        match command:
            case AcquireLocks():
                self.requested.add(command.holder)
                self.request = None if self.continuing else command
            case ReleaseLocks():
                self.closed.add(command.holder)
                self.granted.discard(command.holder)
                self.request = self.waiting = None
            case Call() | StartSaga():
                forward = not isinstance(command, Call) or command.op == "do"
                step = command.entry.partition("#")[0]
                if forward and step in self.covered and not self._holds():
                    raise Violation("rule 17", f"{command.entry} starts, but the locks are not held")
                undone = isinstance(command, Call) and command.op == "undo" and "undone later" in self.seen
                if undone and self.requested and not self.granted:
                    raise Violation("rule 17", f"{command.entry} is undone later, but the locks are not held")
            case _:
                pass
        super()._carry_out(command)
        if self.finish is not None and self.requested - self.closed:
            raise Violation("rule 17", f"{self.finish.state}, but not released: {self.requested - self.closed}")

    def _holds(self) -> bool:
        written = self.definition.locks
        assert written is not None
        return bool(self.granted) or (written.until == "commit" and self.machine.phase == "committed")

    def _continue_as_new(self) -> None:
        self.request = None
        super()._continue_as_new()


def simulate(seed: int) -> LockRunner | None:
    """One whole run; raises Violation when a rule is broken. None: its saga cannot have locks like these."""
    source = random.Random(seed)
    case = make_case(ChoiceSequence(source.randbytes(160)))
    if case.definition.recovery == "forward":
        return None
    plan = ExecutionPlan(case.definition)
    possible = [id for id in plan.steps if id not in plan.after_pivot and plan.steps[id].kind != "retriable"]
    written = Locks(
        ["k"],
        "shop",
        wait=source.choice((0.0, 5.0, 3_000.0)),
        from_=source.choice((None, None, source.choice(possible))),
        until=source.choice(("commit", "final", "final")),
    )
    scenario = RandomScenario(ChoiceSequence(source.randbytes(192)), ChoiceSequence(source.randbytes(384)))
    runner = LockRunner(
        replace(case.definition, locks=written),
        case.input,
        scenario,
        source=source,
        generation=case.generation,
        repaired=case.repaired and replace(case.repaired, locks=written),
    )
    runner.run()
    return runner


def test_every_run_with_locks_satisfies_every_rule() -> None:
    seen: Counter[str] = Counter()
    for runner in valid_runs(simulate, range(RUNS)):
        reason = runner.story["reason"]
        locked = reason is not None and reason["kind"] == "locked"
        seen["locked"] += locked
        seen["undone later"] += "undone later" in runner.seen
        seen["waited"] += "locks waiting" in runner.seen and not locked
        assert runner.definition.locks is not None
        if locked and runner.definition.locks.from_ is None:
            assert {row["state"] for row in runner.story["steps"]} == {"PENDING"}, runner.definition
    assert min(seen["locked"], seen["waited"], seen["undone later"]) >= RUNS // 250, seen


def _nobody_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(locks, "hold_back", lambda run, step: False)


def _an_undo_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    whole = locks.hold_back_undo

    def hold_back(run: Any) -> bool:
        whole(run)
        return False

    patch.setattr(locks, "hold_back_undo", hold_back)


def _keep_them(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(locks, "release_at_end", lambda run: None)


def _a_refusal_is_a_grant(patch: pytest.MonkeyPatch) -> None:
    whole = locks.answered
    patch.setattr(locks, "answered", lambda run, event: whole(run, replace(event, answer="granted")))


MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "steps start without the locks": _nobody_waits,
    "an undo starts without the locks": _an_undo_does_not_wait,
    "no release at the end": _keep_them,
    "a refusal counts as a grant": _a_refusal_is_a_grant,
}

START = {"an undo starts without the locks": 360}
"""The first run of a mutation, to save time: it needs a rare coincidence, which occurs shortly after this one."""


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_of_locks_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[name](monkeypatch)
    start = START.get(name, 0)
    assert next(broken_rules(simulate, range(start, start + 2_000)), None), "the oracle found no violation"
