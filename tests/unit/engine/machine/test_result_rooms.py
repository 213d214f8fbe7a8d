"""Rule 9: a guarded call is promised a room for its result, and a larger result fails the step before the commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sagas.definition.model import Definition, Savepoint
from sagas.errors import DefiniteFailure
from sagas.machine import state_budget
from sagas.protocol.messages import Call, CallEnded, StartSaga
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.result_room import require_room
from sagas.text.exact_json import encode_json
from tests.unit.engine.machine.driver import MachineDriver, saga, step
from tests.unit.engine.machine.test_budget import noise

BUDGET = 40_000


@pytest.fixture(autouse=True)
def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_budget, "STATE_BUDGET", BUDGET)


class GuardedDriver(MachineDriver):
    """The guards refuse a result beyond the room of the call, and ``committed`` has the entries of all others."""

    def __init__(self, definition: Definition, input: Any = None, answers: Any = None, **more: Any) -> None:
        super().__init__(definition, input, answers, **more)
        self.committed: list[str] = []

    def _ended(self, call: Call, scripted: Any) -> CallEnded:
        ended = super()._ended(call, scripted)
        if call.op != "do" or call.guard is None or ended.outcome.kind != "done":
            return ended
        assert call.guard.room is not None
        try:
            require_room(encode_json(ended.outcome.result), call.guard.room)
        except DefiniteFailure as error:
            failure = Failure(error.type, str(error), error.details)
            return CallEnded(call.id, Outcome("failed", failure=failure, attempt=1, retryable=False), self.now, 1)
        self.committed.append(call.entry)
        return ended


def result(size: int, seed: int = 0) -> Outcome:
    """A result of about three quarters of ``size`` compressed bytes."""
    return Outcome.done({"text": noise(size, seed)}, attempt=1)


def kept(driver: MachineDriver) -> list[str]:
    return [
        row["id"] for row in driver.story["steps"] if row["state"] == "DONE" and row.get("result_kept") is not False
    ]


@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("at_once", [1, 3, 12])
def test_an_item_beyond_the_budget_fails_before_its_commit(at_once: int, restore: bool) -> None:
    each = step("a", for_each="${{ input.items }}", max_parallel=at_once)
    answers = {f"a#{n}": result(5_000, n) for n in range(12)}
    driver = GuardedDriver(saga(each), {"items": list(range(12))}, answers, restore=restore).run()
    assert driver.state == "COMPENSATED"
    assert 8 <= len(driver.committed) <= 10
    assert sorted(driver.undone) == sorted(driver.committed)
    reason = driver.story["reason"]
    assert reason["kind"] == "failed"
    assert f"the result of {reason['step']} has 5,0" in reason["message"]
    assert "left of the 40,000 that all its results share: return fewer columns" in reason["message"]
    assert driver.machine.snapshot().get("result_rooms") is None


@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_results_that_fit_together_are_all_kept_however_they_overlap(at_once: int, restore: bool) -> None:
    each = step("a", for_each="${{ input.items }}", max_parallel=at_once)
    answers = {f"a#{n}": result(5_000, n) for n in range(9)}
    driver = GuardedDriver(saga(each), {"items": list(range(9))}, answers, restore=restore).run()
    assert driver.state == "COMPLETED"
    assert kept(driver) == [f"a#{n}" for n in range(9)]


def test_one_large_result_gets_all_that_is_left_after_the_calls_beside_it() -> None:
    """The call is refused first, because the other calls might need their part, and waits until they have ended."""
    large = step("a")
    definition = saga(large, step("b"), step("p", kind="pivot", needs=("a", "b")), line=False)
    driver = GuardedDriver(definition, answers={"a": result(48_000)}, hold={"b"})
    driver.start()
    assert driver.committed == []
    error = driver.row("a")["error"]["message"]
    assert "a part of it for each call in flight; it is tried again with the room that it needs" in error
    driver.wait(60)
    assert driver.committed == []
    assert driver.call("a").guard.room < 40_000  # pyright: ignore[reportOptionalMemberAccess, reportOptionalOperand]
    driver.end("b", result(100)).run()
    assert (driver.state, driver.committed) == ("COMPLETED", ["b", "a", "p"])
    assert kept(driver) == ["a", "b", "p"]


def test_a_step_alone_may_use_all_that_is_left_at_once() -> None:
    driver = GuardedDriver(saga(step("a"), step("b"), step("c")), answers={"a": result(48_000)}).run()
    assert (driver.state, driver.log, kept(driver)) == ("COMPLETED", ["a", "b", "c"], ["a", "b", "c"])


def test_an_attempt_that_may_be_committed_keeps_its_room() -> None:
    """The other branch must not use it up: the guard would return the stored result, which is there."""
    definition = saga(step("a"), step("b"), step("p", kind="pivot", needs=("a", "b")), line=False)
    answers = {"a": ["unknown", result(2_500)], "b": result(50_000)}
    driver = GuardedDriver(definition, answers=answers, hold={"a"})
    driver.start()
    driver.end("a", "unknown")
    driver.run()
    rows = {row["id"]: row for row in driver.story["steps"]}
    assert rows["a"].get("result_kept") is not False


@pytest.mark.parametrize("kind", ["pivot", "retriable"])
def test_a_pivot_leads_backward_and_a_step_after_it_parks(kind: str) -> None:
    steps = [step("a"), step("p", kind="pivot"), step("n", kind="retriable")]
    large = "p" if kind == "pivot" else "n"
    driver = GuardedDriver(saga(*steps), answers={large: result(80_000)}).run()
    assert large not in driver.committed
    if kind == "pivot":
        assert (driver.state, driver.undone) == ("COMPENSATED", ["a"])
    else:
        assert (driver.state, driver.committed) == ("PARKED", ["a", "p"])
        assert "return fewer columns" in driver.story["parked"][0]["why"]


def test_it_is_a_failure_like_any_other_for_on_failure() -> None:
    each = step("a", for_each="${{ input.items }}", on_failure="continue")
    answers = {"a#0": result(48_000), "a#1": result(40_000), "a#2": result(100)}
    driver = GuardedDriver(saga(each), {"items": [0, 1, 2]}, answers).run()
    assert (driver.state, driver.committed) == ("COMPLETED", ["a#0", "a#2"])
    assert driver.row("a#1")["state"] == "FAILED"


def test_unguarded_results_leave_what_is_promised_to_guarded_ones() -> None:
    """The effect of an unguarded call exists: its result is not kept then."""
    steps = [step("a"), step("u", on=None), step("p", kind="pivot", needs=("a", "u"))]
    driver = GuardedDriver(saga(*steps, line=False), answers={"u": result(53_000)}, hold={"a"})
    driver.start()
    room = driver.call("a").guard.room  # pyright: ignore[reportOptionalMemberAccess]
    assert room == (BUDGET - 1) // 16
    assert driver.row("u")["result_kept"] is False
    driver.end("a", result(room)).run()  # pyright: ignore[reportArgumentType]
    assert (driver.state, driver.committed) == ("COMPLETED", ["a", "p"])
    assert driver.row("a").get("result_kept") is not False


def test_the_result_of_a_nested_saga_is_not_kept_because_its_effects_exist() -> None:
    nested = step("a", uses="saga", on=None, with_={"name": "other"})
    driver = GuardedDriver(saga(nested, step("p", kind="pivot")), answers={"a": ("COMPLETED", large_story())}).run()
    assert any(isinstance(command, StartSaga) for command in driver.flights.values()) is False
    assert driver.state == "COMPLETED"
    assert driver.row("a")["result_kept"] is False


def large_story() -> Mapping[str, Any]:
    return {"output": {"text": noise(80_000)}}


@pytest.mark.parametrize("room", ["large", None, [], 1e9])
def test_an_action_that_raises_the_same_type_fails_its_step(room: object) -> None:
    failure = Failure("ResultTooLarge", "too large", {"bytes": 10, "compressed": 10, "room": room})
    answers = {"b": Outcome("failed", failure=failure, attempt=1, retryable=False)}
    driver = GuardedDriver(saga(step("a"), step("b"), step("p", kind="pivot")), answers=answers).run()
    assert driver.state == "COMPENSATED"


@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("kind", ["step", "items"])
def test_what_a_savepoint_repeats_gives_its_room_back(kind: str, restore: bool) -> None:
    part = step("b") if kind == "step" else step("b", for_each="${{ [1, 2] }}", max_parallel=1)
    definition = saga(step("a", savepoint=Savepoint(9)), part, step("c"))
    answers = {"a": result(2_000), "b": result(16_000), "c": ["rejected"] * 8 + ["done"]}
    answers |= {"b#0": result(12_000), "b#1": result(12_000, 1)}
    driver = GuardedDriver(definition, answers=answers, restore=restore).run()
    assert driver.state == "COMPLETED", driver.story["reason"]
    once = GuardedDriver(definition, answers={**answers, "c": "done"}, restore=restore).run()
    assert driver.machine.snapshot()["kept_bytes"] == once.machine.snapshot()["kept_bytes"]


def test_the_list_of_a_step_that_is_repeated_gives_its_room_back() -> None:
    definition = saga(
        step("a", savepoint=Savepoint(9)),
        step("b", for_each="${{ [input.text, input.text + 'x'] }}", max_parallel=1),
        step("c"),
    )
    driver = GuardedDriver(definition, {"text": noise(8_000)}, {"c": ["rejected"] * 8 + ["done"]}).run()
    once = GuardedDriver(definition, {"text": noise(8_000)}).run()
    assert (driver.state, once.state) == ("COMPLETED", "COMPLETED")
    assert driver.machine.snapshot()["kept_bytes"] == once.machine.snapshot()["kept_bytes"]


def test_a_result_that_was_looked_up_gives_its_room_back() -> None:
    definition = saga(step("a", savepoint=Savepoint(2)), step("b"))
    driver = GuardedDriver(definition, answers={"b": ["unknown", "done"], "b~seal": result(8_000)}).run()
    assert (driver.state, driver.undone) == ("COMPLETED", ["b"])
    once = GuardedDriver(definition).run()
    assert driver.machine.snapshot()["kept_bytes"] == once.machine.snapshot()["kept_bytes"]
