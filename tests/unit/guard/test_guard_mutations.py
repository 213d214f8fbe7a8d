"""With one rule removed from the real guard, an order must be found in which an effect leaks or is duplicated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from saga_activities.guard import rules
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.transaction import GuardRow, RowOp, RowReason, RowWrite
from sagas.protocol.outcomes import Outcome
from tests.unit.guard.delivery_orders import Budget, walk
from tests.unit.guard.memory_guard import Memory, MemoryGuard, MemoryTransaction, body, now

CLOCK: dict[str, Any] = {"scheduled_at": 0.0, "deadline": 0.0}
HERE = EntryKey("saga", "step")


SMALL: tuple[Budget, ...] = (
    {(1, "do"): 2, (1, "refused_do"): 1, (1, "undo"): 2, (1, "confirm"): 1, (1, "seal"): 1},
    {(1, "do"): 2, (1, "undo_confirmed"): 2, (1, "confirm"): 2},
    {(1, "do"): 1, (1, "undo"): 1, (1, "seal"): 1, (2, "do"): 2, (2, "undo"): 1},
    {(1, "do"): 1, (1, "undo_of_others"): 2, (1, "undo"): 1, (1, "seal"): 1},
)


def broken_promises() -> dict[str, tuple[str, ...]]:
    collected: dict[str, tuple[str, ...]] = {}
    for budget in SMALL:
        collected |= walk(budget).broken
    return collected


def test_the_unmodified_guard_has_no_violations() -> None:
    assert broken_promises() == {}


def test_a_row_is_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    async def always(self: MemoryTransaction, op: RowOp, reason: RowReason, **more: Any) -> bool:
        self.memory.rows[self.generation, op] = GuardRow(reason, more.get("args_hash"), more.get("result"))
        return True

    monkeypatch.setattr(MemoryTransaction, "insert", always)
    assert "an action took effect twice" in broken_promises()


def test_an_undo_seals_first(monkeypatch: pytest.MonkeyPatch) -> None:
    real = MemoryTransaction.insert

    async def no_tombstone(self: MemoryTransaction, op: RowOp, reason: RowReason, **more: Any) -> bool:
        if (op, reason) == ("do", "undo"):
            return (self.generation, op) not in self.memory.rows
        return await real(self, op, reason, **more)

    monkeypatch.setattr(MemoryTransaction, "insert", no_tombstone)
    assert "an effect after the compensation or the seal" in broken_promises()


def test_the_reason_of_a_row_tells_a_seal_from_an_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seal's own undo row still refuses the action; with that gone too, the action is reported as done."""
    monkeypatch.setattr(rules, "is_sealed", lambda row: False)
    assert walk(SMALL[0]).disagreements, "a sealed step was told to be an undone one"

    async def leaves_gaps(tx: Any) -> None: ...

    monkeypatch.setattr(rules, "seal_other_rows", leaves_gaps)
    assert "told done without an effect" in broken_promises()


def test_an_undo_row_refuses_the_action(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "has_been_undone", lambda rows: False)
    assert "told done after it was undone" in broken_promises()


def test_the_undo_row_is_written_with_the_compensation(monkeypatch: pytest.MonkeyPatch) -> None:
    insert, commit = MemoryTransaction.insert, MemoryTransaction.commit

    async def no_undo_row(self: MemoryTransaction, op: RowOp, reason: RowReason, **more: Any) -> bool:
        return op == "undo" or await insert(self, op, reason, **more)

    async def without_its_result(self: MemoryTransaction, save: RowWrite | None) -> None:
        await commit(self, replace(save, result=None) if save is not None and save.op == "undo" else save)

    monkeypatch.setattr(MemoryTransaction, "insert", no_undo_row)
    monkeypatch.setattr(MemoryTransaction, "commit", without_its_result)
    assert "it was compensated twice" in broken_promises()


def test_the_fence_tells_whether_the_step_was_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = MemoryTransaction.insert

    async def no_fence(self: MemoryTransaction, op: RowOp, reason: RowReason, **more: Any) -> bool:
        won = await real(self, op, reason, **more)
        return True if (op, reason) == ("confirm", "undo") else won

    monkeypatch.setattr(MemoryTransaction, "insert", no_fence)
    assert "a confirmed effect was undone by the wrong action" in broken_promises()


def test_a_confirm_needs_a_standing_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "may_be_confirmed", lambda rows: True)
    assert "confirmed without a standing effect" in broken_promises()


def test_generations_have_rows_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    real = MemoryTransaction.__init__

    def first_generation_only(self: MemoryTransaction, memory: Memory, generation: int) -> None:
        real(self, memory, 1)

    monkeypatch.setattr(MemoryTransaction, "__init__", first_generation_only)
    assert "refused although nothing was undone" in broken_promises()


