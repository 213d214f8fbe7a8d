"""A compensation in another database than its step: decided at the step, run remotely, each with its own row."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from saga_activities.guard.entry_key import EntryKey
from tests.unit.guard.memory_guard import Memory, MemoryGuard, body, now

CLOCK: dict[str, Any] = {"scheduled_at": 0.0, "deadline": 0.0}
HERE = EntryKey("saga", "step")


@dataclass
class WalkResult:
    orders: int = 0
    broken: dict[str, tuple[str, ...]] = field(default_factory=dict)


def walk(*, asks_home: bool = True, own_row: bool = True) -> WalkResult:
    """All orders of three deliveries of `do`, two of the decision at home, two of the other action.

    ``asks_home`` False: the other action runs without a decision where the step ran. ``own_row`` False: it runs
    without a row of its own.
    """
    result = WalkResult()

    def step(
        home: MemoryGuard, away: MemoryGuard, may_run: bool, gone: bool, budget: tuple[int, int, int], path
    ) -> None:
        result.orders += 1
        effects = home.memory.state(1).applied - away.memory.state(1).undone
        undone = away.memory.state(1).undone
        for name, wrong in {
            "undone twice": undone > 1,
            "undone without an effect": undone > home.memory.state(1).applied,
            "an effect after the compensation": gone and effects != 0,
        }.items():
            if wrong:
                result.broken.setdefault(name, path)
        if result.broken:
            return
        dos, marks, owns = budget
        if dos:
            home_after = MemoryGuard(home.memory.copy())
            now(home_after.do(HERE, "hash", body("applied"), **CLOCK))
            step(home_after, away, may_run, gone, (dos - 1, marks, owns), (*path, "do"))
        if marks and asks_home:
            home_after = MemoryGuard(home.memory.copy())
            reported = now(home_after.undo(HERE, None, mode="mark", **CLOCK)).marker
            assert reported in ("elsewhere", "nothing_to_undo")
            step(
                home_after,
                away,
                may_run or reported == "elsewhere",
                gone or reported == "nothing_to_undo",
                (dos, marks - 1, owns),
                (*path, reported),
            )
        if owns and (may_run or not asks_home):
            away_after = MemoryGuard(away.memory.copy() if own_row else Memory({}, away.memory.states))
            now(away_after.undo(HERE, body("undone"), mode="own", **CLOCK))
            step(home, away_after, may_run, True, (dos, marks, owns - 1), (*path, "own"))

    step(MemoryGuard(Memory({}, {})), MemoryGuard(Memory({}, {})), False, False, (3, 2, 2), ())
    return result


@cache
def as_it_is() -> WalkResult:
    return walk()


def test_no_delivery_order_leaks_an_effect() -> None:
    assert as_it_is().broken == {}
    assert as_it_is().orders > 50


def test_without_the_home_decision_an_effect_leaks() -> None:
    assert set(walk(asks_home=False).broken) & {"undone without an effect", "an effect after the compensation"}


def test_without_its_own_row_the_remote_action_runs_twice() -> None:
    assert "undone twice" in walk(own_row=False).broken


def test_the_remote_decision_is_stored() -> None:
    guard = MemoryGuard(Memory({}, {}))
    now(guard.do(HERE, "hash", body("applied"), **CLOCK))
    for _ in range(2):
        assert now(guard.undo(HERE, None, mode="mark", **CLOCK)).marker == "elsewhere"
    assert now(guard.do(HERE, "hash", body("applied"), **CLOCK)).kind == "late"
    sealed = now(guard.seal(HERE, **CLOCK))
    assert (sealed.marker, sealed.result) == ("elsewhere", {"effect": "applied"}), "the remote action may need it"


def test_a_home_alternate_runs_next_to_the_remote_decision() -> None:
    """When one alternate is remote, all run as decided elsewhere, also the one in the step's database."""
    guard = MemoryGuard(Memory({}, {}))
    now(guard.do(HERE, "hash", body("applied"), **CLOCK))
    now(guard.undo(HERE, None, mode="mark", **CLOCK))
    for _ in range(2):
        outcome = now(guard.undo(HERE, body("undone"), mode="own", **CLOCK))
        assert outcome.result == {"effect": "undone"}
    assert guard.memory.state(1).undone == 1


def test_a_remote_confirmed_compensation_is_decided_at_home() -> None:
    """The decision is stored: a repeated call gets it again, and neither the action nor its confirm comes late."""
    guard = MemoryGuard(Memory({}, {}))
    now(guard.do(HERE, "hash", body("applied"), **CLOCK))
    now(guard.confirm(HERE, body("confirmed"), **CLOCK))
    for _ in range(2):
        outcome = now(guard.undo(HERE, body("undone"), confirmed_body="elsewhere", **CLOCK))
        assert (outcome.kind, outcome.marker) == ("done", "confirmed")
    assert guard.memory.state(1).undone == 0, "`compensate` is for what was not confirmed"
    sealed = now(guard.seal(HERE, **CLOCK))
    assert (sealed.marker, sealed.result) == ("confirmed", {"effect": "applied"})
    assert now(guard.do(HERE, "hash", body("applied"), **CLOCK)).kind == "late"
    assert now(guard.confirm(HERE, body("confirmed"), **CLOCK)).kind == "late"


def test_without_confirmed_compensation_a_confirmed_step_stays() -> None:
    guard = MemoryGuard(Memory({}, {}))
    now(guard.do(HERE, "hash", body("applied"), **CLOCK))
    now(guard.confirm(HERE, body("confirmed"), **CLOCK))
    outcome = now(guard.undo(HERE, body("undone"), **CLOCK))
    assert (outcome.kind, outcome.marker) == ("failed", "confirmed")
    assert outcome.park_reason is not None
    assert now(guard.confirm(HERE, body("confirmed"), **CLOCK)).kind == "done", "nothing was changed"


def test_a_remote_confirm_fences_the_undo() -> None:
    guard = MemoryGuard(Memory({}, {}))
    now(guard.do(HERE, "hash", body("applied"), **CLOCK))
    assert now(guard.confirm(HERE, None, mode="mark", **CLOCK)).marker == "elsewhere"
    assert now(guard.undo(HERE, body("undone"), **CLOCK)).marker == "confirmed"
    assert guard.memory.state(1).undone == 0
