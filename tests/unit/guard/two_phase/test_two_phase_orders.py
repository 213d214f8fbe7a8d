"""The protocol of two-phase commit in every order with a crash or a freeze at every statement, and without each rule.

The real protocol runs over rows in memory. Each removed rule must break a promise.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from saga_activities.guard.two_phase import rules
from sagas.protocol.outcomes import Outcome
from tests.unit.guard.two_phase import orders
from tests.unit.guard.two_phase.memory_participant import MemoryDatabase, MemoryParticipant, MemoryTransaction
from tests.unit.guard.two_phase.orders import Operation, Order, perform, violations


def breaks(promise: str, some: Iterable[Order] | None = None) -> bool:
    """True if an order of at most three operations, or one of ``some``, breaks the promise."""
    examined = some if some is not None else itertools.chain(orders.orders(2), orders.orders(3))
    return any(promise in perform(order) for order in examined)


def test_no_order_breaks_a_promise() -> None:
    count = 0
    for length in (1, 2, 3):
        some, broken = violations(orders.orders(length))
        assert broken == {}
        count += some
    assert count > 5_000


@pytest.mark.slow
def test_no_order_with_two_stopped_operations_breaks_a_promise() -> None:
    count, broken = violations(orders.orders(3, stopped=2))
    assert broken == {}
    assert count > 100_000


def test_an_attempt_after_the_commit_sees_that_it_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard that writes no row `committed`, and looks for none, breaks a promise."""
    monkeypatch.setattr(rules, "is_committed", lambda rows: False)
    real = MemoryTransaction.insert

    async def insert(self: MemoryTransaction, op: str, *values: Any, **more: Any) -> bool:
        return True if op == rules.COMMITTED else await real(self, op, *values, **more)

    monkeypatch.setattr(MemoryTransaction, "insert", insert)
    again: Order = [("do", None), ("confirm", None)]
    some = ([("do", None), ("confirm", (at, "crash")), *again] for at in range(1, 12))
    assert breaks("the effect was applied twice", some)


def test_a_missing_transaction_is_no_proof_of_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "lost_transaction", lambda: rules.guard_rules.done(rules.GuardRow("confirm")))
    assert breaks("told confirmed without an effect")


def test_an_undone_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "is_refused", lambda rows: False)
    assert breaks("undone, and a transaction is prepared")


def test_the_reason_of_do_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: MemoryTransaction) -> None: ...

    monkeypatch.setattr(MemoryTransaction, "refuse_do", nothing)
    assert breaks("undone, and a transaction is prepared")


def test_the_row_of_do_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: MemoryTransaction) -> None: ...

    monkeypatch.setattr(MemoryTransaction, "lock_do", nothing)
    assert breaks("undone, and a transaction is prepared")


def test_the_result_is_stored_before_the_prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: MemoryParticipant, run: int, result: str | None) -> None: ...

    monkeypatch.setattr(MemoryParticipant, "_store_result", nothing)
    assert breaks("told another result than the effect's")


def test_each_run_has_a_row_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen attempt stores its result when its successor has prepared."""
    monkeypatch.setattr(rules, "run_op", lambda run: "run.1")
    monkeypatch.setattr(rules, "may_prepare", lambda rows, run: True)
    some = ([("do", (at, "freeze and lose")), ("do", None), ("do", None)] for at in range(1, 20))
    assert breaks("told another result than the effect's", some)


def test_an_undo_rolls_back_what_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    real = MemoryParticipant.end_prepared

    async def end(self: MemoryParticipant, id: Any, deadline: float, *, commit: bool) -> bool:
        return await real(self, id, deadline, commit=commit) if commit else False

    monkeypatch.setattr(MemoryParticipant, "end_prepared", end)
    assert breaks("an undo that nothing disturbs does not succeed")


def test_a_frozen_prepare_is_found_by_the_undo() -> None:
    """The attempt stops right before PREPARE; the undo waits for its lock, and then rolls back what it has prepared."""
    database = MemoryDatabase()
    do = Operation(database, "do", "do")
    while database.prepared is None:
        last = do.run(1)
        assert last == 1
    database.prepared = None  # as if PREPARE had not been executed yet
    waiting = Operation(database, "undo", "undo")
    waiting.run()
    assert waiting.outcome is not None
    assert waiting.outcome.infrastructure, "the undo must not decide while the attempt holds the lock"
    database.prepared = database.lock_holder
    do.run()
    undo = Operation(database, "undo", "undo")
    undo.run()
    assert (undo.outcome and undo.outcome.kind, database.prepared, database.effects) == ("done", None, [])


def test_an_undo_is_bound_to_the_arguments_of_its_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that is prepared stays so, as one that is committed does: an operator decides."""

    def undone(*before: orders.Kind) -> tuple[Outcome | None, MemoryDatabase]:
        database = MemoryDatabase()
        for kind in before:
            Operation(database, kind, kind).run()
        undo = Operation(database, "undo", "undo", forward_hash="other")
        undo.run()
        return undo.outcome, database

    for is_committed in (False, True):
        outcome, database = undone("do", "confirm") if is_committed else undone("do")
        assert outcome is not None
        assert outcome.park_reason == "the effect was made with other arguments"
        assert (database.prepared is None, bool(database.effects)) == (is_committed, is_committed)
    monkeypatch.setattr(rules.guard_rules, "same_arguments", lambda row, args_hash: True)
    _, database = undone("do")
    assert database.prepared is None, "without the rule the effect of others is rolled back"
