"""Random sagas in one bulk workflow: each keeps every rule, whatever its neighbours do; and mutations that break it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sagas.bulk import bulk_machine
from sagas.bulk.bulk_machine import BulkMachine
from sagas.bulk.member import Member, PendingCall
from sagas.protocol.messages import CallEnded
from sagas.protocol.outcomes import Outcome
from tests.helpers.sampling import scaled
from tests.unit.engine.machine_properties.bulk_runner import BulkRunner
from tests.unit.engine.machine_properties.inputs.choice_sequence import ChoiceSequence
from tests.unit.engine.machine_properties.inputs.scenarios import RandomScenario
from tests.unit.engine.machine_properties.inputs.strategies import make_case
from tests.unit.engine.machine_properties.seeds import broken_rules

RUNS = scaled(20, 800)
MUTATED_RUNS = 300

MUST_BE_SEEN = {
    "ended here COMPLETED", "ended here COMPENSATED", "chunk lost", "chunk lost after its commit", "chunk given up",
    "time ran out", "somebody acts", "all leave", "leaves: it is parked", "leaves: somebody acts on it",
    "leaves: only calls with a guard are shared", "PARKED", "RESIDUE", "late", "cancel accepted", "undone later",
    "happy path",
}  # fmt: skip


def simulate(seed: int) -> BulkRunner:
    """All sagas of one bulk workflow, to their ends; raises Violation when a rule is broken."""
    source = random.Random(seed)
    case = make_case(ChoiceSequence(source.randbytes(160)))

    def scenario(_: int) -> RandomScenario:
        return RandomScenario(ChoiceSequence(source.randbytes(96)), ChoiceSequence(source.randbytes(256)))

    runner = BulkRunner(case, ChoiceSequence(source.randbytes(400)), scenario)
    runner.run()
    return runner


def test_every_saga_of_a_bulk_workflow_satisfies_every_rule() -> None:
    seen: Counter[str] = Counter()
    for seed in range(RUNS):
        seen.update(simulate(seed).seen)
    assert not (MUST_BE_SEEN - seen.keys())


# --- mutations -------------------------------------------------------------------------------------------------------


def _leaves_with_a_call_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "is_performing", property(lambda member: False))


def _the_neighbours_outcome(patch: pytest.MonkeyPatch) -> None:
    whole = BulkMachine.chunk_ended

    def ended(machine: BulkMachine, id: int, outcomes: Sequence[Outcome | None], *more: Any) -> Any:
        return whole(machine, id, [*outcomes[1:], *outcomes[:1]], *more)

    patch.setattr(BulkMachine, "chunk_ended", ended)


def _attempts_are_forgotten_on_leaving(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BulkMachine, "_count_attempts", lambda *_: None)


def _attempts_of_a_lost_chunk_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    whole = BulkMachine.chunk_ended

    def ended(machine: BulkMachine, id: int, outcomes: Sequence[Outcome | None], at: float, attempt: int = 1) -> Any:
        first = [outcome and (replace(outcome, attempt=1) if outcome.attempt else outcome) for outcome in outcomes]
        return whole(machine, id, first, at, 1)

    patch.setattr(BulkMachine, "chunk_ended", ended)


def _each_chunk_begins_to_count(patch: pytest.MonkeyPatch) -> None:
    whole = Member.attempt_ended

    def ended(member: Member, pending: PendingCall, outcome: Outcome, at: float) -> CallEnded | float | str:
        pending.attempts = 0
        return whole(member, pending, outcome, at)

    patch.setattr(Member, "attempt_ended", ended)


def _unknown_ends_the_call_as_failed(patch: pytest.MonkeyPatch) -> None:
    whole = Member.attempt_ended

    def ended(member: Member, pending: PendingCall, outcome: Outcome, at: float) -> CallEnded | float | str:
        return whole(member, pending, replace(outcome, kind="failed") if outcome.kind == "unknown" else outcome, at)

    patch.setattr(Member, "attempt_ended", ended)


def _a_neighbours_call(patch: pytest.MonkeyPatch) -> None:
    """Calls that differ in the action or the mode of the guard share a chunk."""
    patch.setattr(bulk_machine, "chunk_key", lambda call: call.step)


MUTATIONS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "leaves with a call in flight": (_leaves_with_a_call_in_flight, "earlier attempts"),
    "the neighbour's outcome": (_the_neighbours_outcome, "I2"),
    "attempts are forgotten on leaving": (_attempts_are_forgotten_on_leaving, "earlier attempts"),
    "attempts of a lost chunk are forgotten": (_attempts_of_a_lost_chunk_are_forgotten, "I2"),
    "each chunk begins to count": (_each_chunk_begins_to_count, "rule 5"),
    "unknown ends the call as failed": (_unknown_ends_the_call_as_failed, "I2"),
    "a neighbour's call": (_a_neighbours_call, "wire"),
}

START = {"each chunk begins to count": 90, "a neighbour's call": 33}
"""The first run of a mutation, to save time: it needs a rare coincidence, which occurs shortly after this one."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_bulk_machine_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, rule = MUTATIONS[name]
    mutate(monkeypatch)
    start = START.get(name, 0)
    assert next(broken_rules(simulate, range(start, start + MUTATED_RUNS)), None) == rule
