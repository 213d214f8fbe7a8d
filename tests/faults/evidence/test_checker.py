"""Tests of the checker: each corruption of valid evidence is detected by the rule responsible for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.faults.cell_runner import CellRunner
from tests.faults.cells import COMPLETED, Cell, cells
from tests.faults.evidence.activity_history import Activity
from tests.faults.evidence.checker import RULES, check
from tests.faults.evidence.evidence import Effect, Evidence, GuardRow
from tests.faults.feature_matrix import RUN_AGAIN
from tests.faults.matrix import ROWS

BY_ID: Mapping[str, Cell] = {cell.id: cell for cell in cells(ROWS)}
GOOD = {"completed": "12-database-errors-A", "undone": "06-participant-refuses-P", "parked": "06-participant-refuses-A"}

Corruption = Callable[[Evidence], Evidence]


def drop(step: str, op: str) -> Corruption:
    return lambda seen: replace(
        seen, journal=tuple(note for note in seen.journal if (note.step, note.op) != (step, op))
    )


def again(step: str, op: str) -> Corruption:
    return lambda seen: replace(
        seen, journal=(*seen.journal, *(note for note in seen.journal if (note.step, note.op) == (step, op)))
    )


def swap(first: tuple[str, str], second: tuple[str, str]) -> Corruption:
    """Exchange the commit times of two effects."""

    def corrupt(seen: Evidence) -> Evidence:
        at = {(effect.step, effect.op): effect.at for effect in seen.journal}
        exchanged = {first: at[second], second: at[first]}
        journal = [replace(note, at=exchanged.get((note.step, note.op), note.at)) for note in seen.journal]
        return replace(seen, journal=tuple(sorted(journal, key=lambda entry: entry.at)))

    return corrupt


def money(account: str, change: int) -> Corruption:
    return lambda seen: replace(seen, balances={**seen.balances, account: seen.balances[account] + change})


def both(*spoils: Corruption) -> Corruption:
    def corrupt(seen: Evidence) -> Evidence:
        for spoil in spoils:
            seen = spoil(seen)
        return seen

    return corrupt


def story(**changed: Any) -> Corruption:
    return lambda seen: replace(seen, story={**seen.story, **changed})


def guard_without(step: str, op: str) -> Corruption:
    return lambda seen: replace(seen, guard=tuple(row for row in seen.guard if (row.step, row.op) != (step, op)))


def sealed(step: str) -> Corruption:
    def corrupt(seen: Evidence) -> Evidence:
        rows = tuple(row for row in seen.guard if row.step != step)
        return replace(seen, guard=(*rows, GuardRow(step, 1, "do", "undo", 0.0)))

    return corrupt


def ended_twice(id: str) -> Corruption:
    return lambda seen: replace(
        seen,
        activities=(
            *seen.activities,
            *(activity for activity in seen.activities if activity.id == id and activity.end == "done"),
        ),
    )


def late_effect(step: str, op: str) -> Corruption:
    return lambda seen: replace(seen, journal=(*seen.journal, Effect(step, op, seen.journal[-1].at + 1)))


SKIPPED = {"step": "ship", "decision": "skip", "who": "x", "reason": "y"}
CORRUPTIONS: tuple[tuple[str, str, str, Corruption], ...] = (
    ("I1", "completed", "a balance grows", money("merchant", 1)),
    ("I1", "completed", "for a moment there was too little", lambda seen: replace(seen, totals=frozenset({100, 90}))),
    ("I2", "completed", "an effect is missing", drop("thank", "do")),
    ("I2", "undone", "a compensation is missing", drop("debit", "undo")),
    ("I2", "completed", "another end", story(state="COMPENSATED")),
    ("I2", "parked", "no reason to be parked", story(parked=[{"step": "ship", "why": ""}])),
    ("I3", "completed", "an effect twice", again("hold", "do")),
    ("I3", "undone", "a compensation twice", again("order", "undo")),
    ("I3", "undone", "undone without having been done", drop("order", "do")),
    ("I4", "undone", "it took effect after its undo", swap(("hold", "do"), ("hold", "undo"))),
    ("I4", "completed", "it took effect although sealed", sealed("ship")),
    ("I8", "completed", "money between two accounts", both(money("carrier", 1), money("marketing", -1))),
    ("I8", "completed", "another order", lambda seen: replace(seen, order="open")),
    ("I8", "completed", "a guard row is missing", guard_without("order", "do")),
    ("I8", "undone", "an undo row is missing", guard_without("order", "undo")),
    ("I8", "completed", "two ends in the history", ended_twice("hold")),
    ("I8", "completed", "Temporal's status differs", lambda seen: replace(seen, status="FAILED")),
    ("I8", "undone", "a compensated step's undo is not there", drop("hold", "undo")),
    ("I9", "undone", "two compensations swapped", swap(("hold", "undo"), ("order", "undo"))),
    ("I10", "completed", "a compensation past the pivot", late_effect("hold", "undo")),
    ("I10", "completed", "a step before the pivot", swap(("ship", "do"), ("capture", "do"))),
    ("I11", "undone", "no reason", story(reason=None)),
    ("I11", "undone", "another reason", story(reason={"kind": "failed", "step": "capture"})),
    ("I11", "parked", "nothing is parked", story(parked=[])),
    ("I11", "completed", "a person decided", story(operator=[SKIPPED])),
    ("I12", "completed", "too late", lambda seen: replace(seen, seconds=120.0)),
    ("I12", "completed", "a transaction stays open", lambda seen: replace(seen, idle_transactions=1)),
    ("I13", "completed", "a deposit stays held", lambda seen: replace(seen, holds=10)),
    ("I16", "completed", "two runs", lambda seen: replace(seen, runs=2)),
)


@pytest.mark.sampled(keep=4)
@pytest.mark.parametrize(
    ("rule", "run", "what", "corrupt"),
    CORRUPTIONS,
    ids=[f"{corruption[0]} {corruption[2]}" for corruption in CORRUPTIONS],
)
async def test_corrupted_evidence_is_detected(
    rule: str, run: str, what: str, corrupt: Corruption, cell_runner: CellRunner
) -> None:
    cell = BY_ID[GOOD[run]]
    result = await cell_runner.result(cell)
    assert result.evidence is not None
    assert not result.violations, "this test needs a good run"
    problems = check(corrupt(result.evidence), cell.expected, cell.row.shape)
    assert any(sentence.startswith(f"{rule}: ") for sentence in problems), f"{what}: {problems}"


STEPS = ("debit", "hold", "order", "capture", "ship", "thank")
FURTHER_RUN = (
    *((step, "do", 1) for step in STEPS[:3]),
    ("order", "undo", 1),
    ("hold", "undo", 1),
    *((step, "do", 2) for step in STEPS[1:4]),
    *((step, "do", 1) for step in STEPS[4:]),
)
"""What a saga does that goes back to the savepoint `debit` once, when its pivot is refused."""

AGAIN = Evidence(
    balances={"customer": 59, "transit": 0, "fees": 1, "merchant": 35, "carrier": 2, "marketing": 3},
    holds=0,
    order="shipped",
    journal=tuple(Effect(step, op, float(at), run) for at, (step, op, run) in enumerate(FURTHER_RUN)),
    guard=(
        *(GuardRow(step, run, op, op, float(at)) for at, (step, op, run) in enumerate(FURTHER_RUN)),
        GuardRow("capture", 1, "do", "undo", 4.5),
    ),
    story={
        "state": "COMPLETED",
        "reason": None,
        "steps": [
            {"id": step, "state": "DONE", "generation": run}
            for step, run in {step: run for step, op, run in FURTHER_RUN if op == "do"}.items()
        ],
        "parked": [],
        "operator": [],
    },
    status="COMPLETED",
    activities=tuple(
        Activity(f"{step}~undo" if op == "undo" else step, "", "done", at, at)
        for at, (step, op, _) in enumerate(FURTHER_RUN)
    ),
    runs=1,
    totals=frozenset({100}),
    idle_transactions=0,
    prepared=0,
    seconds=1.0,
)


def without(step: str, op: str, run: int) -> Corruption:
    return lambda seen: replace(
        seen, journal=tuple(note for note in seen.journal if (note.step, note.op, note.generation) != (step, op, run))
    )


def also(step: str, op: str, at: float, run: int) -> Corruption:
    return lambda seen: replace(seen, journal=(*seen.journal, Effect(step, op, at, run)))


def with_generation(seen: Evidence, run: int) -> Evidence:
    return replace(seen, story={**seen.story, "steps": [{**row, "generation": run} for row in seen.story["steps"]]})


CORRUPTIONS_OF_FURTHER_RUN: tuple[tuple[str, str, Corruption], ...] = (
    ("I2", "one of the first run was not undone", without("order", "undo", 1)),
    ("I3", "two generations of a step are there", without("hold", "undo", 1)),
    ("I3", "a step of the second run twice", also("hold", "do", 5.5, 2)),
    ("I3", "undone in a run without having been done", also("thank", "undo", 5.5, 2)),
    ("I4", "the refused pivot took effect although sealed", also("capture", "do", 6.5, 1)),
    ("I8", "the guard does not know the second run", lambda seen: replace(seen, guard=seen.guard[:5])),
    ("I8", "more ends of a step than runs", ended_twice("hold")),
    ("I8", "the story names the first run", lambda seen: with_generation(seen, 1)),
    ("I9", "two undos of the first run swapped", swap(("hold", "undo"), ("order", "undo"))),
    ("I10", "an undo of the first run past the pivot", both(without("hold", "undo", 1), also("hold", "undo", 9.5, 1))),
)


def test_a_further_run_after_a_savepoint_has_no_violations() -> None:
    assert check(AGAIN, RUN_AGAIN) == []
    assert [each_check.partition(":")[0] for each_check in check(AGAIN, COMPLETED)] == ["I2"], (
        "only a savepoint allows an undo"
    )


@pytest.mark.parametrize(
    ("rule", "what", "corrupt"),
    CORRUPTIONS_OF_FURTHER_RUN,
    ids=[f"{corruption[0]} {corruption[1]}" for corruption in CORRUPTIONS_OF_FURTHER_RUN],
)
def test_a_corrupted_further_run_is_detected(rule: str, what: str, corrupt: Corruption) -> None:
    violations = check(corrupt(AGAIN), RUN_AGAIN)
    assert any(sentence.startswith(f"{rule}: ") for sentence in violations), f"{what}: {violations}"


def test_every_rule_has_a_violation() -> None:
    assert {corruption[0] for corruption in CORRUPTIONS} == set(RULES)