def test_a_duplicate_does_not_delete_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    real = MemoryGuard.run

    async def tidy(self: MemoryGuard, address: EntryKey, op: RowOp, *more: Any, **limits: Any) -> Outcome:
        there = (address.generation, "do") in self.memory.rows
        outcome = await real(self, address, op, *more, **limits)
        if op == "do" and there:
            self.memory.rows.pop((address.generation, "do"), None)
        return outcome

    monkeypatch.setattr(MemoryGuard, "run", tidy)
    assert "an action took effect twice" in broken_promises()


def test_a_refused_action_leaves_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    real = MemoryGuard.run

    async def keeps_the_row(self: MemoryGuard, address: EntryKey, op: RowOp, *more: Any, **limits: Any) -> Outcome:
        outcome = await real(self, address, op, *more, **limits)
        if outcome.kind == "rejected" and op == "do":
            self.memory.rows[address.generation, "do"] = GuardRow("do", "hash")
        return outcome

    monkeypatch.setattr(MemoryGuard, "run", keeps_the_row)
    assert "told done without an effect" in broken_promises()


def test_a_key_is_bound_to_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    def second() -> Outcome:
        guard = MemoryGuard(Memory({}, {}))
        now(guard.do(HERE, "one", body("applied"), **CLOCK))
        return now(guard.do(HERE, "two", body("applied"), **CLOCK))

    assert second().park_reason == "key used with other arguments"
    monkeypatch.setattr(rules, "same_arguments", lambda row, args_hash: True)
    assert second().kind == "done", "without the rule the caller gets the result of another call"
    assert "an effect with other arguments was undone" in broken_promises()


def test_an_undo_is_bound_to_the_arguments_of_its_effect() -> None:
    guard = MemoryGuard(Memory({}, {}))
    now(guard.do(HERE, "one", body("applied"), **CLOCK))
    before = guard.memory.copy()
    undo = now(guard.undo(HERE, body("undone"), forward_hash="two", **CLOCK))
    assert undo.park_reason == "the effect was made with other arguments"
    assert (guard.memory.rows, guard.memory.states) == (before.rows, before.states), "an operator finds it as it was"
    assert now(guard.undo(HERE, body("undone"), forward_hash="one", **CLOCK)).kind == "done"
    assert now(guard.undo(HERE, body("undone"), forward_hash="two", **CLOCK)).park_reason, "nor is it told undone"


def test_a_contradicting_undo_parks(monkeypatch: pytest.MonkeyPatch) -> None:
    def undo() -> tuple[Outcome, Mapping[Any, GuardRow]]:
        guard = MemoryGuard(Memory({}, {}))
        return now(guard.undo(HERE, body("undone"), known_done=True, **CLOCK)), guard.memory.rows

    outcome, rows = undo()
    assert outcome.marker == "unknown_effect"
    assert outcome.park_reason == "the guard has no row of this effect"
    assert rows == {}, "nothing was changed, so a person can still find the right database"
    monkeypatch.setattr(rules, "unknown_effect", rules.nothing_to_undo)
    assert undo()[0].marker == "nothing_to_undo", "without the rule the effect would be forgotten"


def test_a_seal_fills_the_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sealing undo whose COMMIT got lost finds its own row again; without it the answer would stay unknown."""

    def reported() -> Outcome | None:
        guard = MemoryGuard(Memory({}, {}))
        now(guard.undo(HERE, body("undone"), **CLOCK))
        rows = {op: row for (_, op), row in guard.memory.rows.items()}
        return rules.stored_outcome("undo", rows, None)

    first = reported()
    assert first is not None
    assert first.marker == "nothing_to_undo"

    async def leaves_gaps(tx: Any) -> None: ...

    monkeypatch.setattr(rules, "seal_other_rows", leaves_gaps)
    assert reported() is None


HELD: tuple[Budget, ...] = (
    {(1, "do"): 2, (1, "undo"): 2, (1, "confirm"): 1, (1, "ask_over"): 1, (1, "ask_committed"): 1},
    {(1, "do"): 2, (1, "undo_confirmed"): 1, (1, "confirm"): 2, (1, "ask_committed"): 1},
)


def broken_promises_of_events() -> set[str]:
    return {name for budget in HELD for name in walk(budget).broken}


def test_the_unmodified_guard_keeps_held_events_safe() -> None:
    assert broken_promises_of_events() == set()


@pytest.mark.parametrize(
    ("op", "promise"),
    [
        ("confirm", "confirmed, and its event is still held"),
        ("undo", "compensated, and its event is still held"),
    ],
)
def test_confirm_and_undo_decide_about_events(op: str, promise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = rules.held_decision_of
    monkeypatch.setattr(rules, "held_decision_of", lambda operation: None if operation == op else real(operation))
    assert promise in broken_promises_of_events()


def test_dropping_an_event_fences_the_confirm(monkeypatch: pytest.MonkeyPatch) -> None:
    async def without_a_fence(tx: Any) -> rules.ScriptResult:
        await tx.rows()
        return rules.decide_held("drop")

    monkeypatch.setattr(rules, "drop_held", without_a_fence)
    assert broken_promises_of_events() & {
        "the event of a confirmed step was dropped",
        "told confirmed, and its event is dropped",
    }
