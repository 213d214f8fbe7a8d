"""The operations of a step with `two_phase` on real databases: prepared, committed, rolled back, sealed."""

from __future__ import annotations

from sagas.errors import Rejected
from tests.integration.guard.conftest import clock
from tests.integration.guard.two_phase.conftest import TwoPhaseDatabase


async def test_the_effect_appears_with_the_confirm(shop: TwoPhaseDatabase) -> None:
    prepared = await shop.do()
    assert prepared.kind == "done"
    assert await shop.stock() == 10
    assert await shop.is_prepared()
    assert (await shop.guard.confirm(shop.at, **clock())).kind == "done"
    assert await shop.stock() == 9
    assert await shop.reasons() == {"do": "do", "committed": "do", "confirm": "confirm"}
    assert (await shop.guard.confirm(shop.at, **clock())).kind == "done"
    assert await shop.stock() == 9


async def test_an_undo_rolls_back(shop: TwoPhaseDatabase) -> None:
    await shop.do()
    outcome = await shop.guard.undo(shop.at, known_done=True, **clock())
    assert (outcome.kind, outcome.marker) == ("done", None)
    assert not await shop.is_prepared()
    assert await shop.stock() == 10
    assert await shop.reasons() == {"do": "undo", "confirm": "undo", "undo": "undo"}
    assert (await shop.guard.undo(shop.at, known_done=True, **clock())).kind == "done"
    assert (await shop.do()).kind == "late"
    assert (await shop.guard.confirm(shop.at, **clock())).kind == "late"
    assert (await shop.guard.seal(shop.at, **clock())).kind == "late"


async def test_a_repeated_attempt_gets_the_result_of_the_prepared_one(shop: TwoPhaseDatabase) -> None:
    first = await shop.do()
    assert (await shop.do()).result == first.result
    await shop.guard.confirm(shop.at, **clock())
    assert (await shop.do()).result == first.result, "a late attempt must not repeat what was committed"
    assert await shop.stock() == 9


async def test_a_rejection_leaves_nothing_prepared(shop: TwoPhaseDatabase) -> None:
    assert (await shop.do(shop.refuse)).kind == "rejected"
    assert not await shop.is_prepared()
    assert (await shop.guard.seal(shop.at, **clock())).marker == "sealed"
    assert (await shop.do()).kind == "late"


async def test_an_attempt_after_a_failure_prepares(shop: TwoPhaseDatabase) -> None:
    async def fail(sql: object) -> None:
        raise RuntimeError("no")

    assert (await shop.do(fail)).kind == "failed"
    assert (await shop.do()).kind == "done"
    await shop.guard.confirm(shop.at, **clock())
    assert await shop.stock() == 9


async def test_an_undo_before_the_step_refuses_it(shop: TwoPhaseDatabase) -> None:
    assert (await shop.guard.undo(shop.at, **clock())).marker == "nothing_to_undo"
    assert (await shop.do()).kind == "late"
    assert (await shop.guard.undo(shop.at, **clock())).marker == "nothing_to_undo"


async def test_a_seal_finds_what_is_prepared_and_what_is_committed(shop: TwoPhaseDatabase) -> None:
    first = await shop.do()
    assert (await shop.guard.seal(shop.at, **clock())).result == first.result
    await shop.guard.confirm(shop.at, **clock())
    assert (await shop.guard.seal(shop.at, **clock())).result == first.result


async def test_other_arguments_under_the_same_key_park(shop: TwoPhaseDatabase) -> None:
    await shop.do()
    outcome = await shop.guard.do(shop.at, "other", shop.take, **clock())
    assert outcome.park_reason == "key used with other arguments"


async def test_a_committed_effect_is_not_undone(shop: TwoPhaseDatabase) -> None:
    await shop.do()
    await shop.guard.confirm(shop.at, **clock())
    assert (await shop.guard.undo(shop.at, known_done=True, **clock())).marker == "confirmed"


async def test_a_confirm_reports_a_transaction_that_an_administrator_has_rolled_back(shop: TwoPhaseDatabase) -> None:
    await shop.do()
    assert await shop.end_prepared(commit=False)
    outcome = await shop.guard.confirm(shop.at, **clock())
    assert (outcome.kind, outcome.park_reason) == (
        "failed",
        "the prepared transaction was rolled back outside the saga",
    )


async def test_a_confirm_accepts_a_transaction_that_an_administrator_has_committed(shop: TwoPhaseDatabase) -> None:
    await shop.do()
    assert await shop.end_prepared(commit=True)
    assert (await shop.guard.confirm(shop.at, **clock())).kind == "done"
    assert await shop.stock() == 9


async def test_an_undo_of_an_effect_that_the_guard_does_not_know_parks(shop: TwoPhaseDatabase) -> None:
    assert (await shop.guard.undo(shop.at, known_done=True, **clock())).marker == "unknown_effect"


async def test_an_operator_records_what_happened_by_hand(shop: TwoPhaseDatabase) -> None:
    assert (await shop.do(shop.refuse)).kind == "rejected"
    recorded = await shop.guard.record_manual_result(shop.at, "do", {"by": "hand"}, **clock())
    assert recorded.result == {"by": "hand"}
    assert (await shop.do()).result == {"by": "hand"}
    assert (await shop.guard.confirm(shop.at, **clock())).kind == "done"
    assert await shop.stock() == 10


async def test_what_is_prepared_wins_over_an_operator(shop: TwoPhaseDatabase) -> None:
    first = await shop.do()
    assert (await shop.guard.record_manual_result(shop.at, "do", 1, **clock())).result == first.result
    assert (await shop.guard.record_manual_result(shop.at, "undo", 2, **clock())).result == 2
    assert not await shop.is_prepared()


async def test_a_python_rejection_is_one_of_the_business(shop: TwoPhaseDatabase) -> None:
    async def act(sql: object) -> None:
        raise Rejected("sold out", sku="A")

    outcome = await shop.do(act)
    assert outcome.failure is not None
    assert outcome.failure.details == {"sku": "A"}
